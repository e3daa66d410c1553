# SPDX-License-Identifier: MIT
"""An ML module in PyTorch: a small network on examples that it makes up. Autograd computes the
gradients; they are copied over, a part of the model each, and the parameters follow the model.

    python3 examples/bsp/torch_module.py --begin model.safetensors      # its first values
    PYTHONPATH=python descant bsp run --modules 2 --model model.safetensors --lr 0.5 \\
        --supersteps 500 --checkpoint trained.safetensors -- python3 examples/bsp/torch_module.py

Names of parts are those of the parameters, so trained.safetensors is a state_dict again."""

import json
import os
import struct
import sys

import torch

BATCH, INPUTS, TELL = 64, 20, 20000


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(INPUTS, 16), torch.nn.Tanh(),
                               torch.nn.Linear(16, 1))


def write(path, parameters):
    """A safetensors file: the header's length, the header, the floats."""
    header, data = {}, b""
    for name, p in parameters:
        raw = p.detach().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(p.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text = text.ljust((len(text) + 7) // 8 * 8)         # the data is aligned
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def make_up(random):
    """Examples, and whether two of their inputs have the same sign, which no line can tell."""
    x = torch.rand(BATCH, INPUTS, generator=random) * 2 - 1
    return x, (x[:, :1] * x[:, 1:2] > 0).float()


def train(ml, number):
    random = torch.Generator().manual_seed(1 + number)
    net, loss_of, loss, k = network(), torch.nn.BCEWithLogitsLoss(), 0.0, 0
    while True:
        model, version = ml.pin()
        with torch.no_grad():
            for name, p in net.named_parameters():
                p.copy_(torch.tensor(model[ml.parts[name]]).view_as(p))
        x, y = make_up(random)
        net.zero_grad()
        error = loss_of(net(x), y)
        error.backward()
        for name, p in net.named_parameters():
            ml.stage(name, p.grad.numpy())
        try:
            ml.commit(examples=BATCH)
        except descant_ml.Stale:
            pass                        # the model has moved on too far
        k, loss = k + 1, loss + error.item()
        if k % TELL == 0:
            print(f"module {number}: version {version}, loss {loss / TELL:.4f}", file=sys.stderr)
            loss = 0.0


if sys.argv[1:2] == ["--begin"]:
    write(sys.argv[2], network().named_parameters())
else:
    import descant_ml
    with descant_ml.attach() as module:
        try:
            train(module, int(os.environ.get("DESCANT_MODULE", "0")))
        except descant_ml.Ended:
            pass                        # the run is over
