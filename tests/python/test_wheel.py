# SPDX-License-Identifier: MIT
"""README's two lines, as who installs the package runs them: pip builds the wheel and puts it into a
virtual environment, which has nothing of this repository's paths; torchrun starts a script there."""

import importlib.metadata
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LIBRARY = pathlib.Path(os.environ["DESCANT_LIBRARY"]).absolute()
HAS_TORCH = importlib.util.find_spec("torch") is not None
OURS = ("DESCANT_", "PYTHON", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "PIP_REQUIRE")

SCRIPT = """
import torch, descant
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 4)
loader = [(x, x.sum(1))] * 100
loss_of = lambda guess, y: (guess.squeeze(1) - y).square().mean()
%s
assert (model.weight - 1).abs().max() < 0.1, model.weight
open("trainer-%%d-of-%%d" %% (sync.rank, sync.size), "w").close()
"""

INSTALLED = """
import descant_ml, os, sys
try:
    descant_ml.attach("not-there", wait_s=0)
except descant_ml.Error as error:
    assert "not-there" in str(error), error
import descant
assert descant.__file__.startswith(sys.prefix) and descant_ml.__file__.startswith(sys.prefix)
assert descant.info()["library"].startswith(os.path.realpath(sys.prefix)), descant.info()
print(*descant.info()["mpi"], descant.info()["tls"])
"""


class Wheel(unittest.TestCase):
    def setUp(self):
        try:
            import ensurepip
        except ImportError:
            self.skip(f"{sys.executable} has no ensurepip")
        del ensurepip
        self.folder = pathlib.Path(self.entered(tempfile.TemporaryDirectory()))
        self.home = self.folder / "venv"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        self.variables = {**kept, "PATH": f"{self.home}/bin:{kept['PATH']}", "OMP_NUM_THREADS": "1",
                          "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        subprocess.run([sys.executable, "-m", "venv", self.home], check=True)

    def skip(self, reason):
        print("skipped:", reason)
        self.skipTest(reason)

    def entered(self, context):
        self.addCleanup(context.__exit__, None, None, None)
        return context.__enter__()

    def run_line(self, line, cwd, **variables):
        return subprocess.run(["sh", "-c", line], cwd=cwd, text=True, timeout=600,
                              env={**self.variables, **variables}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)

    def said(self, line, cwd, **variables):
        done = self.run_line(line, cwd, **variables)
        self.assertEqual(done.returncode, 0, f"{line}\n{done.stdout}")
        return done.stdout

    def repository(self):
        """As a clone, but with the libraries of this build, so that make has nothing to do."""
        clone = self.folder / "clone"
        shutil.copytree(ROOT / "python", clone / "python",
                        ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
        for name in ("Makefile", "LICENSE", "src", "include", "tools"):
            (clone / name).symlink_to(ROOT / name)
        (clone / "built").symlink_to(LIBRARY.parent)
        return clone

    def line_of(self, name):
        """README's, without its comment."""
        lines = [line for line in re.findall(r"^    (\S.*?)(?:\s+#.*)?$", README, re.M)
                 if line.startswith(name)]
        self.assertEqual(len(lines), 1, lines)
        return lines[0]

    def show_the_outer_packages(self):
        """After pip: PyTorch and NumPy are not installed once more, but found where they are."""
        specs = [importlib.util.find_spec(name) for name in ("numpy", "torch")]
        packages = {str(pathlib.Path(spec.origin).parents[1]) for spec in specs if spec}
        [site] = self.home.glob("lib/python*/site-packages")
        (site / "outer.pth").write_text("\n".join(packages) + "\n")

    def torchrun(self, line):
        """As pip would install it; PyTorch 1.13 knows no hyphens."""
        program = self.home / "bin/torchrun"
        program.write_text(f"#!{self.home}/bin/python\nfrom torch.distributed.run import main\n"
                           "main()\n")
        program.chmod(0o755)
        if importlib.metadata.version("torch").startswith("1."):
            line = line.replace("nproc-per-node", "nproc_per_node")
        return line

    def need_what_builds(self):
        can_fetch = self.run_line("pip download -q --no-deps -d fetched 'setuptools>=61' wheel",
                                  self.folder)
        if can_fetch.returncode:
            self.skip(f"pip cannot fetch what builds a wheel: {can_fetch.stdout[-300:]}")

    def test_source_distribution(self):
        """Alone, without the repository, it makes a wheel, compiling the library."""
        self.need_what_builds()
        self.said("pip install -q 'setuptools>=61' wheel && python -c 'from setuptools import "
                  f"build_meta as b; b.build_sdist(\"{self.folder}\")'", self.repository() / "python")
        shutil.rmtree(self.folder / "clone")
        self.said("pip install --no-build-isolation ./descant-*.tar.gz", self.folder, CFLAGS="-O0 -g0",
                  MAKEFLAGS="KERNEL_FLAGS=-O0")
        self.show_the_outer_packages()
        (self.folder / "installed.py").write_text(INSTALLED)
        self.said("python installed.py", self.folder)

    def test_readme(self):
        self.need_what_builds()
        self.said(self.line_of("pip install"), self.repository(), DESCANT_BUILD="built")
        self.show_the_outer_packages()
        modules = sorted(path.name[len("descant-mpi-"):-len(".so")]
                         for path in LIBRARY.parent.glob("descant-mpi-*.so"))
        (self.folder / "installed.py").write_text(INSTALLED)
        tls = (LIBRARY.parent / "descant-tls.so").exists()
        self.assertEqual(self.said("python installed.py", self.folder).split(), [*modules, str(tls)])
        if not HAS_TORCH:
            return
        [snippet] = re.findall(r"```python\n(.*?)```", README, re.S)
        (self.folder / "train.py").write_text(SCRIPT % snippet)
        line = self.torchrun(self.line_of("torchrun"))
        # a port of its own; Debian's flags lack their zero under Python 3.11
        self.said(line, self.folder, PET_RDZV_BACKEND="c10d", PET_REDIRECTS="2", PET_TEE="2",
                  PET_RDZV_ENDPOINT="localhost:0")
        self.assertEqual(sorted(path.name for path in self.folder.glob("trainer-*")),
                         ["trainer-0-of-2", "trainer-1-of-2"])


if __name__ == "__main__":
    unittest.main()
