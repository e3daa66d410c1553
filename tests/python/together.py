# SPDX-License-Identifier: MIT
"""Trainers as forked processes, told who they are as by torchrun. They see no device, or PyTorch's
threads for one would keep a process that has called backward from being forked."""

import itertools
import os
import pickle
import select
import signal
import traceback

import descant

os.environ["CUDA_VISIBLE_DEVICES"] = ""
_numbers = itertools.count()


def _child(write, rank, size, port, body):
    signal.alarm(60)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_PORT=port)
    try:
        result = body(rank)
    except BaseException:
        result = RuntimeError(traceback.format_exc())
    with os.fdopen(write, "wb") as pipe:
        pickle.dump(result, pipe)
    os._exit(0)


def together(size, body, first=False):
    """What body(rank) returned in each of so many processes; None for one that was killed.
    first: whoever has returned first is the last to; the others are killed."""
    port, pipes, pids = f"{os.getpid()}-{next(_numbers)}", [], []
    for rank in range(size):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _child(write, rank, size, port, body)
        os.close(write)
        pipes.append(read)
        pids.append(pid)
    if first:
        returned, _, _ = select.select(pipes, [], [])
        for pid, read in zip(pids, pipes):
            if read != returned[0]:
                os.kill(pid, signal.SIGKILL)
    results = []
    for read in pipes:
        with os.fdopen(read, "rb") as pipe:
            said = pipe.read()
        results.append(pickle.loads(said) if said else None)
    for pid in pids:
        os.waitpid(pid, 0)
    for result in results:
        if isinstance(result, RuntimeError):
            raise result
    return results


def differs(case, model_of, *words):
    """Two trainers with other models: who comes second is told so, in these words. Who came first
    would wait for it to come again."""
    def body(rank):
        return refused(case, lambda: descant.attach(model_of(rank)), *words).status
    case.assertEqual(set(together(2, body, first=True)), {None, "MISMATCH"})


def refused(case, call, *words, kind=(descant.Error, RuntimeError, TypeError, ValueError)):
    """The call fails, and says these words."""
    with case.assertRaises(kind) as caught:
        call()
    for word in words:
        case.assertIn(word, str(caught.exception))
    return caught.exception
