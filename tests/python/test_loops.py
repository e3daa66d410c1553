# SPDX-License-Identifier: MIT
"""Training loops of PyTorch beside the shadow: gradients stay right, trainers die or end early,
data loaders fork, README's lines run."""

import os
import pathlib
import re
import signal
import tempfile
import time
import unittest
import warnings

import torch
from torch import nn

import descant
from together import together

torch.set_num_threads(1)
torch.optim.SGD([torch.zeros(1)], lr=1)         # loads what each process would have to
ROOT = pathlib.Path(__file__).parents[2]


def task(rank, n=64):
    """Examples of y = x · (1, 2, 3, 4) + 5, of this trainer alone."""
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(rank))
    return x, x @ torch.arange(1.0, 5.0) + 5


def train(sync, model, optimizer, batches):
    for x, y in batches:
        optimizer.zero_grad()
        (model(x).squeeze(1) - y).square().mean().backward()
        if sync.means_gradients:
            sync.mean_gradients()
        optimizer.step()
        sync.step()


def made(rank):
    torch.manual_seed(rank)
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def learned(model):
    wanted = torch.arange(1.0, 6.0)
    return (torch.cat([model.weight[0], model.bias]) - wanted).abs().max().item() < 0.05


class Loops(unittest.TestCase):
    def test_training_under_anomaly_detection(self):
        for plan in ("shadow-easgd", "shadow-bmuf", "dasgd"):
            def body(rank):
                model, optimizer = made(rank)
                warnings.simplefilter("ignore")         # that it is slow
                with torch.autograd.detect_anomaly(check_nan=True):
                    with descant.attach(model, plan=plan, sync_cpu=1) as sync:
                        until = time.monotonic() + 30
                        while sync.stats()["rounds"] < 60 and time.monotonic() < until:
                            train(sync, model, optimizer, [task(rank)] * 20)
                        train(sync, model, optimizer, [task(rank)] * 400)
                return learned(model), sync.stats()["rounds"] >= 60, model.weight.tolist()
            first, second = together(2, body)
            self.assertEqual((first, first[:2]), (second, (True, True)), plan)

    def test_gradients_are_exact_while_the_shadow_writes(self):
        def body(rank):
            model = nn.Linear(1000, 1, bias=False)
            x = torch.arange(1000.0) * (rank + 1)
            with descant.attach(model, plan="shadow-ma", sync_cpu=1) as sync:
                until = time.monotonic() + 30
                while sync.stats()["rounds"] < 20 and time.monotonic() < until:
                    model.zero_grad()
                    model(x).backward()
                    self.assertTrue(torch.equal(model.weight.grad[0], x))
                    with torch.no_grad():
                        model.weight += 1
                    sync.step()
            return sync.stats()["rounds"] >= 20
        self.assertEqual(together(2, body), [True, True])

    def test_the_others_go_on_when_one_is_killed(self):
        for plan in ("shadow-easgd", "shadow-ma", "dasgd"):
            def body(rank):
                model, optimizer = made(rank)
                with descant.attach(model, plan=plan) as sync:
                    train(sync, model, optimizer, [task(rank)] * 20)
                    if rank == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
                    until = time.monotonic() + 30
                    while sync.members()["size"] != 2 and time.monotonic() < until:
                        train(sync, model, optimizer, [task(rank)])
                    size = sync.members()["size"]
                    train(sync, model, optimizer, [task(rank)] * 400)
                return size, learned(model), model.weight.tolist()
            first, killed, third = together(3, body)
            self.assertIsNone(killed)
            self.assertEqual((first, first[:2]), (third, (2, True)), plan)

    def test_trainers_with_fewer_batches_end_cleanly(self):
        for plan in ("none", "allreduce", "shadow-easgd", "easgd,every=3", "ma,every=4",
                     "bmuf,every=3", "dasgd", "dasgd-delta"):
            def body(rank):
                model, optimizer = made(rank)
                with descant.attach(model, plan=plan) as sync:
                    train(sync, model, optimizer, [task(rank)] * (10 + 15 * rank))
                return sync.stats()["steps"], model.weight.tolist()
            results = together(3, body)
            self.assertEqual([steps for steps, _ in results], [10, 25, 40], plan)
            self.assertEqual(results[0][1], results[1][1], plan)
            self.assertEqual(results[0][1], results[2][1], plan)

    def test_data_loaders_fork(self):
        data = torch.utils.data.TensorDataset(*task(0))

        def body(rank):
            shard = torch.utils.data.DistributedSampler(data, 2, rank)
            loader = torch.utils.data.DataLoader(data, 8, sampler=shard, num_workers=2)
            model, optimizer = made(rank)
            with descant.attach(model) as sync:
                for _ in range(3):
                    train(sync, model, optimizer, loader)
            return sync.stats()["steps"], model.weight.tolist()
        first, second = together(2, body)
        self.assertEqual((first, first[0]), (second, 12))

    def test_readme(self):
        def body(rank):
            return self.run_snippet("README.md", rank, 400)
        self.assertEqual(together(2, body), [(400, True)] * 2)

    def test_saving_and_resuming_as_the_page_says(self):
        with tempfile.TemporaryDirectory() as folder:
            for steps, wanted in ((400, 400), (1, 401)):
                def body(rank):
                    os.chdir(folder)
                    return self.run_snippet("docs/torch.md", rank, steps)
                self.assertEqual(together(2, body), [(wanted, True)] * 2)

    def test_leaving_as_the_page_says(self):
        def body(rank):
            return self.run_snippet("docs/torch.md", rank, 400, nth=1, told_at=200 * rank)
        self.assertEqual(together(2, body), [(400, True), (200, True)])

    def run_snippet(self, page, rank, steps, nth=0, told_at=0):
        snippet = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)[nth]
        model, optimizer = made(rank)

        def batches():
            for k in range(1, steps + 1):
                if k == told_at:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield task(rank)
        said = {"model": model, "optimizer": optimizer, "loader": batches(),
                "loss_of": lambda guess, y: (guess.squeeze(1) - y).square().mean()}
        exec(snippet, said)
        return said["sync"].steps, learned(model)


if __name__ == "__main__":
    unittest.main()
