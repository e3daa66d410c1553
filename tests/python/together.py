# SPDX-License-Identifier: MIT
"""Trainers as forked processes, told who they are as by torchrun."""

import itertools
import os
import pickle
import signal
import traceback

import descant

_numbers = itertools.count()
earlier = []        # in a trainer: the processes of those of lower rank


def _child(write, rank, size, port, body, pids):
    signal.alarm(60)
    earlier[:] = pids
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_PORT=port)
    try:
        result = body(rank)
    except BaseException:
        result = RuntimeError(traceback.format_exc())
    with os.fdopen(write, "wb") as pipe:
        pickle.dump(result, pipe)
    os._exit(0)


def together(size, body):
    """What body(rank) returned in each of so many processes; None for one that was killed."""
    port, pipes, pids = f"{os.getpid()}-{next(_numbers)}", [], []
    for rank in range(size):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _child(write, rank, size, port, body, pids)
        os.close(write)
        pipes.append(read)
        pids.append(pid)
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
    """Two trainers with other models: the second one is told so, in these words."""
    def body(rank):
        error = refused(case, lambda: descant.attach(model_of(rank)), *words)
        os.kill(earlier[0], signal.SIGKILL)     # it would wait for the second one to come again
        return error.status
    case.assertEqual(together(2, body), [None, "MISMATCH"])


def refused(case, call, *words, kind=(descant.Error, RuntimeError, TypeError, ValueError)):
    """The call fails, and says these words."""
    with case.assertRaises(kind) as caught:
        call()
    for word in words:
        case.assertIn(word, str(caught.exception))
    return caught.exception
