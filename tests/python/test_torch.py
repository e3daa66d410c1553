# SPDX-License-Identifier: MIT
"""Modules of PyTorch: known values from real processes, where parameters are, what is refused."""

import copy
import gc
import inspect
import os
import time
import unittest
import weakref
from unittest import mock

import numpy
import torch
from torch import nn

import descant
from descant import _others
from together import differs, refused, together

torch.set_num_threads(1)


class Tied(nn.Module):
    """One of each kind: plain, tied by object and by storage, other layouts, types and states."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(3, 4)
        self.again = nn.Linear(3, 4)
        self.again.weight = self.first.weight
        self.turned = nn.Linear(4, 3, bias=False)
        self.turned.weight = nn.Parameter(self.first.weight.data.t())
        self.conv = nn.Conv2d(3, 2, 2).to(memory_format=torch.channels_last)
        self.part = nn.Parameter(torch.ones(10)[2:6])
        self.gaps = nn.Parameter(torch.ones(4, 6)[:, ::2])
        self.bf16 = nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
        self.f16 = nn.Parameter(torch.ones(5, dtype=torch.float16))
        self.f64 = nn.Parameter(torch.ones(5, dtype=torch.float64))
        self.none = nn.Parameter(torch.ones(0, 3))
        self.scalar = nn.Parameter(torch.tensor(1.0))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.whole = nn.Parameter(torch.arange(3), requires_grad=False)

    def add(self, value):
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(value)


def mapping_at(address):
    """The line of /proc/self/maps; "" for memory that is not there."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, high = (int(x, 16) for x in line.split()[0].split("-"))
            if low <= address < high:
                return line
    return ""


def alone(model, **options):
    return descant.attach(model, job="self", **options)


