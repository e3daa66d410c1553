# SPDX-License-Identifier: MIT
"""What the examples share: the loop, and how trainers are kept together, by one flag.

    --sync PLAN         Descant with any plan; none: each trainer learns alone
    --sync ddp          PyTorch's DistributedDataParallel, on Gloo
    --sync postlocal    PyTorch's PostLocalSGDOptimizer: gradients are averaged for a tenth of the
                        steps, then parameters, every 8 steps and at the end

Trainers are started by torchrun, by RANK and WORLD_SIZE, or here by --trainers. Each learns from a
share of the examples, in batches of --batch; --batch times trainers is the batch of all."""

import argparse
import contextlib
import functools
import json
import math
import socket
import time
from os import environ

import torch
from torch import distributed

import descant

POSTLOCAL_EVERY = 8
AHEAD = 2               # batches whose rows are asked for early, by models that have `prefetch`


def arguments(description, *, epochs, batch, rates, more=()):
    """rates: of learning, for each optimizer. more: names and defaults of an example's own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--sync", default="shadow-easgd", metavar="PLAN|none|ddp|postlocal")
    parser.add_argument("--trainers", type=int, default=0, help="processes to start; 0: this one")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--rate", type=float, help=f"of learning; {rates}")
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--examples", type=int, default=0, help="to learn from; 0: all")
    parser.add_argument("--held", type=int, default=0, help="to judge by; 0: all")
    for name, default in more:
        parser.add_argument("--" + name, type=type(default), default=default)
    args = parser.parse_args()
    args.rate = rates[args.optimizer] if args.rate is None else args.rate
    return args


def launch(main, args, load=lambda _args: ()):
    """main(args, *load(args)) in args.trainers processes, which share what was loaded once; for 0
    in this one, which a launcher may have made."""
    torch.set_num_threads(1)
    optimizer_of(args, torch.nn.Linear(1, 1))       # what PyTorch imports at the first one, once
    main = functools.partial(main, args, *load(args))
    if args.trainers == 0:
        main()
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.start_processes(_trainer, (main, args.trainers, port), args.trainers,
                                          start_method="fork")


def _trainer(rank, main, size, port):
    environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size),
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    main()


def optimizer_of(args, model):
    if args.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=args.rate)
    return torch.optim.SGD(model.parameters(), lr=args.rate, momentum=0.9, weight_decay=1e-4)


class Kept:
    """What training calls: model (DDP's wrapper of it, or itself) and optimizer; finish, after which
    all have the same model. rank and size."""

    def __init__(self, model, optimizer, rank, size, finish=lambda: None):
        self.model, self.optimizer, self.rank, self.size = model, optimizer, rank, size
        self.finish = finish


@contextlib.contextmanager
def keep(args, model, optimizer, examples):
    """Inside, each optimizer.step() is what --sync says; afterwards all have the same model, but
    under none, where all have the first one's."""
    if args.sync in ("ddp", "postlocal"):
        with _group():
            yield _by_torch(args, model, optimizer, examples)
            if args.sync == "postlocal":
                from torch.distributed.algorithms.model_averaging.utils import average_parameters
                average_parameters(model.parameters(), distributed.group.WORLD)
        return
    with descant.attach(model, plan=args.sync, buffers="mean") as sync:
        descant.hook(optimizer, sync)
        yield Kept(model, optimizer, sync.rank, sync.size, sync.finish)


@contextlib.contextmanager
def _group():
    if "WORLD_SIZE" in environ:
        distributed.init_process_group("gloo")
    else:
        distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    yield
    distributed.barrier()
    distributed.destroy_process_group()


def _by_torch(args, model, optimizer, examples):
    rank, size = distributed.get_rank(), distributed.get_world_size()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    if args.sync == "postlocal":
        from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hook
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
        from torch.distributed.optim import PostLocalSGDOptimizer
        begin = steps_of(args, examples, size) // 10
        parallel.register_comm_hook(hook.PostLocalSGDState(None, None, begin, False),
                                    hook.post_localSGD_hook)
        optimizer = PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(POSTLOCAL_EVERY, begin))
    return Kept(parallel, optimizer, rank, size)


def steps_of(args, examples, size):
    return args.epochs * (examples // size // args.batch)


def batches(args, kept, examples):
    """Of this trainer: all deal one shuffled deck, and have the same number of batches."""
    share = examples // kept.size // args.batch * args.batch
    for epoch in range(args.epochs):
        deck = torch.randperm(examples, generator=torch.Generator().manual_seed(
            1000 * args.seed + epoch))
        yield from deck[kept.rank::kept.size][:share].split(args.batch)


def rate(args, progress):
    """Of learning: up over the first twentieth, then down along a cosine."""
    return args.rate * min(20 * progress, (1 + math.cos(math.pi * progress)) / 2)


def train(args, model, data, loss_of, judge=lambda: {}):
    """loss_of(model, *batch): of what is cut from the tensors of data. judge(): figures of the final
    model, by the first trainer, while all are still there. Returns what say tells."""
    optimizer = optimizer_of(args, model)
    examples = len(data[0])
    with keep(args, model, optimizer, examples) as kept:
        total = steps_of(args, examples, kept.size)
        start = time.perf_counter()
        deck = list(batches(args, kept, examples))
        asked = 0
        for k, chosen in enumerate(deck):
            while hasattr(model, "prefetch") and asked < min(k + AHEAD + 1, len(deck)):
                model.prefetch(*(each[deck[asked]] for each in data))
                asked += 1
            for group in optimizer.param_groups:
                group["lr"] = rate(args, (k + 1) / total)
            optimizer.zero_grad()
            loss_of(kept.model, *(each[chosen] for each in data)).backward()
            kept.optimizer.step()
        seconds = time.perf_counter() - start
        kept.finish()
        figures = judge() if kept.rank == 0 else {}
    return kept, {"steps": total, "seconds": round(seconds, 2),
                  "steps_per_s": round(total / seconds, 2), **figures}


def say(args, kept, told, **figures):
    """The last line, by the first trainer."""
    if kept.rank == 0:
        settings = {name: getattr(args, name) for name in
                    ("sync", "optimizer", "batch", "epochs", "seed")}
        print(json.dumps({**settings, "trainers": kept.size, **told, **figures}), flush=True)
