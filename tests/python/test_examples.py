# SPDX-License-Identifier: MIT
"""examples/torch on a tiny size: each --sync gives a last line with figures, and learns."""

import gzip
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import torch
import torch.distributed
import torch.distributed.optim      # once, not in each trainer

FOLDER = pathlib.Path(__file__).parents[2] / "examples/torch"
sys.path.insert(0, str(FOLDER))

import dlrm         # noqa: E402
import gpt          # noqa: E402
import keeping      # noqa: E402
import resnet       # noqa: E402
import stopping     # noqa: E402

SYNCS = ("none", "shadow-easgd", "ddp", "postlocal")


def write_idx(path, shape, values):
    head = struct.pack(">BBBB", 0, 0, 8, len(shape)) + struct.pack(f">{len(shape)}i", *shape)
    path.write_bytes(gzip.compress(head + bytes(values)))


def write_images(folder, name, n):
    """Of class k the k-th row is bright; chance has the rest."""
    labels = torch.arange(n) % 10
    pixels = torch.randint(0, 60, (n, 12, 12), generator=torch.Generator().manual_seed(n))
    pixels[torch.arange(n), labels] += 190
    write_idx(folder / f"{name}-images-idx3-ubyte.gz", (n, 12, 12), pixels.flatten().tolist())
    write_idx(folder / f"{name}-labels-idx1-ubyte.gz", (n,), labels.tolist())


class Examples(unittest.TestCase):
    def run_one(self, main, description, flags, load=lambda _args: (), **settings):
        """The last line of two trainers of the example."""
        with mock.patch.object(sys, "argv", ["example", "--trainers", "2", *flags]):
            args = keeping.arguments(description, **settings)
        with tempfile.TemporaryFile() as said:
            kept = os.dup(1)
            os.dup2(said.fileno(), 1)
            try:
                keeping.launch(main, args, load)
            finally:
                os.dup2(kept, 1)
                os.close(kept)
            said.seek(0)
            return json.loads(said.read().splitlines()[-1])

    def each_sync(self, main, flags, figure, is_good, syncs=SYNCS, **settings):
        for sync in syncs:
            told = self.run_one(main, "", [*flags, "--sync", sync], **settings)
            self.assertEqual((told["sync"], told["trainers"]), (sync, 2))
            self.assertGreater(told["steps_per_s"], 0)
            self.assertTrue(is_good(told[figure]), told)

    def test_stopping(self):
        """All stop after the same epoch, with the same losses."""
        for sync in ("shadow-delta", "dasgd", "ma,every=4", "allreduce", "none"):
            told = self.run_one(stopping.main, "", ["--sync", sync, "--examples", "640"],
                                load=stopping.load, epochs=40, batch=16,
                                rates={"sgd": 0.1, "adamw": 0.01}, more=[("patience", 1)])
            self.assertTrue(told["same"] and told["stopped"], told)
            self.assertLess(told["loss"], 0.69)

    def test_resnet(self):
        with tempfile.TemporaryDirectory() as name:
            write_images(pathlib.Path(name), "train", 160)
            write_images(pathlib.Path(name), "t10k", 40)
            self.each_sync(resnet.main, ["--epochs", "3"], "accuracy", lambda a: a > 0.2,
                           load=resnet.load, epochs=1, batch=8, rates={"sgd": 0.05},
                           more=[("data", name), ("smaller", 1)])

    def test_gpt(self):
        with tempfile.NamedTemporaryFile() as text:
            text.write(b"to be or not to be, that is the question; " * 400)
            text.flush()
            self.each_sync(gpt.main, ["--examples", "200", "--optimizer", "adamw"], "loss",
                           lambda x: x < 4.5, epochs=2, batch=10, rates={"adamw": 0.003},
                           more=[("text", text.name)])

    def test_dlrm(self):
        for owned in "01":
            self.each_sync(dlrm.main, ["--examples", "2000", "--held", "500", "--owned", owned],
                           "loss", lambda x: x < 0.68, epochs=1, batch=50, rates={"sgd": 0.1},
                           more=[("rows", 20), ("owned", 0)],
                           syncs=SYNCS[:2] if owned == "1" else SYNCS)

    def test_all_have_the_same_model_at_the_end(self):
        with tempfile.TemporaryDirectory() as folder:
            def load(args):
                loaded.append(args.rows)
                return [dlrm.clicks(200, args.rows, 1)]

            def main(args, data):
                model = dlrm.DLRM(args.rows)
                kept, _ = keeping.train(args, model, data, dlrm.loss_of)
                torch.save(list(model.parameters()), f"{folder}/{kept.rank}")
            for sync in ("none", "postlocal"):
                loaded = []
                with mock.patch.object(sys, "argv", ["x", "--trainers", "2", "--sync", sync]):
                    keeping.launch(main, keeping.arguments("", epochs=1, batch=20, more=[
                        ("rows", 10)], rates={"sgd": 0.1}), load)
                self.assertEqual(loaded, [10])      # here, not by each trainer
                for mine, theirs in zip(*(torch.load(f"{folder}/{rank}") for rank in "01")):
                    self.assertTrue(torch.equal(mine, theirs), sync)

    def test_by_hand(self):
        done = subprocess.run([sys.executable, FOLDER / "dlrm.py", "--examples", "500", "--held",
                               "100", "--rows", "10", "--sync", "dasgd"], text=True, timeout=300,
                              stdout=subprocess.PIPE)
        self.assertEqual(done.returncode, 0)
        told = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual((told["trainers"], told["steps"]), (1, 3))


if __name__ == "__main__":
    unittest.main()
