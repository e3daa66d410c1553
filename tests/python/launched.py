# SPDX-License-Identifier: MIT
"""What test_launchers starts: trains under each plan, later ranks for longer, and writes down what
came out of it.

    launched.py FOLDER PLAN ...         on the device that DEVICE names"""

import json
import logging
import os
import pathlib
import sys

import torch
from torch import nn

import descant

folder, *plans = sys.argv[1:]
logging.basicConfig(level=logging.DEBUG)
torch.set_num_threads(1)
device = os.environ.get("DEVICE", "cpu")
told = []
for plan in plans:
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with descant.attach(model, plan=plan) as sync:
        descant.hook(optimizer, sync)
        generator = torch.Generator().manual_seed(sync.rank)
        for _ in range(40 + 30 * sync.rank):
            x = torch.randn(16, 4, generator=generator).to(device)
            optimizer.zero_grad()
            (model(x).sum(1) - x.sum(1)).square().mean().backward()
            optimizer.step()
    told.append({"plan": plan, "rank": sync.rank, "size": sync.size,
                 "steps": sync.stats()["steps"], "rounds": sync.stats()["rounds"],
                 "weight": model.weight.tolist()})
pathlib.Path(folder, f"{sync.rank}.json").write_text(json.dumps(told))
