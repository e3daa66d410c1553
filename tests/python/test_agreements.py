# SPDX-License-Identifier: MIT
"""sync.mean, sync.any, sync.broadcast: small values of all trainers."""

import threading
import unittest

import numpy as np

import descant
from together import refused, together

PLANS = ("shadow-delta", "shadow-easgd", "shadow-ma", "easgd,every=4", "ma,every=4",
         "dasgd,every=4,delay=2", "diloco,every=4", "allreduce", "none")


def attached(plan="shadow-easgd"):
    return descant.attach({"w": np.zeros(50, "f4")}, plan=plan)


class Agreements(unittest.TestCase):
    def test_every_plan(self):
        for plan in PLANS:
            def body(rank):
                with attached(plan) as sync:
                    said = [sync.mean(rank), sync.any(rank == 2), sync.any(False),
                            sync.broadcast({"lr": rank}, from_=1)]
                    for _ in range(8 if plan != "allreduce" else 0):
                        sync.step()
                    return said + [sync.mean([float(rank), 2.0 * rank])]
            wanted = [1.0, True, False, {"lr": 1}, [1.0, 2.0]]
            self.assertEqual(together(3, body), [wanted] * 3, plan)

    def test_values_come_back_in_their_shape(self):
        def body(rank):
            with attached() as sync:
                return (sync.mean(np.full((2, 3), rank, "f4")), sync.mean(np.arange(2) + rank),
                        sync.mean((1, rank)), sync.mean(np.float64(rank)))
        for square, whole, pair, one in together(2, body):
            np.testing.assert_array_equal(square, np.full((2, 3), 0.5, "f4"))
            self.assertEqual(square.dtype, np.float32)
            np.testing.assert_array_equal(whole, [0.5, 1.5])
            self.assertEqual((pair, float(one)), ((1.0, 0.5), 0.5))

    def test_tensors(self):
        try:
            import torch
        except ImportError:
            self.skipTest("there is no torch")

        def body(rank):
            with attached() as sync:
                mean = sync.mean(torch.full((2, 1), float(rank), requires_grad=True))
                return (mean.tolist(), mean.requires_grad, str(mean.dtype),
                        sync.mean(torch.tensor(rank)).item(), sync.any(torch.tensor(rank) > 0))
        self.assertEqual(together(2, body), [([[0.5], [0.5]], False, "torch.float32", 0.5, True)] * 2)

    def test_what_can_be_broadcast(self):
        values = [None, True, 3, -0.5, "ä", [1, ["x"], {}], {"a": {"b": None}}, b"\x00\xff", b"",
                  "x" * 4093]

        def body(rank):
            with attached() as sync:
                return [sync.broadcast(each if rank == 1 else object(), from_=1) for each in values]
        self.assertEqual(together(2, body), [values] * 2)

    def test_what_is_refused(self):
        with attached() as sync:
            refused(self, lambda: sync.mean(np.zeros(513)), "513", "512", kind=ValueError)
            refused(self, lambda: sync.mean([]), "1 to 512", kind=ValueError)
            refused(self, lambda: sync.broadcast("x" * 4094), "4095", kind=ValueError)
            refused(self, lambda: sync.broadcast({1: 2}), "string", kind=TypeError)
            refused(self, lambda: sync.broadcast(object()), kind=TypeError)
            said = refused(self, lambda: sync.broadcast(1, from_=3), "trainer 3")
            self.assertEqual(said.status, "BAD_RANK")
            self.assertEqual(sync.mean(2), 2.0)
            sync.step()
        refused(self, lambda: sync.mean(1), "closed")

    def test_a_giver_that_cannot_give_holds_nobody_up(self):
        def body(rank):
            with attached() as sync:
                text = "x" * 4094 if rank == 1 else None
                refused(self, lambda: sync.broadcast(text, from_=1), "409",
                        kind=ValueError if rank == 1 else descant.Error)
                return sync.broadcast(rank, from_=1)
        self.assertEqual(together(2, body), [1, 1])

    def test_calls_that_differ_fail_for_all(self):
        def body(rank):
            with attached() as sync:
                said = refused(self, lambda: sync.any(True) if rank else sync.mean(1.0),
                               "trainer 0 asks for a mean", "trainer 1 for any").status
                sync.step()
                return said, sync.mean(rank)
        self.assertEqual(together(2, body), [("MISMATCH", 0.5)] * 2)

    def test_who_finishes_is_not_waited_for(self):
        def body(rank):
            with attached() as sync:
                sync.step()
                stops = rank == 0
                return None if stops else [sync.mean(float(rank)) for _ in range(3)][-1]
        self.assertEqual(together(3, body), [None, 1.5, 1.5])

    def test_steps_of_other_threads_go_on(self):
        """Under a shadow plan a worker steps while another thread waits in an agreement."""
        def body(rank):
            w = np.zeros(50, "f4")
            with descant.attach([("w", w)], plan="shadow-ma", workers=2) as sync:
                stop, steps = threading.Event(), []

                def work():
                    while not stop.is_set():
                        w[:] += 0.01
                        sync.step()
                        steps.append(1)
                        stop.wait(0.0005)
                    sync.worker_done()
                worker = threading.Thread(target=work)
                worker.start()
                if rank == 1:
                    stop.wait(0.3)
                before = len(steps)
                mean = sync.mean(rank)
                made = len(steps) - before
                stop.set()
                worker.join()
                return mean, made, sync.stats()["stall_ns"]
        (mean, made, stall), (other, _, other_stall) = together(2, body)
        self.assertEqual((mean, other, stall, other_stall), (0.5, 0.5, 0, 0))
        self.assertGreater(made, 20)


if __name__ == "__main__":
    unittest.main()
