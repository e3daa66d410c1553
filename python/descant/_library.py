# SPDX-License-Identifier: MIT
"""libdescant.so by ctypes: its structs, its calls, its failures as exceptions, its log as logging.

Calls go through CDLL, which gives the GIL up for each: a call may wait for other trainers, and the
library's threads log through Python. (With the GIL held, a logging shadow, which has the library's
log lock and wants the GIL, and a failing call, which has it and wants the lock, would stand.)"""

import ctypes
import logging
import os
from typing import Any, Dict, Optional, Tuple

log = logging.getLogger("descant")

STATUSES = ("OK", "INVALID", "BAD_PLAN", "BAD_ADDRESS", "BAD_RANK", "BAD_SIZE", "MISMATCH",
            "MEMORY", "SYSTEM", "ORDER", "FORKED", "TIMEOUT", "UNSUPPORTED", "DUPLICATE",
            "CORRUPT", "STALE", "NOT_FINITE", "ENDED")
# an error is an exception of the call that failed, or of the next one
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.INFO)
_INFO = 1
_LOG = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
_U64, _F64, _INT = ctypes.c_uint64, ctypes.c_double, ctypes.c_int


class Error(RuntimeError):
    """What the library refused, in its words. status tells the kind:

    BAD_PLAN, BAD_ADDRESS, BAD_RANK, BAD_SIZE, INVALID    an argument of attach is not right
    MISMATCH       the trainers' models, plans or finals differ
    TIMEOUT        other trainers did not come within start_s
    ORDER          the call came too early or too late: a step in a pause, or after finish
    FORKED         a forked child called; the job is its parent's
    UNSUPPORTED    the plan or this machine does not allow it
    CORRUPT        a saved state is damaged, or of another model
    MEMORY, SYSTEM the machine has no memory, or refused something else
    DUPLICATE, STALE, NOT_FINITE, ENDED    are of other interfaces of the library"""

    def __init__(self, message: str, status: str):
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> Any:
        return type(self), (self.args[0], self.status)


class Event(ctypes.Structure):
    """kind counts from JOINED, 0, as descant.h has them."""
    _fields_ = [("kind", _INT), ("rank", _INT), ("members", _INT), ("count", _U64),
                ("text", ctypes.c_char_p)]


EVENTS = ("joined", "left", "lost", "bad", "no_round", "unfinished", "broken", "told",
          "finished")
ON_EVENT = ctypes.CFUNCTYPE(_INT, ctypes.c_void_p, ctypes.POINTER(Event))


class Options(ctypes.Structure):
    _fields_ = [("job", ctypes.c_char_p), ("plan", ctypes.c_char_p), ("rank", _INT),
                ("size", _INT), ("workers", _INT), ("sync_cpu", _F64), ("sync_rate", _F64),
                ("start_s", _F64), ("log", _LOG), ("log_user", ctypes.c_void_p),
                ("on_event", ON_EVENT), ("event_user", ctypes.c_void_p), ("hub", _INT),
                ("owned", _INT), ("owned_shares", ctypes.c_char_p),
                ("owned_moves", _INT), ("owned_replica_s", _F64)]


WIRES = ("f32", "bf16", "q8")           # of rows with owners, from 0
OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam")      # of rows with owners, from 0


class Owned(ctypes.Structure):
    _fields_ = [("rows", _U64), ("width", ctypes.c_size_t), ("optimizer", _INT), ("wire", _INT),
                ("momentum", _F64), ("beta1", _F64), ("beta2", _F64), ("epsilon", _F64),
                ("spread", _F64), ("seed", _U64), ("zeros", ctypes.c_size_t), ("age", _F64),
                ("cached", ctypes.c_size_t), ("grows", _INT), ("memory", _U64), ("admit", _F64),
                ("unused_s", _F64)]


class Members(ctypes.Structure):
    _fields_ = [("rank", _INT), ("size", _INT), ("epoch", ctypes.c_uint32), ("host", _INT),
                ("hosts", _INT), ("local_rank", _INT), ("late", _INT)]


class Stats(ctypes.Structure):
    _fields_ = [(name, _U64) for name in ("steps", "rounds", "restarts", "bad", "bytes", "stall_ns",
                                          "copy_ns", "gap_max")] + \
               [(name, _F64) for name in ("gap_mean", "gap_p50", "gap_p99", "gap_per_worker",
                                          "age_steps", "age_s", "exchange_p50_s", "exchange_p99_s",
                                          "shadow_cpu_s", "wall_s", "budget", "distance")] + \
               [(name, _U64) for name in ("rows_rounds", "rows_sent", "rows_bad", "rows_bytes",
                                          "rows_waiting")] + \
               [(name, _F64) for name in ("rows_age_s", "outer_rate", "outer_momentum",
                                          "outer_cosine")] + \
               [(name, _U64) for name in ("missed", "merged", "rows_fetched", "rows_pushed",
                                          "rows_cached", "rows_served", "rows_stall_ns")] + \
               [("rows_cpu_s", _F64)] + \
               [(name, _U64) for name in ("rows_moved", "rows_live", "rows_evicted", "rows_refused")]


VALUES = 16                     # DESCANT_VALUES


class Peer(ctypes.Structure):
    _fields_ = [("rank", _INT), ("workers", _INT), ("last", _INT), ("host", ctypes.c_char_p),
                ("heard_s", _F64), ("steps", _U64), ("rounds", _U64), ("bytes", _U64),
                ("stall_ns", _U64), ("gap_mean", _F64), ("age_s", _F64), ("exchange_p99_s", _F64),
                ("distance", _F64), ("wall_s", _F64), ("n_values", ctypes.c_size_t),
                ("values", _F64 * VALUES)]