class Values(unittest.TestCase):
    def test_every_kind_of_parameter_has_the_mean(self):
        def body(rank):
            model = Tied(rank)
            before = [p.detach().clone().fill_(0) for p in model.parameters()]
            strides = [p.stride() for p in model.parameters()]
            with torch.no_grad():
                for p in model.parameters():
                    p.zero_()
            with descant.attach(model, plan="ma,every=1") as sync:
                for _ in range(4):
                    model.add(1 + 2 * rank)
                    sync.step()
            self.assertEqual(strides, [p.stride() for p in model.parameters()])
            self.assertEqual([p.dtype for p in before], [p.dtype for p in model.parameters()])
            self.assertIs(model.again.weight, model.first.weight)
            self.assertEqual(model.turned.weight.data_ptr(), model.first.weight.data_ptr())
            return {name: p.tolist() for name, p in model.named_parameters()}
        for rank, values in enumerate(together(2, body)):
            tied = torch.tensor(values.pop("first.weight"))
            self.assertTrue((tied == 16).all())         # added to by two names
            self.assertTrue((torch.tensor(values.pop("turned.weight")) == 16).all())
            for name in ("frozen", "whole"):
                self.assertEqual(set(values.pop(name)), {4 * (1 + 2 * rank)}, name)
            for name, value in values.items():
                self.assertTrue((torch.tensor(value) == 8).all(), (name, value))

    def test_all_begin_with_the_first_ones_values(self):
        def body(rank):
            model = Tied(rank)
            with descant.attach(model, plan="none", frozen=True):
                return {name: p.tolist() for name, p in model.named_parameters()}
        first, second = together(2, body)
        wanted = {name: p.tolist() for name, p in Tied(0).named_parameters()}
        self.assertEqual((first, second), (wanted, wanted))

    def test_buffers_are_averaged_at_the_end_or_left(self):
        for plan in ("shadow-easgd", "shadow-bmuf", "dasgd", "ma,every=2", "none"):
            for buffers, final in ((None, "mean"), ("mean", "local"), ("leave", "mean")):
                def body(rank):
                    norm = nn.BatchNorm1d(3)
                    with descant.attach(norm, plan=plan, buffers=buffers, final=final) as sync:
                        for _ in range(50):
                            norm.running_mean = norm.running_mean + 1 + 2 * rank
                            sync.step()
                        norm.num_batches_tracked.fill_(rank)
                    self.assertEqual(norm.num_batches_tracked.item(), rank)
                    return norm.running_mean.tolist()
                both = together(2, body)
                wanted = {"mean": [100, 100], "local": [50, 50]}[final]
                wanted = wanted if buffers != "leave" else [50, 150]
                self.assertEqual(both, [[w] * 3 for w in wanted], (plan, buffers, final))

    def test_the_default_plan_merges_changes_and_pulls_where_moments_go_with_it(self):
        def kept(sync):
            return len(sync.state_dict()["outer"])
        for optimized, plan in ((False, "shadow-delta"), (True, "shadow-easgd")):
            model = nn.Linear(3, 2)
            optimizer = torch.optim.AdamW(model.parameters()) if optimized else None
            with mock.patch.dict(os.environ):
                os.environ.pop("DESCANT_PLAN", None)
                with alone(model, optimizer=optimizer) as sync:
                    self.assertEqual(sync.plan, plan)
                    found = kept(sync)
                with alone(model, plan="none") as sync:
                    self.assertEqual(found > kept(sync), optimized)     # a central copy
                os.environ["DESCANT_PLAN"] = "shadow-bmuf"
                with alone(model) as sync:
                    self.assertEqual(sync.plan, "shadow-bmuf")

    def test_a_mask_is_no_reason_to_leave_a_trainer_out(self):
        class Masked(nn.BatchNorm1d):
            def __init__(self):
                super().__init__(2)
                self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))

        def body(rank):
            model = Masked()
            with descant.attach(model) as sync:
                model.running_mean.fill_(rank)
                sync.step()
            return model.mask.tolist(), model.running_mean.tolist()
        self.assertEqual(together(2, body), [([0.0, float("-inf")], [0.5, 0.5])] * 2)

    def test_a_central_copy_has_no_buffers(self):
        def body(rank):
            model = nn.BatchNorm1d(2)
            with self.assertLogs("descant", "WARNING") as said:
                with descant.attach(model, plan="shadow-easgd") as sync:
                    model.running_mean.fill_(rank)
                    sync.step()
                    sync.finish(final="central")
            return model.running_mean.tolist(), any("buffers" in line for line in said.output)
        self.assertEqual(together(2, body), [([0, 0], True), ([1, 1], True)])

    def test_doubles_stay_doubles(self):
        third = torch.full((3,), 1 / 3, dtype=torch.float64)

        def made(value):
            model = nn.Module()
            model.w = nn.Parameter(value.clone())
            return model
        for plan in ("shadow-easgd", "ma,every=1", "allreduce", "dasgd,every=2,delay=1"):
            model = made(third)
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            with alone(model, plan=plan) as sync:
                descant.hook(optimizer, sync)
                for _ in range(1000):
                    model.w.grad = torch.full_like(model.w, -1e-12)
                    optimizer.step()
            torch.testing.assert_close(model.w.data, third + 1e-9, rtol=0, atol=1e-13)

        def body(rank):
            model = made(third * (1 + rank))
            with descant.attach(model, plan="ma,every=1") as sync:
                begun = model.w.tolist()
                for _ in range(1000):
                    with torch.no_grad():
                        model.w += 1e-12
                    sync.step()
                in_the_end = model.w.tolist()
            return begun, in_the_end, model.w.tolist()
        first, second = together(2, body)
        self.assertEqual(first[0], third.tolist())
        for mine in (first, second):
            torch.testing.assert_close(torch.tensor(mine[1], dtype=torch.float64), third + 1e-9,
                                       rtol=0, atol=2e-8)
            self.assertNotEqual(mine[1], mine[0])
        self.assertEqual(first[2], second[2])

    def test_allreduce_is_one_trainer_with_both_batches(self):
        def grown(model, optimizer, batches):
            for x in batches:
                optimizer.zero_grad()
                model[0](x).square().mean().backward()
                optimizer.step()
            return [p.tolist() for p in model.parameters()]

        def model_of(seed):
            torch.manual_seed(seed)
            used = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
            model = nn.ModuleList([used, nn.Linear(2, 2)])
            return model, torch.optim.SGD(model.parameters(), lr=0.5)

        batches = torch.randn(6, 2, 8, 4, generator=torch.Generator().manual_seed(1))

        def body(rank):
            model, optimizer = model_of(rank)
            with descant.attach(model, plan="allreduce") as sync:
                hook = descant.hook(optimizer, sync)
                result = grown(model, optimizer, batches[:, rank])
                self.assertEqual(sync.steps, 6)
                hook.remove()
                optimizer.step()
                self.assertEqual(sync.steps, 6)
                self.assertIsNone(model[1].weight.grad)
            return result
        first, second = together(2, body)
        self.assertEqual(first, second)
        wanted = grown(*model_of(0), batches.flatten(1, 2))
        for mine, theirs in zip(first, wanted):
            torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs))

    def test_a_closure_averages_what_it_makes(self):
        x = torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(1))
        x[1] *= 3                       # so that one's loss falls otherwise than the other's
        kinds = ((torch.optim.SGD, {"lr": 0.05}), (torch.optim.LBFGS, {"max_iter": 6}),
                 (torch.optim.LBFGS, {"line_search_fn": "strong_wolfe", "max_iter": 6}))

        def grown(model, optimizer, x, by_name=False):
            def closure():
                optimizer.zero_grad()
                loss = (model(x) - x.sum(1, keepdim=True).tanh()).square().mean()
                loss.backward()
                return loss
            losses = [(optimizer.step(closure=closure) if by_name else
                       optimizer.step(closure)).item() for _ in range(3)]
            return [p.tolist() for p in model.parameters()], losses

        def made(kind, options, seed):
            torch.manual_seed(seed)
            model = nn.Linear(4, 1)
            return model, kind(model.parameters(), **options)
        for kind, options in kinds:
            def body(rank):
                model, optimizer = made(kind, options, rank)
                with descant.attach(model, plan="allreduce") as sync:
                    descant.hook(optimizer, sync)
                    told = grown(model, optimizer, x[rank], by_name=True)
                    self.assertEqual(sync.steps, 3)
                return told
            first, second = together(2, body)
            self.assertEqual(first, second, kind)
            wanted = grown(*made(kind, options, 0), x.flatten(0, 1))
            for mine, theirs in zip(first[0] + [first[1]], wanted[0] + [wanted[1]]):
                torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs),
                                           rtol=1e-3, atol=1e-4)

    def test_an_optimizer_around_another_makes_the_step(self):
        class Halves:
            """Writes parameters after the inner step, as Lookahead does."""

            def __init__(self, inner):
                self.optimizer = inner

            @property
            def param_groups(self):
                return self.optimizer.param_groups

            def step(self, closure=None):
                self.optimizer.step(closure)
                with torch.no_grad():
                    for p in self.param_groups[0]["params"]:
                        p /= 2

        class Hooked(Halves, torch.optim.Optimizer):
            """With PyTorch's hooks."""

            param_groups = None

            def __init__(self, inner):
                torch.optim.Optimizer.__init__(self, inner.param_groups, {})
                self.optimizer = inner

        class Unhooked(Halves, torch.optim.Optimizer):
            """Has methods for hooks that its step never calls."""

            __init__ = Halves.__init__

        class Itself(torch.optim.SGD):
            optimizer = property(lambda self: self)
        for kind in (Halves, Hooked, Unhooked, None):
            model = nn.Linear(1, 1, bias=False)
            inner = torch.optim.SGD(model.parameters(), lr=1.0)
            optimizer = kind(inner) if kind else Itself(model.parameters(), lr=2.0)
            with descant.attach(model, plan="ma,every=1", job="self") as sync:
                hook = descant.hook(optimizer, sync)
                nn.init.constant_(model.weight, 2.0)
                model.weight.grad = torch.tensor([[-2.0]])
                with mock.patch.object(descant.Sync, "_whole_step", autospec=True,
                                       side_effect=lambda _: seen.append(model.weight.item())):
                    seen = []
                    optimizer.step()
                    hook.remove()
                    optimizer.step()
                self.assertEqual(seen, [2.0] if kind else [6.0], kind)
                sync.step()

    def test_what_one_freezes_later_is_averaged_on(self):
        def body(rank):
            model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            with descant.attach(model, plan="allreduce") as sync:
                descant.hook(optimizer, sync)
                for k in range(4):
                    if k == 2 and rank == 0:
                        model[0].weight.requires_grad_(False)
                    optimizer.zero_grad()
                    model(torch.ones(1, 3) * (1 + rank)).sum().backward()
                    optimizer.step()
                return [p.tolist() for p in model.parameters()]
        first, second = together(2, body)
        self.assertEqual(first, second)

    def test_tensors_of_the_caller_are_kept_where_they_are(self):
        def body(rank):
            for of in (lambda model: model.state_dict(),
                       lambda model: [p.data for p in model.parameters()],
                       lambda model: {n: p.detach() for n, p in model.named_parameters()}):
                model = nn.Linear(3, 2)
                before = model.weight.data_ptr()
                with torch.no_grad():
                    for p in model.parameters():
                        p.zero_()
                with descant.attach(of(model), plan="ma,every=1") as sync:
                    for _ in range(3):
                        with torch.no_grad():
                            for p in model.parameters():
                                p += 1 + 2 * rank
                        sync.step()
                    self.assertEqual(model.weight.data_ptr(), before)
                self.assertEqual(set(model.weight.flatten().tolist() + model.bias.tolist()), {6.0})
        together(2, body)

    def test_gradients_of_two_parameters_in_one_memory(self):
        def body(rank):
            model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 3, bias=False))
            model[1].weight = nn.Parameter(model[0].weight.data.t())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            with descant.attach(model, plan="allreduce") as sync:
                descant.hook(optimizer, sync)
                model(torch.ones(1, 3) * (1 + rank)).sum().backward()
                optimizer.step()
                return model[0].weight.tolist()
        first, second = together(2, body)
        self.assertEqual(first, second)

    def test_a_state_that_was_loaded_to_a_device(self):
        class OnDevice(torch.Tensor):
            def numpy(self):
                raise TypeError("use cpu")

            def cpu(self):
                return self.as_subclass(torch.Tensor)
        model = nn.Linear(2, 2)
        with alone(model) as sync:
            state = sync.state_dict()
            sync.load_state_dict({**state, "outer": state["outer"].as_subclass(OnDevice)})

    def test_a_checkpoint_is_taken_up(self):
        def run(state, steps):
            model = nn.Linear(3, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
            with torch.no_grad():
                for p in model.parameters():
                    p.zero_()
            if state:
                model.load_state_dict(state["model"])
            with alone(model, plan="bmuf,every=2") as sync:
                if state:
                    sync.load_state_dict(state["sync"])
                for _ in range(steps):
                    optimizer.zero_grad()
                    model(torch.ones(1, 3)).sum().backward()
                    optimizer.step()
                    sync.step()
                return {"model": copy.deepcopy(model.state_dict()), "sync": sync.state_dict()}
        before = run(None, 4)
        after = run(before, 2)      # its round makes the reload known
        self.assertEqual((before["sync"]["steps"], after["sync"]["steps"]), (4, 6))
        self.assertTrue(torch.equal(before["sync"]["outer"], after["sync"]["outer"]))
        self.assertFalse(torch.equal(run(None, 2)["sync"]["outer"], before["sync"]["outer"]))
        self.assertTrue(torch.equal(before["model"]["weight"] - 0.5, after["model"]["weight"]))


class Memory(unittest.TestCase):
    def kinds(self, sync):
        return {s.name: type(s).__name__ for s in sync._segments}

    def test_what_can_be_is_placed(self):
        model = Tied()
        with alone(model) as sync:
            self.assertEqual(self.kinds(sync), {
                "first.weight": "Placed", "first.bias": "Placed", "again.bias": "Placed",
                "conv.weight": "Placed", "conv.bias": "Placed", "scalar": "Placed",
                "part": "Attached", "gaps": "Staged", "bf16": "Staged",
                "f16": "Staged", "f64": "Staged"})
            self.assertEqual(model.turned.weight.data_ptr(), model.first.weight.data_ptr())

    def test_memory_that_others_use_stays(self):
        model = nn.Linear(3, 2)
        model.share_memory()
        with alone(model) as sync:
            self.assertEqual(set(self.kinds(sync).values()), {"Attached"})
        array = numpy.zeros(6, "f4")
        model.weight = nn.Parameter(torch.from_numpy(array).view(2, 3))
        if hasattr(torch.UntypedStorage, "resizable"):
            with alone(model) as sync:
                self.assertEqual(self.kinds(sync)["weight"], "Attached")
                with torch.no_grad():
                    model.weight += 1
                self.assertTrue((array == 1).all())

    def test_what_looks_into_a_parameter_comes_along(self):
        class Looks(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.zeros(4, 3))
                self.frozen = nn.Parameter(self.w.data, requires_grad=False)
                self.register_buffer("turned", self.w.detach().t())
                self.register_buffer("row", self.w.data[2])
                self.register_buffer("other", torch.zeros(3))
        model = Looks()

        def values():
            with torch.no_grad():
                model.w += 1
            return [set(t.flatten().tolist()) for t in (model.w, model.frozen, model.turned,
                                                        model.row, model.other)]
        with alone(model):
            self.assertEqual(values(), [{1.0}] * 4 + [{0.0}])
        with alone(model) as sync:
            self.assertEqual(set(self.kinds(sync).values()), {"Placed"})
            self.assertEqual(values(), [{2.0}] * 4 + [{0.0}])
        self.assertEqual(values(), [{3.0}] * 4 + [{0.0}])
        model.row = model.w.data.view(torch.int32)
        refused(self, lambda: alone(model), "'row'", "'w'")

    def test_nothing_is_copied_to_be_exchanged(self):
        model = nn.Linear(300, 300)
        with descant.attach(model, job=f"shm:placed-{os.getpid()}", size=1):
            with open("/proc/self/maps") as maps:
                ours = [[int(x, 16) for x in line.split()[0].split("-")] for line in maps
                        if "memfd:" in line]
            for p in model.parameters():
                self.assertTrue(any(low <= p.data_ptr() < high for low, high in ours))

    def test_what_looks_into_it_outlives_the_end(self):
        model = nn.Linear(300, 300)
        with descant.attach(model, job=f"shm:outlives-{os.getpid()}", size=1) as sync:
            lent = model.weight.data_ptr()
            kept = model.state_dict()
            wanted = model.weight.tolist()
            self.assertIn("memfd:", mapping_at(lent))
        self.assertTrue(sync._job.left)
        self.assertEqual((model.weight.data_ptr(), kept["weight"].data_ptr()), (lent, lent))
        self.assertEqual(model.weight.tolist(), wanted)
        self.assertNotIn("memfd:", mapping_at(lent))
        with torch.no_grad():
            model.weight.zero_()
        del model
        gc.collect()
        self.assertEqual(kept["weight"].abs().sum(), 0)
        del kept, sync
        gc.collect()
        self.assertEqual(mapping_at(lent), "")

    def test_who_left_after_an_error_is_not_waited_for(self):
        """Though it still has what looks into the memory: the others' rounds go on without it."""
        go_read, go_write = os.pipe()

        def body(rank):
            model = nn.Linear(30, 30)
            if rank == 0:
                with descant.attach(model, plan="ma,every=1", start_s=30) as sync:
                    while sync.members()["size"] == 2:
                        time.sleep(0.01)
                    for _ in range(5):
                        sync.step()
                os.write(go_write, b"g")
                return model.weight.sum().item()
            with self.assertRaises(ZeroDivisionError):
                with descant.attach(model, plan="ma,every=1", start_s=30):
                    kept = model.weight.view(-1)
                    1 / 0
            os.read(go_read, 1)
            with torch.no_grad():
                model.weight.add_(1)
            return (kept - model.weight.view(-1)).abs().sum().item()
        self.assertEqual(together(2, body)[1], 0)

    def test_what_is_attached_stays_when_it_is_moved(self):
        lent = numpy.zeros(10, "f4")
        kept, model = weakref.ref(lent), nn.Module()
        model.part = nn.Parameter(torch.from_numpy(lent)[2:6])
        del lent
        sync = alone(model)
        model.part.data = torch.zeros(4)
        gc.collect()
        self.assertIsNotNone(kept())
        sync.close()
        self.assertIsNone(kept())

    def test_values_written_in_place_are_kept(self):
        model, other = Tied(1), Tied(2)
        with alone(model, plan="ma,every=1") as sync:
            model.load_state_dict(other.state_dict())
            for _ in range(20):
                sync.step()
            for mine, theirs in zip(model.parameters(), other.parameters()):
                self.assertTrue(torch.equal(mine, theirs))

    def test_what_has_moved_is_named(self):
        def clamp(model):
            model[2].bias.data = model[2].bias.data.clamp(-1, 1)

        def replace(model):
            model[8].weight = nn.Parameter(torch.zeros(2, 2))

        def assign(model):
            model.load_state_dict(nn.Sequential(*[nn.Linear(2, 2) for _ in range(9)]).state_dict(),
                                  assign=True)
        changes = [(clamp, ("'2.bias'", "moved")), (replace, ("'8.weight'", "replaced")),
                   (lambda model: model.to(torch.float64), (".weight'", "moved"))]
        if "assign" in inspect.signature(nn.Module.load_state_dict).parameters:
            changes.append((assign, (".weight'", "replaced")))
        for change, words in changes:
            model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(9)])
            with alone(model) as sync:
                change(model)
                steps = [self.step_fails(sync, words) for _ in model.parameters()]
                self.assertIn(True, steps)
                refused(self, sync.finish, *words)
                sync._finished = True

    def test_what_was_not_taken_and_is_trained_is_named(self):
        def unfreeze(model):
            model[1].weight.requires_grad_(True)

        def replace(model):
            model[1].bias = nn.Parameter(torch.zeros(2))

        def add(model):
            model.add_module("head", nn.Linear(2, 2))
        for change, words, soon in ((unfreeze, ("'1.weight'", "frozen"), True),
                                    (replace, ("'1.bias'", "frozen"), True),
                                    (add, ("'head.weight'", "added"), False)):
            model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
            with alone(model) as sync:
                for _ in range(20):
                    sync.step()
                change(model)
                self.assertEqual(any([self.step_fails(sync, words) for _ in range(9)]), soon)
                refused(self, sync.finish, *words)
                sync._finished = True
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
        with alone(model, frozen=True) as sync:
            unfreeze(model)
            sync.step()
        model[1].requires_grad_(False)
        with alone(model) as sync:
            model[1].bias = None
            sync.step()

    def test_a_pause_looks_before_others_take_it(self):
        model = nn.Linear(2, 2)
        with alone(model, plan="ma,every=1") as sync:
            with self.assertRaises(RuntimeError) as caught:
                with sync.paused():
                    model.weight.data = torch.ones(2, 2)
            self.assertIn("'weight' has moved", str(caught.exception))
            refused(self, sync.step, "paused")
            sync._finished = True

    def test_most_steps_look_at_nothing(self):
        model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(9)])
        with alone(model) as sync:
            for _ in range(80):
                sync.step()
            looked = []
            sync._look = looked.extend
            for _ in range(80):
                sync.step()
            self.assertTrue(0 < len(looked) <= 80)
            self.assertEqual(sync.steps, 160)

    def step_fails(self, sync, words):
        try:
            sync.step()
        except RuntimeError as error:
            for word in words:
                self.assertIn(word, str(error))
            return True
        return False


