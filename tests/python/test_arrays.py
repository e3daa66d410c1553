# SPDX-License-Identifier: MIT
"""The package with NumPy alone: known values from real processes, and what is refused."""

import gc
import importlib.metadata
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import unittest
import weakref
from unittest import mock

import numpy as np

import descant
from descant import _job, _library
from together import differs, refused, together

ROOT = pathlib.Path(__file__).parents[2]
HEADER = (ROOT / "include/descant.h").read_text()


def struct(name):
    """Names and C types of a struct of descant.h, in order."""
    body = re.search(r"struct %s \{(.*?)\n\};" % name, HEADER, re.S).group(1)
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.S).replace("enum descant_event_kind", "int")
    for kind, names in re.findall(r"((?:const )?\w+) (\*?[\w, *]+);", body):
        for each in names.split(","):
            yield each.strip().lstrip("*"), kind + ("*" if "*" in names else "")


class Interface(unittest.TestCase):
    KINDS = {"uint64_t": "c_ulong", "double": "c_double", "int": "c_int", "uint32_t": "c_uint",
             "const char*": "c_char_p", "void*": "c_void_p", "descant_log*": "CFunctionType",
             "descant_on_event*": "CFunctionType", "size_t": "c_ulong"}

    def test_structs_are_those_of_the_header(self):
        for name, mine in (("descant_options", _library.Options), ("descant_stats", _library.Stats),
                           ("descant_members", _library.Members), ("descant_peer", _library.Peer)):
            wanted = [(field, self.KINDS[kind]) for field, kind in struct(name)]
            self.assertEqual(wanted, [(field, kind.__name__) for field, kind in mine._fields_
                                      if not hasattr(kind, "_length_")])
        self.assertIn(f"DESCANT_VALUES = {_library.VALUES} ", HEADER)

    def test_events_are_those_of_the_header(self):
        names = re.findall(r"    DESCANT_EVENT_(\w+),? ", HEADER)
        self.assertEqual(tuple(name.lower() for name in names), _library.EVENTS)

    def test_statuses_are_those_of_the_header(self):
        names = re.findall(r"    X\((\w+), ", HEADER)
        self.assertEqual(tuple(names), _library.STATUSES)

    def test_plans_are_those_of_the_page(self):
        rows = re.findall(r"^\| `([\w-]+)` \| `(when=[^`]*)` \| (.*) \|$",
                          (ROOT / "docs/plans.md").read_text(), re.M)
        self.assertEqual({name: tuple(row) for name, *row in rows}, descant.plans())

    def test_info_tells_the_version_and_the_library(self):
        version = re.search(r'DESCANT_VERSION "(.*)"', HEADER).group(1)
        self.assertEqual(descant.info()["version"], version)
        self.assertTrue(os.path.exists(descant.info()["library"]))
        self.assertEqual(descant.info()["numpy"], np.__version__)
        folder = pathlib.Path(descant.info()["library"]).parent
        self.assertEqual(descant.info()["mpi"], [name for name in ("mpich", "openmpi")
                                                 if (folder / f"descant-mpi-{name}.so").exists()])
        self.assertEqual(descant.info()["tls"], (folder / "descant-tls.so").exists())

    def test_info_tells_what_is_installed_and_not_imported(self):
        with mock.patch.object(importlib.metadata, "version", lambda name: "7"):
            with mock.patch.dict(sys.modules, numpy=None):
                self.assertEqual(descant.info()["numpy"], "7")

    def test_help_names_what_there_is(self):
        for name in _library.STATUSES[1:]:
            self.assertRegex(descant.Error.__doc__, rf"\b{name}\b")
        with descant.attach(np.zeros(3), job="self") as sync:
            for name in sync.stats():
                if not name.startswith("rows_"):
                    self.assertRegex(sync.stats.__doc__, rf"\b{name}\b")
        self.assertNotIn("descant.h", descant.attach.__doc__ + sync.stats.__doc__)


