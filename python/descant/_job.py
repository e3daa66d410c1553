# SPDX-License-Identifier: MIT
"""A job of the library and the memory that it has lent to Python.

close unmaps that memory, while any tensor may still look into it: what model.state_dict() gave is
such a one. So a block is a ctypes array, which every tensor over it keeps alive, and the job is
closed when close has been asked for and no block is left."""

import atexit
import ctypes
import os
import weakref
from typing import Any

from ._library import check, failure, library

_open: "weakref.WeakSet[Job]" = weakref.WeakSet()


class Job:
    """handle is None once the job is closed; pid: forked children must leave it alone."""

    def __init__(self, options: Any):
        self.handle = ctypes.c_void_p()
        self.pid = os.getpid()
        self._blocks = 0
        self._closing = False
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

    def attach(self, label: str, address: int, n: int) -> None:
        check(library.descant_attach(self.handle, label.encode(), address, n), label)

    def close(self) -> None:
        self._closing = True
        if self._blocks == 0:
            self.close_now()

    def close_now(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None and os.getpid() == self.pid:
            check(library.descant_close(handle))

    def _gone(self) -> None:
        self._blocks -= 1
        if self._closing and self._blocks == 0:
            self.close_now()


@atexit.register
def _close_all() -> None:
    for job in list(_open):
        job.close_now()
