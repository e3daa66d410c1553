# SPDX-License-Identifier: MIT
"""A DLRM, a model of clicks, on examples made up from a planted model:

    python3 examples/torch/dlrm.py --trainers 2 --sync shadow-ma

Layers of dense features, 26 tables of vectors, products of each two vectors, layers. With --owned 1
the rows of the tables have owners (docs/owners.md): over several hosts, by descant run --hosts, each
has a part of them. The last line has the steps a second of a trainer and the final model's log loss
on examples of its own."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import descant
import keeping

DENSE, TABLES, WIDTH = 13, 26, 16
EXAMPLES, HELD = 100_000, 20_000


def layers(*sizes):
    parts = []
    for before, after in zip(sizes, sizes[1:]):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return parts


class DLRM(nn.Module):
    """dense: (batch, 13) floats; ids: (batch, 26), below rows."""

    def __init__(self, rows, owned=False):
        super().__init__()
        n = TABLES + 1
        if owned:
            self.tables = descant.Embedding(TABLES * rows, WIDTH, lr=0.05, spread=0.1)
        else:
            self.tables = nn.Embedding(TABLES * rows, WIDTH)
            nn.init.uniform_(self.tables.weight, -0.1, 0.1)
        self.bottom = nn.Sequential(*layers(DENSE, 512, 256, 64, WIDTH))
        self.top = nn.Sequential(*layers(WIDTH + n * (n - 1) // 2, 512, 256, 1)[:-1])
        self.register_buffer("first", torch.arange(TABLES) * rows)
        self.register_buffer("pairs", torch.tril_indices(n, n, -1))

    def prefetch(self, _dense, ids, *_more):
        if isinstance(self.tables, descant.Embedding):
            self.tables.prefetch(ids + self.first)

    def forward(self, dense, ids):
        of_dense = self.bottom(dense)
        vectors = torch.cat([of_dense[:, None], self.tables(ids + self.first)], 1)
        products = vectors @ vectors.transpose(1, 2)
        pairs = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([of_dense, pairs], 1))[:, 0]


def clicks(n, rows, seed):
    """Features, ids (low ones are frequent), and whether each was clicked: about a quarter."""
    planted, chance = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    worth = torch.randn(TABLES, rows, generator=planted) * 0.5
    weight = torch.randn(DENSE, generator=planted) * 0.3
    dense = torch.randn(n, DENSE, generator=chance)
    ids = (torch.rand(n, TABLES, generator=chance) ** 3 * rows).long()
    score = dense @ weight + worth[torch.arange(TABLES), ids].sum(1) - 1.5
    return dense, ids, (torch.rand(n, generator=chance) < score.sigmoid()).float()


def loss_of(model, dense, ids, click):
    return binary_cross_entropy_with_logits(model(dense, ids), click)


def main(args):
    if args.owned and args.sync in ("ddp", "postlocal"):
        raise SystemExit("dlrm.py: --owned 1 is for the plans of Descant")
    torch.manual_seed(args.seed)
    model = DLRM(args.rows, args.owned)

    def judge():
        with torch.no_grad():
            return {"loss": round(float(loss_of(model, *clicks(args.held or HELD, args.rows, 2))), 4)}

    kept, told = keeping.train(args, model, clicks(args.examples or EXAMPLES, args.rows, 1), loss_of,
                               judge)
    keeping.say(args, kept, told)


if __name__ == "__main__":
    keeping.launch(main, keeping.arguments(
        __doc__, epochs=1, batch=128, rates={"sgd": 0.1, "adamw": 0.001}, more=[("rows", 1000), ("owned", 0)]))
