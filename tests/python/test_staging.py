# SPDX-License-Identifier: MIT
"""The way of tensors on a device, with a lane whose copies arrive late: nothing is read too early,
no progress is lost, and steps do not wait."""

import concurrent.futures
import contextlib
import os
import signal
import threading
import time
import types
import unittest
import weakref
from unittest import mock

import torch
from torch import nn

import descant
from descant import _segments, _staging
from together import refused, together

torch.set_num_threads(1)


class LateLane(_staging.Lane):
    """A device's: memory of its own on the host, and exchanges whose copies are made when it was
    looked for them often enough, and no sooner; until then their target has nonsense."""

    waits = copies = 0

    def __init__(self, device, late=3):
        super().__init__(device)
        self._late, self._left, self._to_do = late, 0, []

    def host(self, flat):
        return torch.full_like(flat, float("nan"))

    def copy(self, target, source):
        assert not self._to_do
        LateLane.copies += 1
        target.copy_(source)

    def start(self, flat, host, fold):
        assert not self._to_do
        host.fill_(float("nan"))

        def down():
            host.copy_(flat)
            fold()
            flat.fill_(float("nan"))
        self._to_do, self._left = [down, lambda: flat.copy_(host)], self._late

    def busy(self):
        if self._to_do:
            self._left -= 1
            if self._left <= 0:
                self._to_do.pop(0)()
                self._left = self._late
        return bool(self._to_do)

    def wait(self):
        LateLane.waits += bool(self._to_do)
        while self._to_do:
            self._to_do.pop(0)()


