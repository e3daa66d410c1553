# SPDX-License-Identifier: MIT
"""Hugging Face's Trainer and Accelerate, and Lightning, as two trainers under torchrun: the data are
dealt, DDP is not around the model, rank zero alone logs and saves, and all end with one model."""

import glob
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from test_launchers import environment

SCRIPT = str(pathlib.Path(__file__).with_name("framed.py"))


def needs(package):
    return unittest.skipUnless(importlib.util.find_spec(package), f"{package} is not installed")


class Frameworks(unittest.TestCase):
    def trained(self, kind, plan="shadow-easgd"):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2",
                 "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", SCRIPT, folder, kind, plan],
                text=True, timeout=300, env=environment(ACCELERATE_USE_CPU="true"),
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.said = done.stdout
            self.files = [str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*")]
            return [json.loads(pathlib.Path(path).read_text())
                    for path in sorted(glob.glob(folder + "/*.json"))]

    def work(self, kind, saved):
        for plan in ("shadow-easgd", "allreduce"):
            first, second = self.trained(kind, plan)
            self.assertEqual([(t["rank"], t["size"]) for t in (first, second)], [(0, 2), (1, 2)])
            self.assertEqual((first["steps"], second["steps"]), (16, 16))
            self.assertEqual(first["values"], second["values"])
            self.assertEqual(sorted(set(first["dealt"] + second["dealt"])), list(range(64)))
            self.assertLess(max(len(t["dealt"]) for t in (first, second)), 80)
            self.assertNotIn("DistributedDataParallel keeps", self.said)
            self.assertEqual(len([name for name in self.files if saved in name]), 1, self.files)

    @needs("transformers")
    def test_trainer(self):
        self.work("trainer", "checkpoint-16/model.safetensors")

    @needs("accelerate")
    def test_accelerate(self):
        self.work("accelerate", "saved/model.safetensors")

    @needs("lightning")
    def test_lightning(self):
        self.work("lightning", ".ckpt")
        self.assertEqual(len([name for name in self.files if name.endswith("metrics.csv")]), 1)

    @needs("transformers")
    def test_trainer_after_an_exception(self):
        first, second = self.trained("again")
        self.assertEqual((first["steps"], second["steps"]), (16, 16))
        self.assertEqual(first["values"], second["values"])

    @needs("transformers")
    def test_ddp_beside_descant_is_said(self):
        self.trained("both")
        self.assertIn("DistributedDataParallel keeps this model together as well", self.said)


if __name__ == "__main__":
    unittest.main()
