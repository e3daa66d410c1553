# SPDX-License-Identifier: MIT
"""The way of tensors on a device, with a lane whose copies arrive late: nothing is read too early,
no progress is lost, and steps do not wait."""

import time
import unittest

import torch
from torch import nn

import descant
from descant import _segments, _staging
from together import together

torch.set_num_threads(1)


class LateLane(_staging.Lane):
    """A device's: memory of its own on the host, copies that are made when they were asked for often
    enough, and no sooner; until then their target has nonsense."""

    waits = 0

    def __init__(self, device, late=3):
        super().__init__(device)
        self._late, self._left, self._copy = late, 0, None

    def host(self, flat):
        return torch.full_like(flat, float("nan"))

    def copy(self, target, source):
        assert self._copy is None or self._left == 0
        self._copy, self._left = (target, source), self._late
        target.fill_(float("nan"))

    def _end(self):
        target, source = self._copy
        target.copy_(source)
        self._copy, self._left = None, 0

    def arrived(self):
        self._left = max(self._left - 1, 0)
        if self._copy and self._left == 0:
            self._end()
        return self._copy is None

    def wait(self):
        LateLane.waits += self._copy is not None
        if self._copy:
            self._end()


class Late(unittest.TestCase):
    def setUp(self):
        def stages(staged):
            return [_staging.Stage(staged, LateLane(torch.device("cpu")))] if staged else []
        from descant import _sync
        self.kept = _segments._is_plain, _sync.stages
        _segments._is_plain, _sync.stages = (lambda tensor: False), stages
        LateLane.waits = 0

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

    def test_close_waits_for_the_copy(self):
        model = nn.Linear(2, 2)
        sync = descant.attach(model, plan="shadow-ma,gap=1000000", job="self")
        lanes = {segment.lane for segment in sync._segments}
        sync.step()
        self.assertFalse(all(lane._copy is None for lane in lanes))
        sync.close()
        self.assertTrue(all(lane._copy is None for lane in lanes))

    def test_copies_are_made_where_rounds_are(self):
        for plan, wanted in (("none", 0), ("ma,every=4", 3), ("dasgd,every=5,delay=1", 5)):
            model = nn.Linear(2, 2)
            with descant.attach(model, plan=plan, job="self") as sync:
                waits = LateLane.waits
                for _ in range(12):
                    sync.step()
                self.assertEqual(LateLane.waits - waits, 2 * wanted, plan)

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


if __name__ == "__main__":
    unittest.main()
