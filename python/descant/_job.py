# SPDX-License-Identifier: MIT
"""A job of the library and the memory that it has lent to Python.

close unmaps that memory, while any tensor may still look into it: what model.state_dict() gave is
such a one. So a block is a ctypes array, which every tensor over it keeps alive, and the job is
closed when close has been asked for, no block is left and no call waits. Until then it stays open,
and keeps what it was lent: a shadow writes into that, also when the caller has forgotten both.

A call that waits for other trainers is made in a thread: the main thread sleeps where Ctrl-C wakes
it. Nothing can call the waiting thread back, so the job is closed when its call has ended, or by
the end of the process."""

import atexit
import ctypes
import os
import threading
import weakref
from typing import Any, List, Set

from ._library import Error, check, failure, library

_open: "Set[Job]" = set()


class Job:
    """handle is None once the job is closed; pid: forked children must leave it alone."""

    def __init__(self, options: Any):
        self.handle = ctypes.c_void_p()
        self.pid = os.getpid()
        self._lenders: List[Any] = []
        self._blocks = 0            # these three under _lock: any thread may drop the last block
        self._closing = False
        self._waiting = False
        self._lock = threading.RLock()
        check(library.descant_open(ctypes.byref(self.handle), ctypes.byref(options)))
        _open.add(self)

    def alloc(self, label: str, n: int) -> Any:
        """A segment of n floats, zero, as a ctypes array."""
        address = library.descant_alloc(self.handle, label.encode(), n)
        if not address:
            raise failure(7, label)
        block = (ctypes.c_float * n).from_address(address)
        self._blocks += 1
        weakref.finalize(block, self._gone).atexit = False
        return block

    def attach(self, label: str, address: int, n: int, lender: Any) -> None:
        """lender keeps the memory."""
        check(library.descant_attach(self.handle, label.encode(), address, n), label)
        self._lenders.append(lender)

    def wait_for(self, function: Any, *arguments: Any) -> None:
        """A call that waits for other trainers."""
        if self._waiting:
            raise RuntimeError("a call that was interrupted still waits: only close may follow")
        if threading.current_thread() is not threading.main_thread():
            check(function(self.handle, *arguments))
            return
        ended = threading.Event()
        failures: List[Error] = []
        self._waiting = True
        threading.Thread(target=self._call, args=(ended, failures, function, arguments),
                         daemon=True).start()
        ended.wait()
        if failures:
            raise failures.pop()        # or it and this frame keep each other

    def _call(self, ended: threading.Event, failures: List[Error], function: Any,
              arguments: Any) -> None:
        status = function(self.handle, *arguments)
        if status != 0:
            failures.append(failure(status))
        with self._lock:
            self._waiting = False
            self._close_if_done()
        ended.set()

    def close(self) -> None:
        with self._lock:
            self._closing = True
            self._close_if_done()

    def _gone(self) -> None:
        with self._lock:
            self._blocks -= 1
            self._close_if_done()

    def _close_if_done(self) -> None:
        if self._closing and self._blocks == 0 and not self._waiting:
            self.close_now()

    def close_now(self) -> None:
        handle, self.handle = self.handle, None
        _open.discard(self)
        if handle is not None and os.getpid() == self.pid:
            check(library.descant_close(handle))
        self._lenders.clear()


@atexit.register
def _close_all() -> None:
    for job in list(_open):
        if not job._waiting:
            job.close_now()
