# SPDX-License-Identifier: MIT
"""The way of tensors on a device, where there is one. Nothing is forked here, unlike in the other
tests (together.py): a process that has used CUDA has no use for a fork."""

import unittest

import torch
from torch import nn

import descant

torch.set_num_threads(1)


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


if __name__ == "__main__":
    unittest.main()
