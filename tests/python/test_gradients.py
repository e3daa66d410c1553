# SPDX-License-Identifier: MIT
"""descant.hook under allreduce beside PyTorch's DDP: the same bits, in 2 and 4 processes, whatever is
done with gradients between backward and step."""

import os
import unittest
import warnings

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import descant
from together import refused, together

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
torch.set_num_threads(1)
torch.optim.SGD([torch.zeros(1)], lr=1)         # loads what each process would have to
STEPS = 6
HAS_SCALER = hasattr(torch.amp, "GradScaler")


class Model(nn.Module):
    """few: how many of its parts the batch goes through; idle: none does."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(4, 8)
        self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.last = nn.Linear(8, 1)
        self.idle = nn.Linear(2, 2)

    def forward(self, x, few=2):
        x = self.first(x).tanh()
        for part in self.parts[:few]:
            x = part(x).tanh()
        return self.last(x)


def batch(rank, k, size):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * k + rank))
    return x, x.sum(1, keepdim=True).sin()


class Loop:
    """One trainer's: model, what is called for a loss, and no_sync."""

    def __init__(self, rank, size, model, called, no_sync):
        self.rank, self.size, self.model = rank, size, model
        self.called, self.no_sync = called, no_sync
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9,
                                         weight_decay=0.01)

    def loss(self, k, **more):
        x, y = batch(self.rank, k, self.size)
        return (self.called(x, **more) - y).square().mean()

    def values(self):
        return [p.tolist() for p in self.model.parameters()]


def by_descant(size, train, wrap=lambda model: model):
    def body(rank):
        model = Model(rank)
        with descant.attach(model, plan="allreduce") as sync:
            loop = Loop(rank, size, model, wrap(model), sync.no_sync)
            descant.hook(loop.optimizer, sync)
            told = train(loop)
            values = loop.values()
        return values, told
    return together(size, body)


def exactly(_state, bucket):
    """For DDP: the mean made in double, as the library makes it. (With 2 processes that is what Gloo
    has; with 4 Gloo rounds each sum of two, by an order of its own.)"""
    mine = bucket.buffer()
    parts = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, mine)
    future = torch.futures.Future()
    future.set_result(torch.stack(parts).double().mean(0).float())
    return future


def by_ddp(size, train):
    server = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)

    def body(rank):
        warnings.simplefilter("ignore")
        store = distributed.TCPStore("127.0.0.1", server.port, None, False)
        distributed.init_process_group("gloo", rank=rank, world_size=size, store=store)
        model = Model(rank)
        ddp = DistributedDataParallel(model, find_unused_parameters=True)
        if size > 2:
            ddp.register_comm_hook(None, exactly)
        loop = Loop(rank, size, model, ddp, ddp.no_sync)
        told = train(loop)
        distributed.barrier()
        return loop.values(), told
    return together(size, body)


def plain(loop):
    for k in range(STEPS):
        loop.optimizer.zero_grad()
        loop.loss(k).backward()
        loop.optimizer.step()


def clipped(loop):
    norms = []
    for k in range(STEPS):
        loop.optimizer.zero_grad()
        (10 * (loop.rank + 1) * loop.loss(k)).backward()
        norms.append(float(nn.utils.clip_grad_norm_(loop.model.parameters(), 0.3)))
        loop.optimizer.step()
    return norms


