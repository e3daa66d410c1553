# SPDX-License-Identifier: MIT
"""An embedding table whose rows have owners (docs/owners.md): each row lies on one rank, and so does
the state of its optimizer.

A batch is the different rows of one call: they are fetched, looked up as a small table, and their
gradient is pushed to the owners when autograd has made it. Memory of the library is read only until
its values are copied, so graphs may be kept for as long as they like."""

import collections
import ctypes
import math
import weakref
from typing import Any, Deque, Dict, Iterator, Optional, Tuple

import torch
from torch import nn

from ._job import Job
from ._library import OPTIMIZERS, WIRES, Owned, library, log

_PIECE = 1 << 24        # bytes of rows that are saved at once, or one row


class _Batch:
    """Rows that were asked for, until their gradient is pushed, or nobody can give one any more: then
    the handle goes to `dropped`. It is collected in any thread, where nothing may be called."""

    def __init__(self, job: Job, table: int, ids: Any, dropped: Deque[Any]):
        self.rows, self.inverse = torch.unique(ids, return_inverse=True)
        self._job, self._handle = job, ctypes.c_void_p()
        rows = self.rows.to(torch.int64).contiguous()
        job.call(library.descant_rows_fetch, table, rows.data_ptr(), rows.numel(),
                 ctypes.byref(self._handle))
        self._drops = weakref.finalize(self, dropped.append, self._handle)
        self._drops.atexit = False

    def values(self, width: int) -> Any:
        block = ctypes.c_void_p()
        self._job.call(library.descant_rows_wait, self._handle, ctypes.byref(block))
        n = self.rows.numel()
        if n == 0:
            return torch.zeros(0, width)
        return torch.frombuffer((ctypes.c_float * (n * width)).from_address(block.value),
                                dtype=torch.float32).reshape(n, width).clone()

    def push(self, gradient: Any, rate: float) -> None:
        if self._drops.detach():
            gradient = gradient.to(torch.float32).contiguous()
            self._job.call(library.descant_rows_push, self._handle, gradient.data_ptr(), rate)