class Late(unittest.TestCase):
    def setUp(self):
        def stages(staged, share):
            return [_staging.Stage(staged, LateLane(torch.device("cpu")), share)] if staged else []
        from descant import _sync
        self.kept = _segments._is_plain, _sync.stages
        _segments._is_plain, _sync.stages = (lambda tensor: False), stages
        LateLane.waits = LateLane.copies = 0

    def tearDown(self):
        from descant import _sync
        _segments._is_plain, _sync.stages = self.kept

    def test_exact_plans_have_exact_values(self):
        for plan in ("ma,every=1", "dasgd,every=2,delay=1,xi=0", "easgd,every=1"):
            def body(rank):
                model = nn.Linear(3, 2)
                with descant.attach(model, plan=plan) as sync:
                    seen = []
                    for _ in range(6):
                        with torch.no_grad():
                            for p in model.parameters():
                                p += 1 + 2 * rank
                        sync.step()
                        seen.append(model.weight.tolist())
                return seen if plan == "ma,every=1" else seen[0], model.weight.tolist()
            first, second = together(2, body)
            self.assertEqual(first[1], second[1], plan)
            if plan == "ma,every=1":
                self.assertEqual(first, second)

    def test_progress_and_merges_add_up_under_a_shadow(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            model = nn.Linear(8, 4).to(dtype)
            with torch.no_grad():
                for p in model.parameters():
                    p.zero_()
            with descant.attach(model, plan="shadow-easgd,gap=1000000", job="self") as sync:
                waits, given = LateLane.waits, 0
                for k in range(100):
                    with torch.no_grad():
                        for p in model.parameters():
                            p += 0.5
                    if k % 10 == 5:             # as a round would have merged
                        given += 0.25
                        for segment in sync._segments:
                            segment.mirror += 0.25
                    sync.step()
                self.assertEqual(LateLane.waits, waits)
            for p in model.parameters():
                self.assertTrue((p == 50 + given).all(), (dtype, p))

    def test_a_half_keeps_what_it_cannot_show(self):
        model = nn.Linear(2, 2).to(torch.bfloat16)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(1)
        with descant.attach(model, plan="shadow-easgd,gap=1000000", job="self") as sync:
            for _ in range(200):
                for segment in sync._segments:
                    segment.mirror += 2.0 ** -12
                sync.step()
        for p in model.parameters():
            wanted = torch.tensor(1 + 200 * 2.0 ** -12).to(p.dtype)
            self.assertTrue((p == wanted).all(), p)

    def test_two_learn_what_one_would(self):
        def body(rank):
            torch.manual_seed(rank)
            model = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            x = torch.randn(64, 4)
            with descant.attach(model, plan="shadow-easgd", sync_cpu=1) as sync:
                until, k = time.monotonic() + 60, 0
                while k < 300 or (sync.stats()["rounds"] < 20 and time.monotonic() < until):
                    k += 1
                    optimizer.zero_grad()
                    (model(x).sum(1) - x.sum(1)).square().mean().backward()
                    optimizer.step()
                    sync.step()
            return model.weight.tolist(), (model.weight - 1).abs().max().item() < 0.3
        first, second = together(2, body)
        self.assertEqual((first, first[1]), (second, True))

    def test_nan_is_healed(self):
        for dtype in (torch.float32, torch.bfloat16):
            def body(rank):
                model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).to(dtype)
                with descant.attach(model, plan="shadow-ma,heal=1", sync_cpu=1) as sync:
                    if rank:
                        with torch.no_grad():
                            model[0].weight[0, 0] = float("nan")
                    until, well = time.monotonic() + 30, 0
                    while well < 20 and time.monotonic() < until:
                        with torch.no_grad():
                            for p in model.parameters():        # as training does, it spreads
                                p += 0 * model[0].weight.sum()
                        sync.step()
                        well = well + 1 if sync.stats()["bad"] and \
                            all(torch.isfinite(p).all() for p in model.parameters()) else 0
                return well
            self.assertEqual(together(2, body), [20, 20], dtype)

    def test_values_written_over_nan_count(self):
        for dtype in (torch.float32, torch.bfloat16):
            model = nn.Linear(2, 2).to(dtype)
            with descant.attach(model, plan="shadow-ma,gap=1000000", job="self") as sync:
                for value in (float("nan"), 3):
                    with torch.no_grad():
                        for p in model.parameters():
                            p.fill_(value)
                    for _ in range(30):
                        sync.step()
                for segment in sync._segments:
                    self.assertTrue((segment.mirror == 3).all())
            self.assertTrue((model.weight == 3).all())

    def test_close_waits_for_an_exchange_and_frees_its_memory(self):
        model = nn.Linear(2, 2)
        sync = descant.attach(model, plan="shadow-ma,gap=1000000", job="self")
        lane, stage = sync._stages[0]._lane, weakref.ref(sync._stages[0])
        sync.step()
        self.assertTrue(lane._to_do)
        sync.close()
        self.assertFalse(lane._to_do)
        self.assertIsNone(stage())

    def test_copies_are_made_where_rounds_are(self):
        # of dasgd, down at 1, 5, 6, 10 and 11, and up at 1, 6 and 11
        for plan, wanted in (("none", 0), ("ma,every=4", 6), ("dasgd,every=5,delay=1", 8),
                             ("dasgd,every=5,delay=5", 4)):
            model = nn.Linear(2, 2)
            with descant.attach(model, plan=plan, job="self") as sync:
                copies = LateLane.copies
                for _ in range(12):
                    sync.step()
                self.assertEqual(LateLane.copies - copies, wanted, plan)

    def test_a_lane_has_the_shadow_s_share_of_a_core(self):
        now, began = [0.0], []
        model = nn.Linear(2, 2)
        with descant.attach(model, plan="shadow-ma,gap=1000000", job="self", sync_cpu=0.25) as sync:
            lane, until = sync._stages[0]._lane, time.monotonic() + 60
            while sync.stats()["budget"] != 0.25 and time.monotonic() < until:
                time.sleep(0.001)       # the shadow begins
            lane.spent = 1.0
            start = lane.start
            lane.start = lambda *of: (began.append(now[0]), start(*of))
            with mock.patch.object(_staging, "time", types.SimpleNamespace(monotonic=lambda: now[0])):
                for _ in range(100):
                    sync.step()
                    now[0] += 0.1
        rests = [after - before for before, after in zip(began, began[1:])]
        self.assertTrue(rests and all(3 <= rest <= 4 for rest in rests), began)

    def test_the_program_s_default_type_and_device_do_not_matter(self):
        if not hasattr(torch, "set_default_device"):
            self.skipTest("this PyTorch has no default device")
        for plan in ("shadow-ma", "ma,every=1", "allreduce"):
            model = nn.Linear(3, 2).to(torch.bfloat16)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            x = torch.ones(1, 3, dtype=torch.bfloat16)
            torch.set_default_dtype(torch.float64)
            torch.set_default_device("meta")
            try:
                with descant.attach(model, plan=plan, job="self") as sync:
                    before = model.bias.tolist()
                    descant.hook(optimizer, sync)
                    for _ in range(10):
                        optimizer.zero_grad()
                        model(x).sum().backward()
                        optimizer.step()
            finally:
                torch.set_default_device("cpu")
                torch.set_default_dtype(torch.float32)
            self.assertEqual(model.bias.dtype, torch.bfloat16)
            self.assertTrue(all(abs(b - 5 - a) < 0.2 for a, b in zip(model.bias.tolist(), before)))

    def test_what_is_overwritten_in_a_pause_counts(self):
        model = nn.Linear(2, 2).to(torch.bfloat16)
        with descant.attach(model, plan="shadow-easgd,gap=1000000", job="self") as sync:
            for _ in range(20):
                for segment in sync._segments:
                    segment.mirror += 2.0 ** -12
                sync.step()
            with sync.paused():
                with torch.no_grad():
                    for p in model.parameters():
                        p.fill_(7)
            for _ in range(20):
                sync.step()
            for segment in sync._segments:
                self.assertTrue((segment.mirror == 7).all())
        for p in model.parameters():
            self.assertTrue((p == 7).all())