def scaled(loop):
    """One trainer's loss overflows in the third step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scales = []
    for k in range(STEPS):
        loop.optimizer.zero_grad()
        loss = scaler.scale(loop.loss(k))
        (loss * float("inf") if (k, loop.rank) == (2, 1) else loss).backward()
        scaler.unscale_(loop.optimizer)
        nn.utils.clip_grad_norm_(loop.model.parameters(), 0.3)
        scaler.step(loop.optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def accumulated(loop):
    for k in range(STEPS):
        loop.optimizer.zero_grad()
        with loop.no_sync():
            loop.loss(3 * k).backward()
            loop.loss(3 * k + 1).backward()
        loop.loss(3 * k + 2).backward()
        nn.utils.clip_grad_norm_(loop.model.parameters(), 0.3)
        loop.optimizer.step()


def several(loop):
    """Each backward is averaged, and they add up."""
    for k in range(STEPS):
        loop.optimizer.zero_grad()
        loop.loss(2 * k).backward()
        loop.loss(2 * k + 1).backward()
        loop.optimizer.step()


def uneven(loop):
    """Some parts are used by some trainers only, some by none; zeros stay where they are."""
    for k in range(STEPS):
        loop.optimizer.zero_grad(set_to_none=k % 2 == 0)
        loop.loss(k, few=(loop.rank + k) % 2 if k < 4 else 0).backward()
        loop.optimizer.step()
    return [p.grad is None for p in loop.model.parameters()]


def penalised(loop):
    """A gradient of a gradient."""
    for k in range(STEPS):
        loop.optimizer.zero_grad()
        x, y = batch(loop.rank, k, loop.size)
        x.requires_grad_(True)
        guess = loop.called(x)
        slope, = torch.autograd.grad(guess.sum(), x, create_graph=True)
        ((guess - y).square().mean() + slope.square().mean()).backward()
        loop.optimizer.step()


class BesideDDP(unittest.TestCase):
    def same(self, train, sizes=(2, 4)):
        for size in sizes:
            mine, theirs = by_descant(size, train), by_ddp(size, train)
            self.assertEqual([mine[0]] * size, mine, size)
            self.assertEqual(mine, theirs, size)

    def test_plain(self):
        self.same(plain)

    def test_clipped(self):
        self.same(clipped)

    @unittest.skipUnless(HAS_SCALER, "this PyTorch has no GradScaler of the CPU")
    def test_scaled(self):
        self.same(scaled)
        [(_, scales), _] = by_descant(2, scaled)
        self.assertEqual(scales, [1024.0] * 2 + [512.0] * 4)

    def test_accumulated(self):
        self.same(accumulated)

    def test_several_backwards(self):
        self.same(several)

    def test_parts_that_some_trainers_use(self):
        self.same(uneven)

    def test_a_gradient_of_a_gradient(self):
        self.same(penalised)


class Beside(unittest.TestCase):
    def test_ddp_around_the_same_parameters_is_said(self):
        for later in (False, True):
            server = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)

            def body(rank):
                store = distributed.TCPStore("127.0.0.1", server.port, None, False)
                distributed.init_process_group("gloo", rank=rank, world_size=2, store=store)
                model, other = nn.Linear(2, 1), nn.Linear(2, 1)
                kept = [DistributedDataParallel(other)]
                with self.assertLogs("descant", "WARNING") as said:
                    with descant.attach(other if not later else model) as sync:
                        kept.append(DistributedDataParallel(model))
                        for _ in range(20):
                            sync.step()
                distributed.barrier()
                return len([line for line in said.output if "DistributedDataParallel keeps" in line])
            self.assertEqual(together(2, body), [1, 1], later)


class AtBackward(unittest.TestCase):
    def test_a_compiled_module(self):
        if not hasattr(torch, "compile"):
            self.skipTest("this PyTorch compiles nothing")
        torch.compile(nn.Linear(1, 1), backend="aot_eager")(torch.ones(1, 1))   # imports, once
        compiled = by_descant(2, clipped, lambda model: torch.compile(model, backend="aot_eager"))
        self.assertEqual(compiled, by_ddp(2, clipped))

    def test_several_optimizers_and_a_hook_that_is_removed(self):
        def body(rank):
            model = Model(rank)
            optimizers = [torch.optim.SGD(part.parameters(), lr=0.1)
                          for part in (model.first, model.parts, model.last)]
            with descant.attach(model, plan="allreduce") as sync:
                hooks = [descant.hook(optimizer, sync) for optimizer in optimizers]
                loop = Loop(rank, 2, model, model, sync.no_sync)
                grads = []
                for k in range(3):
                    loop.loss(k).backward()
                    grads.append(model.first.weight.grad.tolist())
                    for optimizer in optimizers:
                        optimizer.step()
                    if k == 1:
                        hooks[0].remove()
                        hooks[0].remove()
                        optimizers[0].zero_grad()
                for hook in hooks:
                    hook.remove()
                model.zero_grad()
                loop.loss(3).backward()
                alone = model.first.weight.grad.tolist()
            return grads, loop.values(), alone
        first, second = together(2, body)
        self.assertEqual(first[:2], second[:2])
        self.assertNotEqual(first[2], second[2])

    def test_a_backward_that_failed_is_forgotten(self):
        def body(rank):
            model = Model(rank)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with descant.attach(model, plan="allreduce") as sync:
                descant.hook(optimizer, sync)
                loop = Loop(rank, 2, model, model, sync.no_sync)
                if rank == 0:
                    def fail(_grad):
                        raise ZeroDivisionError
                    handle = model.first.weight.register_hook(fail)
                    with self.assertRaises(ZeroDivisionError):
                        loop.loss(0).backward()
                    handle.remove()
                    model.zero_grad()
                loop.loss(1).backward()
                optimizer.step()
            return loop.values(), model.first.weight.grad.tolist()
        first, second = together(2, body)
        self.assertEqual(first, second)

    def test_gradients_written_by_hand_are_averaged_before_the_step(self):
        def body(rank):
            model = nn.Linear(2, 1, bias=False)
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            with descant.attach(model, plan="allreduce") as sync:
                descant.hook(optimizer, sync)
                for _ in range(2):
                    model.weight.grad = torch.full((1, 2), 1.0 + rank)
                    optimizer.step()
                return model.weight.grad.tolist()
        self.assertEqual(together(2, body), [[[1.5, 1.5]]] * 2)

    def test_a_checkpoint_inside_backward(self):
        from torch.utils.checkpoint import checkpoint

        def body(rank):
            model = Model(rank)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            x, y = batch(rank, 0, 2)
            told = []
            with descant.attach(model, plan="allreduce") as sync:
                hook = descant.hook(optimizer, sync)
                for reentrant in (False, True):
                    model.zero_grad()
                    inside = model.first(x).tanh()
                    for part in model.parts:
                        inside = checkpoint(part, inside, use_reentrant=reentrant)
                    (model.last(inside) - y).square().mean().backward()
                    told.append([p.grad.tolist() for p in model.parameters() if p.grad is not None])
                hook.remove()
            return told
        first, second = together(2, body)
        self.assertEqual(first, second)
        self.assertEqual(first[0], first[1])

    def test_said(self):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with descant.attach(model, job="self") as sync:
            refused(self, lambda: descant.hook(None, sync), "torch.optim.Optimizer", "None")
            refused(self, lambda: descant.hook(model, sync), "torch.optim.Optimizer", "Linear")
            refused(self, lambda: descant.hook(optimizer, None), "what attach has returned", "None")
            sync.step()

    def test_a_step_is_counted_once(self):
        model = nn.Linear(2, 1)
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
        for plan in ("shadow-easgd", "ma,every=1", "allreduce"):
            with descant.attach(model, plan=plan, job="self") as sync:
                hooks = [descant.hook(optimizer, sync) for optimizer in optimizers]
                for _ in range(20):
                    model(torch.ones(1, 2)).sum().backward()
                    optimizers[0].step()
                    refused(self, sync.step, "descant.hook", "twice")
                refused(self, lambda: descant.hook(optimizers[1], sync), "already", "remove()")
                self.assertEqual(sync.steps, 20)
                hooks[0].remove()
                refused(self, sync.step, "descant.hook")
                hooks[1].remove()
                if plan != "allreduce":
                    sync.step()
                descant.hook(optimizers[0], sync)
                optimizers[0].step()
                self.assertEqual(sync.steps, 21 + (plan != "allreduce"))


if __name__ == "__main__":
    unittest.main()
