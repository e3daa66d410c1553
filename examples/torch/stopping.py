# SPDX-License-Identifier: MIT
"""Early stopping and ReduceLROnPlateau among trainers that are kept together in the background.

Each trainer judges its model on a share of the held-out examples, and sync.mean makes one loss of
theirs, the same number in all: so all lower their rates, and stop, after the same epoch. A trainer
that reads a signal to stop tells the others by sync.any. The examples are made up: points in two
classes, between which a ring is the border.

    python3 examples/torch/stopping.py --trainers 2 --sync shadow-delta

The last line is an object of JSON, of the first trainer."""

import signal

import torch

import descant
import keeping

HELD = 2000
FEATURES = 8


def load(args):
    random = torch.Generator().manual_seed(args.seed)
    x = torch.randn((args.examples or 8000) + HELD, FEATURES, generator=random)
    return (x, (x.square().sum(1) > FEATURES).float())


def batches(args, sync, examples, epoch):
    deck = torch.randperm(examples, generator=torch.Generator().manual_seed(epoch))
    share = examples // sync.size // args.batch * args.batch     # the same number for all
    return deck[sync.rank::sync.size][:share].split(args.batch)


def loss_of(model, x, y):
    return torch.nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)


def main(args, x, y):
    torch.manual_seed(args.seed)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(),
                                torch.nn.Linear(32, 1))
    optimizer = keeping.optimizer_of(args, model)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=2)
    signalled = []
    signal.signal(signal.SIGTERM, lambda *_: signalled.append(True))
    best, waited, losses = float("inf"), 0, []
    with descant.attach(model, plan=args.sync) as sync:
        descant.hook(optimizer, sync)
        held = slice(len(x) - HELD + sync.rank, None, sync.size)
        for epoch in range(args.epochs):
            for chosen in batches(args, sync, len(x) - HELD, epoch):
                optimizer.zero_grad()
                loss_of(model, x[chosen], y[chosen]).backward()
                optimizer.step()
            with torch.no_grad():
                mine = loss_of(model, x[held], y[held])
            loss = sync.mean(mine.item())               # the same in all trainers
            plateau.step(loss)
            waited = 0 if loss < best - 1e-3 else waited + 1
            best = min(best, loss)
            losses.append(loss)
            if sync.any(signalled or waited >= args.patience):
                break
        told = {"epochs": len(losses), "loss": best, "rate": optimizer.param_groups[0]["lr"]}
        same = sync.broadcast(told) == told             # what the first trainer has
        keeping.say(args, keeping.Kept(model, optimizer, sync.rank, sync.size),
                    {"patience": args.patience}, **{**told, "stopped": len(losses) < args.epochs,
                                                    "same": not sync.any(not same)})


if __name__ == "__main__":
    arguments = keeping.arguments(__doc__, epochs=60, batch=32, rates={"sgd": 0.1, "adamw": 0.01},
                                  more=[("patience", 4)])
    keeping.launch(main, arguments, load)
