# SPDX-License-Identifier: MIT
"""Ctrl-C while attach or finish wait for other trainers ends the wait, and the others go on."""

import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import numpy as np

import descant
from together import refused, together

ALONE = """
import signal, sys, numpy, descant
signal.signal(signal.SIGINT, signal.default_int_handler)
w = numpy.ones(1000, "f4")
print("waits", flush=True)
try:
    descant.attach(w, job="shm:%s", rank=0, size=2, start_s=120)
except KeyboardInterrupt:
    w += 1
    print("interrupted", w.sum(), flush=True)
"""


class Interrupts(unittest.TestCase):
    def test_attach(self):
        with subprocess.Popen([sys.executable, "-c", ALONE % f"alone-{os.getpid()}"],
                              stdout=subprocess.PIPE, text=True) as process:
            self.assertEqual(process.stdout.readline(), "waits\n")
            time.sleep(1)       # till it waits; else this shows nothing, and passes
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=30)
            self.assertEqual((said, process.returncode), ("interrupted 2000.0\n", 0))

    def test_finish(self):
        pid_read, pid_write = os.pipe()

        def body(rank):
            w = np.zeros(10, "f4")
            if rank:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                try:
                    with descant.attach(w, plan="ma,every=1") as sync:
                        os.write(pid_write, os.getpid().to_bytes(8, "little"))
                    return "finished"
                except KeyboardInterrupt:
                    w += 1
                    return "interrupted"
            with descant.attach(w, plan="ma,every=1") as sync:
                other = int.from_bytes(os.read(pid_read, 8), "little")
                until = time.monotonic() + 30
                while sync.members()["size"] == 2 and time.monotonic() < until:
                    time.sleep(0.1)         # so that it is in finish, which leaves the rounds
                os.kill(other, signal.SIGINT)
                for _ in range(5):
                    sync.step()
            return "finished"
        self.assertEqual(together(2, body), ["finished", "interrupted"])

    def test_only_close_may_follow(self):
        go = threading.Event()

        def waits(handle):
            os.kill(os.getpid(), signal.SIGINT)
            return int(not go.wait(30))
        kept = signal.signal(signal.SIGINT, signal.default_int_handler)
        sync = descant.attach(np.zeros(3, "f4"), job="self")
        self.assertRaises(KeyboardInterrupt, sync._job.wait_for, waits)
        signal.signal(signal.SIGINT, kept)
        refused(self, sync.finish, "interrupted", "close")
        sync.close()
        self.assertIsNotNone(sync._job.handle)
        go.set()
        until = time.monotonic() + 30
        while sync._job.handle and time.monotonic() < until:
            time.sleep(0.01)
        self.assertIsNone(sync._job.handle)


if __name__ == "__main__":
    unittest.main()