class Values(unittest.TestCase):
    def test_two_processes_have_the_mean_after_each_step(self):
        def body(rank):
            w = np.full((3, 5), 100.0 * (rank + 1), np.float32)
            seen = []
            with descant.attach({"w": w}, plan="ma,every=1") as sync:
                for _ in range(10):
                    w += rank + 1
                    sync.step()
                    seen.append(w.copy())
                self.assertEqual((sync.rank, sync.size), (rank, 2))
            self.assertEqual(sync.stats()["rounds"], 10)
            return np.array(seen)
        wanted = 100 + 1.5 * np.arange(1, 11)
        for seen in together(2, body):
            np.testing.assert_array_equal(seen, wanted[:, None, None] + np.zeros((3, 5)))

    def test_other_types_and_layouts_have_it_too(self):
        def body(rank):
            gaps = np.zeros((4, 6), np.float32)
            arrays = {"double": np.zeros(7), "half": np.zeros(9, np.float16), "gaps": gaps[:, ::2],
                      "turned": np.zeros((2, 3), np.float32).T, "empty": np.zeros((0, 3)),
                      "scalar": np.zeros((), np.float32)}
            with descant.attach(arrays, plan="ma,every=1") as sync:
                for _ in range(4):
                    for array in arrays.values():
                        array += 1 + 2 * rank
                    sync.step()
            self.assertTrue((gaps[:, 1::2] == 0).all())
            return arrays
        for arrays in together(2, body):
            for name, array in arrays.items():
                self.assertTrue((array == 8).all(), name)
            self.assertEqual(arrays["double"].dtype, np.float64)

    def test_a_half_keeps_what_it_cannot_show(self):
        half = np.ones(3, np.float16)
        with descant.attach(half, plan="ma,every=1", job="self") as sync:
            sync._segments[0]._mirror += 2.0 ** -13     # as a round would have
            for _ in range(8):
                sync.step()
            self.assertTrue((half == 1).all())
            sync._segments[0]._mirror += 7 * 2.0 ** -13
            sync.step()
            self.assertTrue((half == 1 + 2.0 ** -10).all())

    def test_copies_are_made_where_rounds_are(self):
        for plan, wanted in (("none", []), ("ma,every=4", [4, 8, 12]),
                             ("dasgd-delta,every=5,delay=2", [2, 5, 7, 10, 12]),
                             ("shadow-ma", list(range(1, 13)))):
            half = np.zeros(3, np.float16)
            with descant.attach(half, plan=plan, job="self") as sync:
                mirror, steps = sync._segments[0], []
                push = mirror.push
                mirror.push = lambda: (steps.append(k), push())
                for k in range(1, 13):
                    half += 1
                    sync.step()
                self.assertEqual(steps, wanted, plan)
            self.assertTrue((half == 12).all(), plan)

    def test_the_mean_of_gradients(self):
        def body(rank):
            g = np.arange(4, dtype=np.float32) * (rank + 1)
            with descant.attach(np.zeros(4, np.float32), plan="allreduce") as sync:
                refused(self, sync.step, "sync.mean_gradients()", "optimizer.step()")
                sync.mean_(g)
                fixed = np.frombuffer(bytes(16), "f4")
                for other in (np.zeros(4), np.zeros((4, 4), "f4")[:, 1], fixed, [1.0, 2.0]):
                    refused(self, lambda: sync.mean_(other), "float32")
            return g
        for g in together(2, body):
            np.testing.assert_array_equal(g, 1.5 * np.arange(4))

    def test_finals(self):
        for final, wanted in (("mean", 2.0), ("local", 1.0), (None, 1.0)):
            def body(rank):
                w = np.zeros(5, np.float32)
                with descant.attach([("w", w)], plan="none", final=final) as sync:
                    w += 1 + 2 * rank
                    sync.step()
                return w
            for w in together(2, body):
                self.assertTrue((w == wanted).all(), (final, w))

    def test_threads_wait_for_each_other_with_the_lock_free(self):
        w = np.zeros(10, np.float32)
        failures = []

        def work(sync):
            try:
                for _ in range(50):
                    sync.step()
                sync.worker_done()
            except BaseException as error:
                failures.append(error)
        with descant.attach([w], plan="ma,every=1", job="self", workers=2) as sync:
            threads = [threading.Thread(target=work, args=(sync,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual((failures, sync.steps), ([], 100))


class Peers(unittest.TestCase):
    def test_all_of_a_machine_know_all(self):
        def body(rank):
            with descant.attach(np.zeros(3, "f4"), plan="shadow-ma") as sync:
                sync.show(10 + rank, 0.5)
                sync.step()
                until = time.monotonic() + 30
                peers = sync.peers()
                while [p["values"] for p in peers] != [[10, 0.5], [11, 0.5]]:
                    self.assertLess(time.monotonic(), until, peers)
                    peers = sync.peers()
                sync.any(False)                 # nobody leaves before the other has looked
                self.assertEqual(peers[rank]["heard_s"], 0)
                return [(p["rank"], p["steps"], p["last"], p["workers"], p["host"]) for p in peers]
        for known in together(2, body):
            self.assertEqual(known, [(k, 1, "joined", 1, "") for k in range(2)])

    def test_one_alone_knows_itself(self):
        with descant.attach(np.zeros(3, "f4"), job="self") as sync:
            self.assertEqual([(p["rank"], p["values"]) for p in sync.peers()], [(0, [])])
            sync.show(*range(16))
            self.assertEqual(sync.peers()[0]["values"], list(range(16)))
            with self.assertRaisesRegex(descant.Error, "16 at most"):
                sync.show(*range(17))
            sync.show()
            self.assertEqual(sync.peers()[0]["values"], [])


class Events(unittest.TestCase):
    def test_a_death_is_told_and_logged_and_who_listens_may_fail(self):
        def body(rank):
            heard, lost = [], threading.Event()
            with self.assertLogs("descant", "WARNING") as said:
                with descant.attach(np.zeros(3, "f4"), plan="shadow-ma") as sync:
                    @sync.on_event
                    def hear(event):
                        heard.append((event.kind, event.rank, event.members,
                                      sync.members()["size"]))
                        if event.kind == "lost":
                            lost.set()
                        raise ZeroDivisionError
                    if rank == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
                    sync.step()
                    self.assertTrue(lost.wait(30))
            return heard, "\n".join(said.output)
        told, killed = together(2, body)
        self.assertIsNone(killed)
        heard, said = told
        self.assertIn(("lost", 1, 1, 1), heard)
        self.assertIn("WARNING:descant:rank 0: trainer 1 has died", said)
        self.assertIn("on_event", said)

    def test_who_comes_is_shown_unless_the_program_has_set_up_logging(self):
        for setup, shown in (("", True), ("logging.basicConfig(level=20)", True),
                             ("logging.basicConfig()", False), ("logging.disable()", False),
                             ("logging.getLogger('descant').setLevel(30)", False)):
            said = subprocess.run(
                [sys.executable, "-c", "import logging\n%s\nfrom descant import _library\n"
                 "_library.say(None, 1, b'one has come')\n_library.say(None, 0, b'a detail')\n"
                 % setup], stderr=subprocess.PIPE, text=True, check=True).stderr
            self.assertEqual("one has come" in said, shown, setup)
            self.assertNotIn("a detail", said)

    def test_one_that_is_left_out_and_one_that_does_not_finish(self):
        def body(rank):
            heard, bad = [], threading.Event()
            weights = np.zeros(3, "f4")
            sync = descant.attach(weights, plan="ma,every=1")

            @sync.on_event
            def hear(event):
                heard.append((event.kind, event.rank))
                bad.set() if event.kind == "bad" else None
                return True
            weights[0] = float("nan") if rank else 1
            with mock.patch.object(_library.log, "log") as logged:
                sync.step()
                self.assertTrue(bad.wait(30))
                sync.close()
            lines = [call.args[2] for call in logged.call_args_list]
            return heard, [line for line in lines if "NaN" in line or "ends without" in line]
        for rank, (heard, lines) in enumerate(together(2, body)):
            self.assertIn(("bad", 1), heard)
            self.assertIn(("unfinished", rank), heard)
            self.assertEqual(lines, [])

    def heard(self, do):
        """One of two trainers hears that the other has left, and does that; then it closes."""
        def body(rank):
            done, failures = threading.Event(), []
            sync = descant.attach(np.zeros(3, "f4"), plan="shadow-ma")
            if rank == 0:
                @sync.on_event
                def hear(event):
                    if event[:2] == ("unfinished", 1):
                        try:
                            do(sync, done)
                        except BaseException as error:
                            failures.append(repr(error))
                        done.set()
                sync.step()
                self.assertTrue(done.wait(30))
            sync.close()
            return sync._job.left, failures
        self.assertEqual(together(2, body), 2 * [(True, [])])

    def test_close_by_a_function_on_events_is_refused(self):
        self.heard(lambda sync, done: refused(self, sync.close, "on_event", "another thread",
                                              kind=RuntimeError))

    def test_close_during_a_call_of_a_function_on_events(self):
        def call(sync, done):
            sync._job.enter()           # as members does
            done.set()
            while not sync._job.closing:
                time.sleep(0.001)
            sync._job.exit()
        self.heard(call)


class Memory(unittest.TestCase):
    def test_what_was_lent_stays_until_close(self):
        w = np.zeros(1000, "f4")
        kept, before = weakref.ref(w), set(_job._open)
        descant.attach(w, job="self")
        del w
        self.assertIsNotNone(kept())
        [job] = _job._open - before
        job.close()
        self.assertIsNone(kept())
        self.assertEqual(_job._open, before)

    def test_the_last_of_the_threads_leaves(self):
        """Each call that has begun has its job, and what comes after close is refused."""
        for _ in range(20):
            w, ends = np.zeros(1000, "f4"), []

            def work(sync):
                try:
                    while True:
                        sync.step()
                except RuntimeError as error:
                    ends.append(str(error))
            sync = descant.attach(w, job=f"shm:threads-{os.getpid()}", size=1, workers=3)
            threads = [threading.Thread(target=work, args=(sync,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            while sync.stats()["steps"] < 100:
                pass
            sync.close()
            for thread in threads:
                thread.join()
            self.assertEqual({"closed" in end for end in ends}, {True}, ends)
            self.assertTrue(sync._job.left)

    def test_a_thread_that_waits_keeps_the_job(self):
        def body(rank):
            w = np.zeros(1000, "f4")
            sync = descant.attach(w, plan="ma,every=1", workers=2)
            if rank == 0:
                while sync.members()["size"] == 2:      # until it is dead
                    time.sleep(0.01)
                sync.step()
                sync.close()
                return sync._job.left
            threading.Thread(target=sync.step, daemon=True).start()
            while "trainer 0" not in sync.waits():
                time.sleep(0.001)
            sync.close()
            w += 1
            refused(self, sync.step, "closed")
            return sync._job.left
        self.assertEqual(together(2, body), [True, False])

    def test_a_failed_attach_keeps_nothing(self):
        w = np.zeros(1000, "f4")
        kept = weakref.ref(w)
        gc.disable()
        try:
            descant.attach(w, job=f"shm:failed-{os.getpid()}", rank=0, size=2, start_s=0.1)
        except descant.Error:
            del w
        self.assertIsNone(kept())
        gc.enable()

    def test_a_field_of_packed_records(self):
        records = np.zeros(4, [("kind", "u1"), ("x", "f4")])
        records["kind"] = 7

        def body(rank):
            records["x"] = 2 * rank
            with descant.attach({"x": records["x"]}, plan="ma,every=1") as sync:
                records["x"] += 2 * rank
                sync.step()
            return records["kind"].tolist(), records["x"].tolist()
        self.assertEqual(together(2, body), [([7] * 4, [1.0] * 4)] * 2)


class Refusals(unittest.TestCase):
    def alone(self, model, **options):
        return lambda: descant.attach(model, job="self", **options)

    def test_what_cannot_be_is_said(self):
        w = np.zeros(3, np.float32)
        fixed = w.copy()
        fixed.flags.writeable = False
        self.assertEqual(refused(self, self.alone(w, plan="dasgd,delay=9"), "delay=9").status,
                         "BAD_PLAN")
        refused(self, self.alone(w, plan="nonsense"), "nonsense")
        refused(self, self.alone(w, workers=0), "workers 0")
        refused(self, self.alone(w, final="best"), "best")
        refused(self, self.alone(w, buffers="all"), "all")
        refused(self, self.alone(w, buffers="mean", final="central"), "central")
        refused(self, self.alone(w, buffers="mean"), "buffers", "module")
        for plan in ("shadow-ma", "none", "allreduce", "ma,every=2"):
            refused(self, self.alone(w, plan=plan, final="central"), "central", plan)
        for plan in ("shadow-ma,what=elastic", "easgd", "diloco"):
            self.alone(w, plan=plan, final="central")().close()
        refused(self, self.alone({"ids": np.arange(3)}), "'ids'", "int64")
        refused(self, self.alone({"w": fixed}), "'w'", "written")
        refused(self, self.alone([w, 1.0]), "'1'", "float")
        refused(self, self.alone({"a b": w}), "a b", "white space")
        refused(self, self.alone({"a": w, "b": w[:2]}), "'b'", "'a'")
        refused(self, self.alone({"h": np.zeros(2, "f2")}, workers=2), "'h'", "one worker")
        refused(self, self.alone([]), "nothing to keep in step")
        refused(self, lambda: descant.attach(w, job="tcp:x"), "tcp:x")
        alone = refused(self, lambda: descant.attach(w, job=f"shm:t{os.getpid()}", size=2,
                                                     start_s=0.1))
        self.assertEqual(alone.status, "TIMEOUT")

    def test_an_error_travels_to_another_process(self):
        error = refused(self, self.alone(np.zeros(3, "f4"), plan="dasgd,delay=9"), "delay=9")
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(again), str(again), again.status),
                         (descant.Error, str(error), "BAD_PLAN"))

    def test_a_part_of_another_is_said(self):
        w = np.zeros((4, 4), "f4")
        for other in (w[2:], w[:, 1], w[1], w[::-1][:2]):
            refused(self, lambda: descant.attach([other, w], job="self"), "'0'", "'1'", "a part")
        descant.attach([w[:2], w[2:], w[:2]], job="self").close()

    def test_gaps_may_hold_others(self):
        w = np.zeros((4, 8), "f4")
        descant.attach([w[:, :5], w[2, 5:], w[:2, 6], w[3, ::-1][1:3]], job="self").close()
        for other in (w[:, ::2], w[::3, 3:6], w[:, 6::-4], w.view("f8")[:, 2]):
            refused(self, lambda: descant.attach([w[:, 4:7], other], job="self"), "'0'", "'1'",
                    "a part")

    def test_models_that_differ_are_told_by_name(self):
        differs(self, lambda rank: {"same": np.zeros(4, "f4"),
                                    "fc.weight": np.zeros((3, 2) if rank else (2, 3), "f4")},
                "fc.weight[2x3]", "fc.weight[3x2]")

    def test_a_second_job_is_not_the_first_one(self):
        def body(rank):
            if rank:        # what did not start is no job
                refused(self, lambda: descant.attach(np.zeros(4), workers=2), "one worker")
            first, second = np.full(4, rank + 1, "f4"), np.full(7, 10 + rank, "f4")
            one = descant.attach(first, plan="ma,every=1")
            one.finish()
            with descant.attach(second, plan="ma,every=1"):     # the first is still open
                pass
            one.close()
            return [*set(first.tolist()), *set(second.tolist())]
        self.assertEqual(together(2, body), [[1.0, 10.0]] * 2)

    def test_a_forked_child_has_no_job(self):
        with descant.attach(np.zeros(4, "f4"), job="self") as sync:
            sync.step()

            def body(_rank):
                error = refused(self, sync.step, "parent")
                sync.close()
                return error.status
            self.assertEqual(together(1, body), ["FORKED"])
            sync.step()
            self.assertEqual(sync.steps, 2)

    def test_after_the_end(self):
        with descant.attach(np.zeros(4, "f4"), job="self") as sync:
            sync.step()
        sync.close()
        sync.finish()
        self.assertEqual(sync.stats()["steps"], 1)
        refused(self, sync.step, "has been closed", "before close")

    def test_an_exception_leaves_without_finish(self):
        def body(rank):
            w = np.zeros(4, "f4")
            try:
                with descant.attach(w, plan="ma,every=1") as sync:
                    for step in range(6):
                        w += 1 + rank
                        sync.step()
                        if rank and step == 1:
                            raise KeyError("mine")
            except KeyError:
                return "left"
            return float(w[0])
        first, second = together(2, body)
        self.assertEqual((first, second), (7.0, "left"))    # 1.5 twice, then 1 alone


    def test_one_is_told_and_parts(self):
        def body(rank):
            w, events = np.zeros(4, "f4"), []
            with descant.attach(w, plan="ma,every=1") as sync:
                sync.on_event(lambda event: events.append((event.kind, event.rank)))
                for step in range(6):
                    w += 1 + rank
                    if rank and step == 2:              # what no step has counted is in no round
                        sync.tell()
                        return sync.part(20), float(w[0])
                    sync.step()
            return events, float(w[0])
        first, second = together(2, body)
        self.assertEqual(second, (True, second[1]))
        self.assertEqual(first[1], 7.0)                 # 1.5 twice, then 1 alone
        self.assertIn(("told", 1), first[0])
        self.assertFalse({"unfinished", "lost"} & {kind for kind, _ in first[0]})


class Checkpoints(unittest.TestCase):
    def state_after(self, n, load=None, plan="bmuf,every=1,momentum=0.5"):
        w = np.zeros(4, "f4")
        with descant.attach(w, plan=plan, job="self") as sync:
            if load:
                sync.load_state_dict(load)
            for _ in range(n):
                w += 1
                sync.step()
            return sync.state_dict()

    def test_outer_state_and_steps_are_taken_up(self):
        state = self.state_after(3)
        self.assertEqual(state["steps"], 3)
        again = self.state_after(0, state)
        self.assertEqual((again["steps"], again["outer"]), (3, state["outer"]))
        self.assertNotEqual(self.state_after(0)["outer"], state["outer"])
        self.assertEqual(self.state_after(2, self.state_after(1, plan="none"), "none")["steps"], 3)

    def test_the_last_one_is_saved_after_finish(self):
        for plan in ("bmuf,every=1,momentum=0.5", "shadow-easgd", "none"):
            w = np.zeros(4, "f4")
            with descant.attach(w, plan=plan, job="self") as sync:
                for _ in range(3):
                    w += 1
                    sync.step()
                before = sync.state_dict() if plan == "bmuf,every=1,momentum=0.5" else None
                sync.finish()
                finished = sync.state_dict()
            refused(self, sync.state_dict, "closed")
            self.assertEqual((finished["steps"], finished["plan"]), (3, plan))
            self.assertEqual(finished, before or finished)
            self.assertEqual(self.state_after(0, finished, plan)["steps"], 3)

    def test_one_pause_for_all_that_is_loaded(self):
        state = self.state_after(3)
        w = np.zeros(4, "f4")
        with descant.attach(w, plan="bmuf,every=1,momentum=0.5", job="self") as sync:
            with sync.paused():
                w[...] = 7
                with sync.paused():
                    sync.load_state_dict(state)
                refused(self, sync.step, "paused")
            sync.step()
            self.assertEqual((w.tolist(), sync.steps), ([7] * 4, 4))
            self.assertEqual(sync.state_dict()["outer"], state["outer"])
            self.assertRaises(KeyError, self.fail_in_a_pause, sync)
            refused(self, lambda: sync.paused().__enter__(), "paused")
            sync._finished = True

    def fail_in_a_pause(self, sync):
        with sync.paused():
            raise KeyError("mine")

    def test_without_rounds_a_pause_is_nothing(self):
        w, half = np.zeros(4, "f4"), np.zeros(4, "f2")
        with descant.attach([w, half], plan="none", job="self") as sync:
            sync.step()
            with sync.paused():
                w[...] = half[...] = 5
            sync.step()
        self.assertTrue((w == 5).all() and (half == 5).all())

    def test_a_damaged_or_foreign_one_is_refused(self):
        state = self.state_after(3)
        torn = dict(state, outer=state["outer"][:-1])
        self.assertEqual(refused(self, lambda: self.state_after(0, torn)).status, "CORRUPT")
        refused(self, lambda: self.state_after(0, state, "easgd"), "vectors")

    def test_all_take_what_was_written_in_a_pause(self):
        def body(rank):
            w = np.zeros(4, np.float16)
            with descant.attach(w, plan="ma,every=1") as sync:
                sync.step()
                if rank:
                    with sync.paused():
                        w[...] = 40
                for _ in range(2):
                    sync.step()
                return w
        for w in together(2, body):
            self.assertTrue((w == 40).all())


if __name__ == "__main__":
    unittest.main()
