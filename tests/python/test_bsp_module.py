# SPDX-License-Identifier: MIT
"""The ML module in PyTorch of examples/bsp, run by descant bsp run: it learns what no line can, and
what it has learned is a state_dict."""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

import torch

PROGRAM = os.path.join(os.path.dirname(os.environ["DESCANT_LIBRARY"]), "descant")
EXAMPLE = os.path.join("examples", "bsp", "torch_module.py")


def read(path):
    """The tensors of a safetensors file."""
    with open(path, "rb") as file:
        raw = file.read()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    out = {}
    for name, tensor in header.items():
        first, last = tensor["data_offsets"]
        data = torch.frombuffer(bytearray(raw[8 + size + first:8 + size + last]), dtype=torch.float32)
        out[name] = data.reshape(tensor["shape"])
    return out


def network():
    return torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def accuracy(state):
    net = network()
    net.load_state_dict(state)
    x = torch.rand(4000, 20, generator=torch.Generator().manual_seed(99)) * 2 - 1
    with torch.no_grad():
        return ((net(x) > 0) == (x[:, :1] * x[:, 1:2] > 0)).float().mean().item()


@unittest.skipUnless(os.access(PROGRAM, os.X_OK), "the program is built without training")
class Example(unittest.TestCase):
    def test_it_learns(self):
        with tempfile.TemporaryDirectory() as folder:
            begin, trained = folder + "/begin.safetensors", folder + "/trained.safetensors"
            subprocess.run([sys.executable, EXAMPLE, "--begin", begin], check=True)
            self.assertLess(accuracy(read(begin)), 0.6)
            run = subprocess.run(
                [PROGRAM, "bsp", "run", "--quiet", "--name", f"torch-{os.getpid()}", "--modules", "2",
                 "--model", begin, "--optimizer", "adam", "--lr", "0.02", "--period", "2ms",
                 "--min-gradients", "2", "--supersteps", "1500", "--checkpoint", trained, "--",
                 sys.executable, EXAMPLE],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
            self.assertEqual(run.returncode, 0, run.stdout)
            state = {k: v for k, v in read(trained).items() if not k.startswith("descant.")}
            self.assertGreater(accuracy(state), 0.75, run.stdout)


if __name__ == "__main__":
    unittest.main()
