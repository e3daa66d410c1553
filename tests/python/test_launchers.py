# SPDX-License-Identifier: MIT
"""Two trainers by each launcher, with uneven numbers of batches: torchrun, on one host and on two, a
loop of the shell, mpirun of both MPIs; and one without any."""

import glob
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

import torch

from descant import _library

SCRIPT = str(pathlib.Path(__file__).with_name("launched.py"))
LOOP = ('for r in 0 1; do RANK=$r WORLD_SIZE=2 "$0" "$@" & pids="$pids $!"; done; '
        'for p in $pids; do wait $p || exit 1; done')
PLANS = ("shadow-easgd,gap=1", "ma,every=4")
HAS_CUDA = torch.cuda.is_available()
# two torchruns, as on two hosts; torchrun's port must not be anybody's
NODES = ('for r in 0 1; do "$0" -m torch.distributed.run --nnodes=2 --nproc_per_node=1 --node_rank=$r '
         '--master_addr=127.0.0.1 --master_port=$PORT -r 2 -t 2 "$@" & pids="$pids $!"; done; '
         'for p in $pids; do wait $p || exit 1; done')
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
             "DESCANT_PLAN", "DESCANT_JOB", "DESCANT_TCP")


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


class Launchers(unittest.TestCase):
    def trained(self, plans, *command, **variables):
        """What the trainers wrote down, by rank, of each plan."""
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([*command, SCRIPT, folder, *plans], text=True, timeout=300,
                                  env=environment(**variables), stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.said = done.stdout
            return [json.loads(pathlib.Path(path).read_text())
                    for path in sorted(glob.glob(folder + "/*.json"))]

    def two_by(self, *command, address, **variables):
        shadow, means = zip(*self.trained(PLANS, *command, **variables))
        for told in (shadow, means):
            self.assertEqual([(t["rank"], t["size"], t["steps"]) for t in told],
                             [(0, 2, 40), (1, 2, 70)])
            self.assertEqual(told[0]["weight"], told[1]["weight"], told[0]["plan"])
        self.assertGreaterEqual(means[1]["rounds"], 10)
        self.assertIn(address, self.said)

    def test_torchrun(self):
        # Debian's cannot do without -r and -t: its flags lack their zero under Python 3.11
        self.two_by(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2",
                    "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", "-r", "2", "-t", "2",
                    address="shm:run-")

    def test_torchrun_on_several_hosts(self):
        self.two_by("sh", "-c", NODES, sys.executable, address="tcp:127.0.0.1:", PORT=free_port())

    def test_a_loop_of_the_shell(self):
        self.two_by("sh", "-c", LOOP, sys.executable, address="shm:run-",
                    MASTER_PORT=f"loop-{os.getpid()}")

    def mpirun(self, program, *options):
        module = pathlib.Path(os.path.realpath(_library.path())).parent
        if not shutil.which("mpirun." + program):
            self.skipTest(f"there is no mpirun.{program}")
        if not (module / f"descant-mpi-{program}.so").exists():
            self.skipTest(f"the build has no module for {program}")
        self.two_by("mpirun." + program, *options, "-n", "2", sys.executable, address="mpi")

    def test_openmpi(self):
        self.mpirun("openmpi", "--oversubscribe", "--bind-to", "none", "--allow-run-as-root")

    def test_mpich(self):
        self.mpirun("mpich")

    @unittest.skipUnless(HAS_CUDA, "there is no device")
    def test_on_a_device(self):
        self.two_by("sh", "-c", LOOP, sys.executable, address="shm:run-", DEVICE="cuda",
                    MASTER_PORT=f"device-{os.getpid()}")

    def test_none(self):
        [[told]] = self.trained(["shadow-easgd"], sys.executable)
        self.assertEqual((told["rank"], told["size"], told["steps"]), (0, 1, 40))


if __name__ == "__main__":
    unittest.main()
