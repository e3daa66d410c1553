# SPDX-License-Identifier: MIT
"""The way of tensors on a device, where there is one: what test_staging looks at, and one, two and
four trainers that share the device, through the checks of on_device.py. Nothing is forked here, unlike
in the other tests (together.py): a process that has used CUDA has no use for a fork.

DESCANT_DEVICE=cpu: these checks without a device, to try them. DESCANT_CHECKS: the names of some.
DESCANT_SECONDS (200): the most that they may take; what was made until then is told."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import torch
from torch import nn

import descant

torch.set_num_threads(1)


def settle(sync):
    exchange = sync._stages[0]._lane._exchange
    if exchange is not None:
        exchange.result()


DEVICE = os.environ.get("DESCANT_DEVICE", "cuda" if torch.cuda.is_available() else "")
SCRIPT = pathlib.Path(__file__).with_name("on_device.py")


@unittest.skipUnless(torch.cuda.is_available(), "there is no device")
class Cuda(unittest.TestCase):
    """What test_staging looks at, with the copies of a real device."""

    def filled(self, dtype, value):
        model = nn.Linear(300, 100).to("cuda", dtype)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(value)
        return model

    def add(self, model, value):
        with torch.no_grad():
            for p in model.parameters():
                p += value

    def test_exact_plans_have_exact_values(self):
        for dtype in (torch.float32, torch.bfloat16):
            model = self.filled(dtype, 0)
            with descant.attach(model, plan="ma,every=3", job="self") as sync:
                for k in range(9):
                    self.add(model, 0.5)
                    if k % 3 == 2:              # as a round would have merged
                        for segment in sync._segments:
                            segment.mirror += 1
                    sync.step()
            for p in model.parameters():
                self.assertTrue((p == 7.5).all(), (dtype, p))

    def test_progress_and_merges_add_up_under_a_shadow(self):
        for dtype in (torch.float32, torch.bfloat16):
            model = self.filled(dtype, 0)
            with descant.attach(model, plan="shadow-easgd,gap=1000000", job="self") as sync:
                for k in range(100):
                    self.add(model, 0.5)
                    if k % 10 == 5:
                        settle(sync)            # or the lane's thread adds to the mirror, too
                        for segment in sync._segments:
                            segment.mirror += 0.25
                    sync.step()
            for p in model.parameters():
                self.assertTrue((p == 52.5).all(), (dtype, p))

    def test_gradients_have_their_mean(self):
        model = self.filled(torch.float32, 1)
        with descant.attach(model, plan="allreduce", job="self") as sync:
            model(torch.ones(1, 300, device="cuda")).sum().backward()
            sync.mean_gradients()
            sync.step()
            self.assertTrue((model.weight.grad == 1).all())
            with self.assertRaises(ValueError):
                sync.mean_(model.weight.grad)

    def test_what_is_overwritten_in_a_pause_counts(self):
        model = self.filled(torch.bfloat16, 0)
        with descant.attach(model, plan="shadow-easgd,gap=1000000", job="self") as sync:
            for value in (1.0, 7.0):
                with sync.paused():
                    self.add(model, value)
                sync.step()
            sync.step()
        self.assertTrue((model.weight == 8).all())

    def test_close_in_the_middle(self):
        for _ in range(20):
            model = self.filled(torch.float32, 3)
            sync = descant.attach(model, plan="shadow-easgd,gap=1000000", job="self")
            sync.step()
            sync.step()
            sync.close()
            self.assertTrue((model.weight == 3).all())


@unittest.skipUnless(DEVICE, "there is no device")
class Trainers(unittest.TestCase):
    def trained(self, size):
        """What on_device.py says of each check, by rank."""
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "log")
            with log.open("w") as out:
                started = [subprocess.Popen(
                    [sys.executable, SCRIPT, folder, *os.environ.get("DESCANT_CHECKS", "").split()],
                    stdout=out, stderr=out,
                    env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "DEVICE": DEVICE,
                         "JOB": f"devices-{os.getpid()}-{size}", "OMP_NUM_THREADS": "1"})
                    for rank in range(size)]
            until = time.monotonic() + float(os.environ.get("DESCANT_SECONDS", 200))
            try:
                ends = [each.wait(max(until - time.monotonic(), 0)) for each in started]
            except subprocess.TimeoutExpired:
                ends = ["too late"] * size
            for each in started:
                each.kill()
            paths = [pathlib.Path(folder, f"{rank}.json") for rank in range(size)]
            said = [json.loads(path.read_text()) if path.exists() else {} for path in paths]
            return said, ends, log.read_text()[-3000:]

    def of(self, size):
        said, ends, log = self.trained(size)
        for name in said[0]:
            told = [each.get(name, {"failed": "it has not come so far"}) for each in said]
            print(json.dumps({"check": name, "trainers": size,
                              **{key: value for key, value in told[0].items() if key != "same"}}),
                  flush=True)
            with self.subTest(name):
                for rank, each in enumerate(told):
                    self.assertNotIn("failed", each, f"rank {rank}: {each.get('failed')}")
                    self.assertEqual(each.get("same"), told[0].get("same"), f"rank {rank}")
        self.assertEqual(ends, [0] * size, log)

    def test_one(self):
        self.of(1)

    def test_two(self):
        self.of(2)

    def test_four(self):
        self.of(4)


if __name__ == "__main__":
    unittest.main()