@_LOG
def say(_user: Any, level: int, line: bytes) -> None:
    """A program that has not set up logging sees warnings by Python's last resort; who comes and
    leaves is shown by it, too."""
    text, resort = line.decode(errors="replace"), logging.lastResort
    as_it_comes = not (log.hasHandlers() or log.level) and logging.root.level == logging.WARNING
    if level == _INFO and as_it_comes and resort and log.isEnabledFor(logging.WARNING):
        resort.handle(log.makeRecord(log.name, logging.INFO, "", 0, "%s", (text,), None))
    else:
        log.log(_LEVELS[level], "%s", text)


def path() -> str:
    """What DESCANT_LIBRARY names, else the library beside this file, else the system's."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libdescant.so.0")
    return os.environ.get("DESCANT_LIBRARY") or (
        beside if os.path.exists(beside) else "libdescant.so.0")


def loaded() -> str:
    """The file that path has led to: the system may have looked for it."""
    with open("/proc/self/maps") as maps:
        files = [line.split(maxsplit=5)[-1].strip() for line in maps]
    return next((name for name in files
                 if os.path.basename(name).startswith("libdescant.so")), path())


def _load() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(path())
    except OSError as error:
        raise ImportError(f"libdescant cannot be loaded: {error}. 'pip install' of the source's "
                          "python/ builds it beside this file; else DESCANT_LIBRARY=PATH tells "
                          "where it is") from error
    job, size = ctypes.c_void_p, ctypes.c_size_t
    p_job, p_size = ctypes.POINTER(job), ctypes.POINTER(size)
    for name, result, arguments in (
            ("options_default", Options, []),
            ("open", _INT, [p_job, ctypes.POINTER(Options)]),
            ("alloc", ctypes.c_void_p, [job, ctypes.c_char_p, size]),
            ("attach", _INT, [job, ctypes.c_char_p, ctypes.c_void_p, size]),
            ("start", _INT, [job]), ("step", _INT, [job]), ("pause", _INT, [job]),
            ("reload", _INT, [job]), ("worker_done", _INT, [job]), ("leave", _INT, [job]),
            ("free", _INT, [ctypes.c_void_p]),
            ("mean", _INT, [job, ctypes.c_void_p, size]),
            ("agree_mean", _INT, [job, ctypes.POINTER(_F64), size]),
            ("agree_any", _INT, [job, ctypes.POINTER(_INT)]),
            ("agree_broadcast", _INT, [job, ctypes.c_void_p, size, p_size, _INT]),
            ("fold", _INT, [ctypes.c_void_p, p_size, size, ctypes.c_void_p, ctypes.c_void_p]),
            ("owned_table", _INT, [job, ctypes.c_char_p, ctypes.POINTER(Owned),
                                   ctypes.POINTER(_INT)]),
            ("rows_fetch", _INT, [job, _INT, ctypes.c_void_p, size, p_job]),
            ("rows_wait", _INT, [job, ctypes.c_void_p, p_job]),
            ("rows_push", _INT, [job, ctypes.c_void_p, ctypes.c_void_p, _F64]),
            ("rows_drop", _INT, [job, ctypes.c_void_p]),
            ("owned_floats", _INT, [job, _INT, p_size]),
            ("owned_next", _INT, [job, _INT, ctypes.POINTER(_U64), size, ctypes.c_void_p,
                                  ctypes.c_void_p, p_size]),
            ("owned_set", _INT, [job, _INT, ctypes.c_void_p, size, ctypes.c_void_p]),
            ("owned_hold", _INT, [job, _INT]),
            ("finish", _INT, [job, _INT]),
            ("tell", _INT, [job]), ("part", _INT, [job, _F64]),
            ("outer_save", _INT, [job, ctypes.c_void_p, p_size]),
            ("outer_load", _INT, [job, ctypes.c_void_p, size]),
            ("members", _INT, [job, ctypes.POINTER(Members)]),
            ("stats", _INT, [job, ctypes.POINTER(Stats)]),
            ("show", _INT, [job, ctypes.POINTER(_F64), size]),
            ("peers", _INT, [job, ctypes.POINTER(Peer), size, p_size]),
            ("waits", size, [job, ctypes.c_char_p, size]),
            ("plans", size, [ctypes.c_char_p, size]),
            ("last_error", ctypes.c_char_p, []), ("version", ctypes.c_char_p, [])):
        function = getattr(library, "descant_" + name)
        function.restype, function.argtypes = result, arguments
    return library


library = _load()


def failure(status: int, what: str = "") -> Error:
    message = library.descant_last_error().decode(errors="replace")
    return Error(f"{what}: {message}" if what else message, STATUSES[status])


def check(status: int, what: str = "") -> None:
    if status != 0:
        raise failure(status, what)


def presets() -> Dict[str, Tuple[str, str]]:
    """Of each preset what it changes, and what it was published as."""
    room = ctypes.create_string_buffer(library.descant_plans(None, 0) + 1)
    library.descant_plans(room, len(room))
    rows = (line.split("\t") for line in room.value.decode().splitlines())
    return {name: (changes, published) for name, changes, published in rows}


def settings(plan: str) -> Dict[str, str]:
    """The keys of a plan, with those of its preset; what is wrong with it, open says."""
    name, _, changes = plan.replace(" ", "").partition(",")
    preset = presets().get(name, (name, ""))[0]
    return dict(each.split("=", 1) for each in (preset + "," + changes).split(",") if "=" in each)


def text(name: str, value: Optional[str]) -> Optional[bytes]:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name}={value!r}: a string is wanted, or None")
    return None if value is None else value.encode()