class SlowCuda:
    """In place of torch.cuda: what a stream was given has been done once the gate is open."""

    def __init__(self):
        self.gate, self.capturing = threading.Event(), False

    def Stream(self, _device):
        return types.SimpleNamespace(wait_stream=lambda _: None)

    def Event(self, blocking):
        return types.SimpleNamespace(record=lambda: None, synchronize=self.gate.wait)

    def current_stream(self, _device):
        return None

    def stream(self, _stream):
        return contextlib.nullcontext()

    def is_current_stream_capturing(self):
        return self.capturing


class SlowLane(_staging.Lane):
    def host(self, flat):
        return torch.zeros_like(flat)

    def uses(self, flat):
        pass


class Threads(unittest.TestCase):
    """The thread of a lane, as it is used with CUDA."""

    def setUp(self):
        from descant import _sync
        self.cuda = SlowCuda()
        with mock.patch.object(torch, "cuda", self.cuda):
            self.lane = SlowLane(types.SimpleNamespace(type="cuda"))

        def stages(staged, share):
            return [_staging.Stage(staged, self.lane, share)]
        for patched in (mock.patch.object(_segments, "_is_plain", lambda tensor: False),
                        mock.patch.object(_sync, "stages", stages)):
            patched.start()
            self.addCleanup(patched.stop)
        self.cuda.gate.set()
        self.model = nn.Linear(8, 4)
        with torch.no_grad():
            self.model.weight.fill_(0.5)
        self.sync = descant.attach(self.model, plan="shadow-easgd,gap=1000000", job="self")
        self.addCleanup(self.sync.close)

    def ends(self):
        self.cuda.gate.set()
        concurrent.futures.wait([self.lane._exchange], 60)

    def test_a_step_does_not_wait_for_the_device(self):
        self.cuda.gate.clear()
        before = self.model.weight.detach().clone()
        for _ in range(100):
            self.sync.step()
        self.assertTrue(self.lane.busy())
        with torch.no_grad():
            self.model.weight += 1
        for segment in self.sync._segments:
            segment.mirror += 2
        self.ends()
        self.sync.step()
        self.assertTrue(torch.equal(self.model.weight, before + 1 + 2))
        self.sync.finish()
        self.assertTrue(torch.equal(self.model.weight, before + 1 + 2))

    def test_what_a_thread_fails_with_is_the_next_step_s(self):
        before = self.model.weight.detach().clone()
        with mock.patch.object(_staging.library, "descant_fold", side_effect=RuntimeError("gone")):
            self.sync.step()
            self.ends()
        refused(self, self.sync.step, "gone", kind=RuntimeError)
        self.sync.step()
        self.ends()
        self.sync.step()
        self.assertTrue(torch.equal(self.model.weight, before))

    def test_close_says_that_an_exchange_has_failed_and_closes(self):
        with mock.patch.object(_staging.library, "descant_fold", side_effect=RuntimeError("gone")):
            self.sync.step()
            self.ends()
        with self.assertLogs("descant", "WARNING") as said:
            self.sync.close()
        self.assertIn("gone", said.output[0])
        self.assertTrue(self.sync.ended)

    def test_a_step_in_a_graph_is_refused(self):
        self.cuda.capturing = True
        refused(self, self.sync.step, "after the replay", kind=RuntimeError)
        self.cuda.capturing = False
        self.sync.step()

    def test_a_forked_child_does_not_wait_for_the_thread(self):
        self.cuda.gate.clear()
        self.sync.step()
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            self.sync.close()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        self.cuda.gate.set()
        self.assertEqual(status, 0)


if __name__ == "__main__":
    unittest.main()
