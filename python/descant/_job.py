# SPDX-License-Identifier: MIT
"""A job of the library, and the memory that it has lent to Python.

Any tensor may look into that memory for longer than the job lasts: what model.state_dict() gave is
such a one. So leaving the job leaves the memory where it is, as this process's own, in blocks: a
block is a ctypes array, which every tensor over it keeps alive, and with which it is freed.

A job is left when no call is in it any more: a thread may wait in one, or a call that Ctrl-C has
interrupted. Calls that wait for other trainers are made in a thread, while the main thread sleeps
where Ctrl-C wakes it; nothing can call that thread back, so it leaves the job when its call has
ended, unless the end of the process does.

Blocks end wherever Python collects them, in the library's own threads, too, while these log: there
nothing waits, and nothing is called but descant_free."""

import atexit
import ctypes
import os
import threading
import weakref
from typing import Any, List, Set

from ._library import Error, check, failure, library, log

_open: "Set[Job]" = set()
_blocks: Set[int] = set()       # where those begin that are there


class Job:
    """closing: nobody may call any more; left: so is the job, and the blocks are the process's own.
    pid: forked children must leave it alone. tellers: threads that run the program's functions
    on events, which cannot leave the job, as that waits for them."""

    def __init__(self, options: Any, tellers: Set[int]):
        self.handle = ctypes.c_void_p()
        self._options = options             # has what the library calls
        self.pid = os.getpid()
        self.closing = self.left = False
        self._lenders: List[Any] = []
        self._lock = threading.RLock()      # of the rest; a finaliser may come while it is held
        self._ended_blocks: List[int] = []  # before the job was left
        self._inside: Set[int] = set()      # threads; one whose call Ctrl-C cut short is out again
        self._tellers = tellers
        self._interrupted = False
        _open.add(self)
        try:
            check(library.descant_open(ctypes.byref(self.handle), ctypes.byref(options)))
        except Error:
            _open.discard(self)
            raise

    def alloc(self, label: str, n: int) -> Any:
        """A segment of n floats, zero, as a ctypes array."""
        address = library.descant_alloc(self.handle, label.encode(), n)
        if not address:
            raise failure(7, label)
        block = (ctypes.c_float * n).from_address(address)
        _blocks.add(address)
        weakref.finalize(block, self._block_ends, address).atexit = False
        return block

    def _block_ends(self, address: int) -> None:
        _blocks.discard(address)
        if os.getpid() != self.pid:
            return
        with self._lock:
            if not self.left:
                self._ended_blocks.append(address)
                return
        library.descant_free(address)

    def attach(self, label: str, address: int, n: int, lender: Any) -> None:
        """lender keeps the memory."""
        self.call(library.descant_attach, label.encode(), address, n, what=label)
        self._lenders.append(lender)

    # ---------------------------------------------------------------- calls

    def enter(self) -> Any:
        """For a call of this thread, the handle, which stays until exit."""
        with self._lock:
            if self.closing:
                raise RuntimeError("the job has been closed: call members, waits and "
                                   "state_dict before close; rank, size, steps and stats() "
                                   "also work after it")
            if threading.get_ident() not in self._tellers:      # for which leaving waits itself
                self._inside.add(threading.get_ident())
            return self.handle

    def exit(self) -> None:
        with self._lock:
            if threading.get_ident() in self._tellers:
                return
            self._inside.discard(threading.get_ident())
        self._leave_if_done()

    def call(self, function: Any, *arguments: Any, what: str = "") -> None:
        handle = self.enter()
        try:
            check(function(handle, *arguments), what)
        finally:
            self.exit()

    def wait_for(self, function: Any, *arguments: Any) -> None:
        """A call that waits for other trainers."""
        if self._interrupted:
            raise RuntimeError("a call that waits was interrupted: only close may follow")
        failures: List[Error] = []

        def call() -> None:
            try:
                self.call(function, *arguments)
            except Error as error:
                failures.append(error)
        try:
            _in_a_thread(call)
        except BaseException:           # Ctrl-C, or what a handler of a signal raises
            self._interrupted = True
            raise
        if failures:
            raise failures.pop()        # or it and this frame keep each other

    # ---------------------------------------------------------------- the end

    def close(self) -> None:
        """Leaves the job; over mpi it waits until all ranks have. If another thread's call is in it,
        that one leaves it when it ends."""
        if threading.get_ident() in self._tellers:
            raise RuntimeError("close was called by a function that on_event was given, in the "
                               "thread that close waits for: let that function set a flag or a "
                               "threading.Event, and another thread close the job")
        with self._lock:
            self.closing = True
            self._inside.discard(threading.get_ident())
        _in_a_thread(self._leave_if_done)

    def _leave_if_done(self) -> None:
        if os.getpid() != self.pid:
            return
        with self._lock:
            if not self.closing or self._inside or not self.handle:
                return
            handle, self.handle = self.handle, None
        self._leave(handle)

    def _leave(self, handle: Any) -> None:
        status = library.descant_leave(handle)
        if status != 0:
            log.warning("the job stays open until the process ends: %s", failure(status))
            return
        _open.discard(self)
        with self._lock:
            self.left = True
        for address in self._ended_blocks:
            library.descant_free(address)
        self._lenders.clear()


def is_block(address: int) -> bool:
    """Whether a job has lent the memory that begins there, of which Python alone knows."""
    return address in _blocks


def _in_a_thread(function: Any) -> None:
    """Called there, while the main thread sleeps where Ctrl-C wakes it; elsewhere, and where Python
    makes no threads any more, as it ends, called here."""
    if threading.current_thread() is not threading.main_thread():
        function()
        return
    ended = threading.Event()
    failures: List[BaseException] = []

    def call() -> None:
        try:
            function()
        except BaseException as error:
            failures.append(error)
        ended.set()
    thread = threading.Thread(target=call, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        function()
        return
    ended.wait()
    if failures:
        raise failures.pop()


@atexit.register
def _leave_all() -> None:
    for job in list(_open):
        if job.pid == os.getpid():
            job.closing = True
            job._leave_if_done()