class Embedding(nn.Module):
    """As nn.Embedding, for tables that are too large for one host: attach spreads the rows over the
    ranks that the job begins with. The owners step each row by every gradient at once, with this
    optimizer ("sgd", "adagrad", "rowwise_adagrad", "adam") and the rate `lr`, which may be
    changed at any time; the loop's own optimizer has no part in it. First values are uniform in
    [-spread, spread), the same for any number of ranks. wire: how rows travel ("f32", "bf16", "q8").
    age: seconds for which a rank may use its copies of rows that it often fetches from others (0:
    it keeps none); cached: how many of them it keeps at most (0: as many as 16 MB hold).

    rows=None: the table grows. Rows are named by any numbers of 64 bits, as hashes, and made by
    pushes: each new one with the probability `admit`, so with 1/k by its k-th push in the mean. The
    table takes up to `memory` bytes on each rank (on one machine in all); then rows that are little
    used are evicted, and so are those that were not used for unused_s seconds, if that is not 0."""

    def __init__(self, rows: Optional[int], width: int, *, optimizer: str = "adagrad", lr: float = 0.01,
                 momentum: float = 0.0, betas: Tuple[float, float] = (0.9, 0.999),
                 eps: Optional[float] = None, spread: Optional[float] = None, seed: int = 0,
                 wire: str = "f32", memory: Optional[int] = None, admit: float = 1.0,
                 unused_s: float = 0.0, age: float = 0.0, cached: int = 0):
        super().__init__()
        if optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer={optimizer!r}: one of {', '.join(OPTIMIZERS)}")
        if wire not in WIRES:
            raise ValueError(f"wire={wire!r}: one of {', '.join(WIRES)}")
        if (rows is not None and rows < 1) or width < 1:
            raise ValueError(f"Embedding({rows}, {width}): a table has rows, and rows have floats")
        if rows is None and memory is None:
            raise ValueError(f"Embedding(None, {width}): a table that grows needs memory=BYTES, which "
                             "it may take on each rank")
        if rows is not None and (memory is not None or admit != 1 or unused_s != 0):
            raise ValueError(f"Embedding({rows}, {width}): memory, admit and unused_s are for tables "
                             "that grow, Embedding(None, ...)")
        if not age >= 0 or cached < 0:
            raise ValueError(f"age={age}, cached={cached}: neither is below 0")
        self.rows, self.width, self.lr = rows, width, lr
        self._shape = Owned(rows or 0, width, OPTIMIZERS.index(optimizer), WIRES.index(wire), momentum,
                            *betas,
                            1e-8 if eps is None else eps,
                            1 / math.sqrt(width) if spread is None else spread, seed, 0, age, cached,
                            rows is None, memory or 0, admit, unused_s)
        self._job: Optional[Job] = None
        self._table = ctypes.c_int()
        self._ahead: Deque[Tuple[Any, _Batch]] = collections.deque()
        self._dropped: Deque[Any] = collections.deque()

    def __getstate__(self) -> Dict[str, Any]:
        """A copy, or one that is loaded, has no rows before attach."""
        return {**self.__dict__, "_job": None, "_ahead": collections.deque(),
                "_dropped": collections.deque(), "_table": ctypes.c_int()}

    def extra_repr(self) -> str:
        return f"{self.rows}, {self.width}, lr={self.lr}"

    def _descant_join(self, job: Job, name: str) -> None:
        """attach, before the job starts."""
        if self._job is not None and not self._job.closing:
            raise RuntimeError(f"'{name}' is attached already")
        if self._job is not None:
            log.warning("'%s' begins anew: its rows went with the job that was closed", name)
        job.call(library.descant_owned_table, name.encode(), ctypes.byref(self._shape),
                 ctypes.byref(self._table), what=name)
        self._ahead.clear()
        self._dropped = collections.deque()
        self._job = job

    def _joined(self) -> Job:
        if self._job is None:
            raise RuntimeError("this Embedding has no rows yet: descant.attach gives it some")
        if self._job.closing:
            raise RuntimeError("the job has been closed, and this Embedding's rows with it: call "
                               "saved() before")
        return self._job

    def _batch(self, ids: Any) -> _Batch:
        job = self._joined()
        if ids.is_floating_point() or ids.dtype == torch.bool:
            raise TypeError(f"rows are named by whole numbers, not by {ids.dtype}")
        while self._dropped:
            job.call(library.descant_rows_drop, self._dropped.popleft())
        return _Batch(job, self._table.value, ids.detach().cpu(), self._dropped)

    def prefetch(self, ids: Any) -> None:
        """Asks for the rows of a batch to come, and returns. The forward with the same ids uses
        them; call it some batches ahead, in their order. What was asked for before that batch,
        and not used, is given up then."""
        self._ahead.append((ids.detach().clone(), self._batch(ids)))

    def _next(self, ids: Any) -> _Batch:
        for place, (asked, batch) in enumerate(self._ahead):
            if asked.shape == ids.shape and torch.equal(asked, ids):
                for _ in range(place + 1):
                    self._ahead.popleft()
                return batch
        return self._batch(ids)

    def forward(self, ids: Any) -> Any:
        batch = self._next(ids)
        block = batch.values(self.width)
        if torch.is_grad_enabled() and self.training:
            block.requires_grad_()
            block.register_hook(lambda gradient: batch.push(gradient, float(self.lr)))
        return nn.functional.embedding(batch.inverse, block).to(ids.device)

    # ---------------------------------------------------------------- checkpoints

    def _of(self) -> str:
        shape = self._shape
        momentum = " with momentum" if shape.momentum > 0 else ""
        rows = "any" if shape.grows else shape.rows
        return f"{rows} rows of {shape.width} floats, {OPTIMIZERS[shape.optimizer]}{momentum}"

    def saved(self) -> Iterator[Dict[str, Any]]:
        """The rows that this rank owns and that were ever trained, in pieces: each a dict of
        `rows`, their numbers, and `records`, their values and their optimizer's state. The files
        of all ranks together are a checkpoint; on one machine each trainer gives all rows."""
        job, at, n, floats = self._joined(), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
        job.call(library.descant_owned_floats, self._table.value, ctypes.byref(floats))
        room = max(1, _PIECE // (4 * floats.value))
        while True:
            rows, records = torch.empty(room, dtype=torch.int64), torch.empty(room, floats.value)
            job.call(library.descant_owned_next, self._table.value, ctypes.byref(at), room,
                     rows.data_ptr(), records.data_ptr(), ctypes.byref(n))
            if n.value == 0:
                return
            if n.value < room:
                rows, records = rows[:n.value].clone(), records[:n.value].clone()
            yield {"rows": rows, "records": records, "of": self._of()}

    def load(self, piece: Dict[str, Any]) -> None:
        """Takes what this rank owns of a piece that `saved` gave, on any rank, of any number. Before
        any trainer's first forward or prefetch: what was pushed to a row is overwritten."""
        if not isinstance(piece, dict) or piece.get("of") != self._of():
            of = piece.get("of") if isinstance(piece, dict) else None
            raise ValueError(f"a piece of a table of {of or 'another kind'}; this one has {self._of()}")
        job, floats = self._joined(), ctypes.c_size_t()
        job.call(library.descant_owned_floats, self._table.value, ctypes.byref(floats))
        rows = torch.as_tensor(piece["rows"], dtype=torch.int64).contiguous()
        records = torch.as_tensor(piece["records"], dtype=torch.float32).contiguous()
        if rows.dim() != 1 or records.shape != (rows.numel(), floats.value):
            raise ValueError(f"records of {tuple(records.shape)} for {rows.numel()} rows: a record has "
                             f"{floats.value} floats")
        job.call(library.descant_owned_set, self._table.value, rows.data_ptr(), rows.numel(),
                 records.data_ptr())