class Refusals(unittest.TestCase):
    def test_a_model_that_is_attached_twice(self):
        for model in (nn.Linear(2, 2), [torch.zeros(3)]):
            first = alone(model)
            refused(self, lambda: alone(model), "is attached already", "close")
            first.step()
            first.finish()
            with alone(model) as second:
                second.step()
                first.close()
                second.step()

    def test_things_that_are_something_else(self):
        for what in (42, None, "model.pt", object()):
            said = refused(self, lambda: descant.attach(what), "torch.nn.Module", kind=TypeError)
            self.assertIn("object" if type(what) is object else repr(what), str(said))
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1)
        said = refused(self, lambda: descant.attach(optimizer), "not an object of SGD", kind=TypeError)
        self.assertNotIn("momentum", str(said))
        for name in ("plan", "job"):
            refused(self, lambda: descant.attach(model, **{name: 3}), name + "=3", kind=TypeError)
        refused(self, lambda: alone(nn.Linear(2, 2), optimizer=optimizer), "optimizer=", "none of")
        refused(self, lambda: alone(torch.zeros(1).expand(5)), "'0' is expanded", "clone()")
        sync = alone(model)
        for what in (model.state_dict(), {}, 42, None):
            refused(self, lambda: sync.load_state_dict(what), "sync.state_dict()", kind=TypeError)
        sync.close()
        refused(self, sync.members, "closed", "before")

    def test_each_by_its_name(self):
        class Cut(nn.Module):
            def __init__(self, a, b):
                super().__init__()
                self.a, self.b = nn.Parameter(a), nn.Parameter(b)
        refused(self, lambda: alone(nn.LazyLinear(3)), "'weight'", "shape")
        refused(self, lambda: alone(nn.Linear(2, 2, device="meta")), "'weight'", "meta")
        refused(self, lambda: alone(nn.Linear(2, 2, dtype=torch.complex64)), "'weight'", "complex")
        refused(self, lambda: alone({"ids": torch.arange(3)}), "'ids'", "int64")
        refused(self, lambda: alone({"s": torch.eye(3).to_sparse()}), "'s'", "sparse")
        six = torch.ones(6)
        for part in (six[:3], six[3:], six[::2], six[1:3].view(2, 1)):
            refused(self, lambda: alone(Cut(six, part)), "'b'", "'a'", "a part")
            refused(self, lambda: alone(Cut(part, six)), "'b'", "'a'", "a part")
        refused(self, lambda: alone(Cut(six[:4], six[2:])), "'b'", "'a'", "a part")
        alone(Cut(six[:3], six[3:])).close()
        alone(Cut(six.view(3, 2)[:, :1], six.view(3, 2)[:, 1:])).close()
        grid = torch.ones(4, 8)
        refused(self, lambda: alone(Cut(grid[:, ::2], grid[:, 2:4])), "'b'", "'a'", "a part")
        refused(self, lambda: alone(Cut(grid[:, :5], grid[3, 4:6])), "'b'", "'a'", "a part")
        alone(Cut(grid[:, :5], grid[3, 5:])).close()
        refused(self, lambda: alone(nn.ReLU()), "nothing to keep in step")
        refused(self, lambda: alone(Tied(), workers=2), "'gaps'", "one worker")
        sparse = nn.Embedding(3, 2, sparse=True)
        with alone(sparse, plan="allreduce") as sync:
            sparse(torch.tensor([1])).sum().backward()
            refused(self, sync.mean_gradients, "'weight'", "sparse")
            refused(self, lambda: sync.mean_(torch.ones(3, device="meta")), "CPU")
        frozen = nn.Linear(2, 2).requires_grad_(False)
        refused(self, lambda: alone(frozen), "frozen=True")
        alone(frozen, frozen=True).close()

    def test_models_that_differ_are_told_by_name(self):
        differs(self, lambda rank: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2 + rank)),
                "1.weight[2x3]", "1.weight[3x3]")
        differs(self, lambda rank: nn.Conv2d(2, 2, 2).to(
            memory_format=torch.channels_last if rank else torch.contiguous_format),
                "weight[2x2x2x2]", "weight[2x2x2x2:0,2,3,1]")


class Others(unittest.TestCase):
    def test_one_that_is_not_whole_is_passed_over(self):
        from torch.distributed.optim import DistributedOptimizer, PostLocalSGDOptimizer
        model = nn.Linear(2, 1)
        kinds = (nn.parallel.DistributedDataParallel, PostLocalSGDOptimizer, DistributedOptimizer)
        half = [kind.__new__(kind) for kind in kinds]
        with mock.patch.object(_others, "_has_group", return_value=True):
            self.assertIsNone(_others.wrapper_of(model.parameters()))
            whole = PostLocalSGDOptimizer.__new__(PostLocalSGDOptimizer)
            whole.optim = torch.optim.SGD(model.parameters(), lr=1.0)
            whole.param_groups = whole.optim.param_groups
            self.assertEqual(_others.wrapper_of(model.parameters()), "PostLocalSGDOptimizer")
        del half


if __name__ == "__main__":
    unittest.main()
