# SPDX-License-Identifier: MIT
"""PyTorch's DistributedDataParallel on Gloo, to be measured beside Descant: the DLRM of descant's
defaults (13 dense features, 26 tables of 100,000 x 16), one thread, plain SGD, the dense part kept
together, each rank with tables of its own. Ranks by torchrun's variables; one rank trains alone.

    ddp.py [BATCH] [STEPS]      one JSON object: examples/s of this rank
"""
import json
import os
import sys
import time

import torch
import torch.distributed
from torch.nn.functional import binary_cross_entropy_with_logits, embedding_bag

DENSE, TABLES, ROWS, WIDTH = 13, 26, 100_000, 16
WARM, BATCHES = 10, 8


def layers(*sizes):
    parts = []
    for before, after in zip(sizes, sizes[1:]):
        parts += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return parts


class Dense(torch.nn.Module):
    """All but the tables: layers of the features, products of each two vectors, the last layers."""

    def __init__(self):
        super().__init__()
        vectors = TABLES + 1
        n = WIDTH + vectors * (vectors - 1) // 2
        self.bottom = torch.nn.Sequential(*layers(DENSE, 512, 256, 64, WIDTH))
        self.top = torch.nn.Sequential(*layers(n, 512, 256, 1)[:-1])
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1))

    def forward(self, features, embedded):
        first = self.bottom(features)
        vectors = torch.cat([first[:, None], embedded], 1)
        products = vectors @ vectors.transpose(1, 2)
        return self.top(torch.cat([first, products[:, self.pairs[0], self.pairs[1]]], 1))[:, 0]


def main():
    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 128
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    size = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dense = Dense()
    table = torch.nn.Parameter(torch.empty(TABLES * ROWS, WIDTH).uniform_(-0.01, 0.01))
    if size > 1:
        torch.distributed.init_process_group("gloo")
        dense = torch.nn.parallel.DistributedDataParallel(dense)
    optimizer = torch.optim.SGD([*dense.parameters(), table], lr=0.1)
    first_rows = torch.arange(TABLES) * ROWS
    inputs = [(torch.randn(batch, DENSE), torch.randint(0, ROWS, (batch, TABLES)) + first_rows,
               (torch.rand(batch) < 0.25).float()) for _ in range(BATCHES)]

    def step(k):
        features, rows, labels = inputs[k % BATCHES]
        optimizer.zero_grad()
        embedded = embedding_bag(rows.reshape(-1, 1), table, mode="sum", sparse=True)
        logits = dense(features, embedded.reshape(batch, TABLES, WIDTH))
        binary_cross_entropy_with_logits(logits, labels).backward()
        optimizer.step()

    for k in range(WARM):
        step(k)
    start = time.perf_counter()
    for k in range(steps):
        step(k)
    seconds = time.perf_counter() - start
    print(json.dumps({"peer": "DDP", "torch": torch.__version__, "ranks": size,
                      "rank": int(os.environ.get("RANK", "0")), "batch": batch,
                      "examples_per_s": round(steps * batch / seconds)}), flush=True)
    if size > 1:
        torch.distributed.destroy_process_group()


main()
