# SPDX-License-Identifier: MIT
"""An ML module in Python: logistic regression on examples that it makes up, from planted weights
of 2, -2, 2, ... and a bias of 0.5. Any number of them train one model:

    PYTHONPATH=python descant bsp run --modules 2 --params weight=20,bias=1 --lr 0.5 \\
        --supersteps 500 --checkpoint model.safetensors -- python3 examples/bsp/logistic.py

It may stand beside modules in C: control sees no difference."""

import os
import sys

import descant_ml
import numpy as np

BATCH, TELL = 64, 20000


def sigmoid(score):
    return 1 / (1 + np.exp(-score))


def make_up(random, n):
    """Examples, and whether each was clicked."""
    x = random.uniform(-1, 1, (BATCH, n)).astype(np.float32)
    planted = np.where(np.arange(n) % 2, -2, 2)
    return x, random.uniform(size=BATCH) < sigmoid(x @ planted + 0.5)


def train(ml, number):
    random = np.random.default_rng(1 + number)
    weight, bias = ml.parts["weight"], ml.parts["bias"]
    n, loss, k = weight.stop - weight.start, 0.0, 0
    while True:
        x, click = make_up(random, n)
        model, version = ml.pin()
        p = sigmoid(x @ model[weight] + model[bias])
        error = (p - click) / BATCH
        ml.stage("weight", error @ x)
        ml.stage("bias", error.sum(keepdims=True))
        try:
            ml.commit(examples=BATCH)
        except descant_ml.Stale:
            pass                        # the model has moved on too far
        k, loss = k + 1, loss - np.log(np.where(click, p, 1 - p)).mean()
        if k % TELL == 0:
            print(f"module {number}: version {version}, loss {loss / TELL:.4f}", file=sys.stderr)
            loss = 0.0


with descant_ml.attach() as module:
    try:
        train(module, int(os.environ.get("DESCANT_MODULE", "0")))
    except descant_ml.Ended:
        pass                            # the run is over
