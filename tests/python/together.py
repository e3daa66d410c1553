# SPDX-License-Identifier: MIT
"""Trainers as forked processes, told who they are as by torchrun. They see no device, or PyTorch's
threads for one would keep a process that has called backward from being forked."""

import itertools
import os
import pickle
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


def together(size, body):
    """What body(rank) returned in each of so many processes; None for one that was killed."""
    port, pipes, pids = f"{os.getpid()}-{next(_numbers)}", [], []
    for rank in range(size):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _child(write, rank, size, port, body)
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
    """Two trainers with different models: both are told so, in these words."""
    def body(rank):
        return refused(case, lambda: descant.attach(model_of(rank)), *words).status
    case.assertEqual(together(2, body), ["MISMATCH"] * 2)


def refused(case, call, *words, kind=(descant.Error, RuntimeError, TypeError, ValueError)):
    """The call fails, and says these words."""
    with case.assertRaises(kind) as caught:
        call()
    for word in words:
        case.assertIn(word, str(caught.exception))
    return caught.exception
