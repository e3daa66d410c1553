# SPDX-License-Identifier: MIT
"""Embedding tables whose rows have owners (docs/owners.md): each row lies on one rank, and so does
the state of its optimizer.

A batch is the different rows of one call: they are fetched, looked up as a small table, and their
gradient is pushed to the owners when autograd has made it. Memory of the library is read only until
its values are copied, so graphs may be kept for as long as they like."""

import collections
import ctypes
import math
import operator
import weakref
from typing import Any, Deque, Dict, Iterator, Optional, Tuple

import torch
from torch import nn

from ._job import Job
from ._library import OPTIMIZERS, WIRES, Owned, library, log

_PIECE = 1 << 24        # bytes of rows that are saved at once, or one row
_MOST_ROWS, _WIDEST, _COPIED = 1 << 40, 4096, 8191      # as src/owners has them


class _Batch:
    """Rows that were asked for, until their gradient is pushed, or nobody can give one any more: then
    the handle goes to `dropped`. It is collected in any thread, where nothing may be called.

    places: of each id in the rows. Ids that are `padding` are not asked for, and have the place
    behind the last row."""

    def __init__(self, job: Job, table: int, ids: Any, padding: Optional[int], dropped: Deque[Any]):
        used = slice(None) if padding is None else ids != padding
        self.rows, places = torch.unique(ids[used], return_inverse=True)
        self.places = torch.full(ids.shape, self.rows.numel(), dtype=torch.int64)
        self.places[used] = places
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
    it keeps none); cached: how many of them it keeps at most (0: as many as 16 MB hold). padding_idx:
    an id that stands for no row: it reads as zeros, and is neither fetched nor pushed.

    rows=None: the table grows. Rows are named by any numbers of 64 bits, as hashes, and made by
    pushes: each new one with the probability `admit`, so with 1/k by its k-th push in the mean. The
    table takes up to `memory` bytes on each rank (on one machine in all); then rows that are little
    used are evicted, and so are those that were not used for unused_s seconds, if that is not 0."""

    def __init__(self, rows: Optional[int], width: int, *, optimizer: str = "adagrad", lr: float = 0.01,
                 momentum: float = 0.0, betas: Tuple[float, float] = (0.9, 0.999),
                 eps: Optional[float] = None, spread: Optional[float] = None, seed: int = 0,
                 wire: str = "f32", memory: Optional[int] = None, admit: float = 1.0,
                 unused_s: float = 0.0, age: float = 0.0, cached: int = 0,
                 padding_idx: Optional[int] = None):
        super().__init__()
        rows = None if rows is None else operator.index(rows)
        width = operator.index(width)
        if optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer={optimizer!r}: one of {', '.join(OPTIMIZERS)}")
        if wire not in WIRES:
            raise ValueError(f"wire={wire!r}: one of {', '.join(WIRES)}")
        if (rows is not None and not 1 <= rows <= _MOST_ROWS) or not 1 <= width <= _WIDEST:
            raise ValueError(f"Embedding({rows}, {width}): a table has 1 to 2^40 rows, of 1 to {_WIDEST} "
                             "floats")
        if rows is None and memory is None:
            raise ValueError(f"Embedding(None, {width}): a table that grows needs memory=BYTES, which "
                             "it may take on each rank")
        if rows is not None and (memory is not None or admit != 1 or unused_s != 0):
            raise ValueError(f"Embedding({rows}, {width}): memory, admit and unused_s are for tables "
                             "that grow, Embedding(None, ...)")
        eps = 1e-8 if eps is None else eps
        spread = 1 / math.sqrt(width) if spread is None else spread
        for name, value, good, values in (
                ("momentum", momentum, 0 <= momentum < 1, "from 0 to below 1"),
                ("betas", betas, all(0 <= beta < 1 for beta in betas), "from 0 to below 1"),
                ("eps", eps, 0 <= eps < 1e30, "a number, and not negative"),
                ("spread", spread, 0 <= spread < 1e30, "a number, and not negative"),
                ("seed", seed, 0 <= seed < 1 << 64, "from 0 to below 2^64"),
                ("age", age, 0 <= age <= 1e9, "from 0 to 1e9 seconds"),
                ("cached", cached, 0 <= cached < 1 << 48, "from 0 to below 2^48"),
                ("admit", admit, 0 < admit <= 1, "above 0, and at most 1"),
                ("unused_s", unused_s, 0 <= unused_s <= 1e9, "from 0 to 1e9 seconds"),
                ("memory", memory, memory is None or 0 < memory <= 1 << 50, "from 1 to 2^50 bytes")):
            if not good:
                raise ValueError(f"{name}={value}: it is {values}")
        state = (width if momentum > 0 else 0, width, 1, 2 * width + 1)[OPTIMIZERS.index(optimizer)]
        if age > 0 and width + state > _COPIED:
            raise ValueError(f"age={age}: a row of more than {_COPIED} floats, with its optimizer's "
                             "state, has no copies")
        if padding_idx is not None and rows is not None:
            if not -rows <= padding_idx < rows:
                raise ValueError(f"padding_idx={padding_idx}: there is no such row of {rows}")
            padding_idx %= rows
        self.rows, self.width, self.lr, self.padding_idx = rows, width, lr, padding_idx
        self._shape = Owned(rows or 0, width, OPTIMIZERS.index(optimizer), WIRES.index(wire), momentum,
                            *betas, eps, spread, seed, 0, age, cached, rows is None, memory or 0, admit,
                            unused_s)
        self._job: Optional[Job] = None
        self._table = ctypes.c_int()
        self._ahead: Deque[Tuple[Any, _Batch]] = collections.deque()
        self._dropped: Deque[Any] = collections.deque()

    def __getstate__(self) -> Dict[str, Any]:
        """A copy, or one that is loaded, has no rows before attach."""
        return {**self.__dict__, "_job": None, "_ahead": collections.deque(),
                "_dropped": collections.deque(), "_table": ctypes.c_int()}

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.rows}, {self.width}, lr={self.lr}{padding}"

    def _descant_join(self, job: Job, name: str) -> None:
        """attach, before the job starts. The name is empty where this is the whole model."""
        name = name or "embedding"
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
        return _Batch(job, self._table.value, ids.detach().cpu(), self.padding_idx, self._dropped)

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

    def _looked_up(self, ids: Any) -> Tuple[Any, Any]:
        """The places of these ids in a small table, and the table. With padding its last row is
        zeros, which have no gradient."""
        batch = self._next(ids)
        block = batch.values(self.width)
        if torch.is_grad_enabled() and self.training:
            block.requires_grad_()
            block.register_hook(lambda gradient: batch.push(gradient, float(self.lr)))
        if self.padding_idx is not None:
            block = torch.cat([block, torch.zeros(1, self.width)])
        return batch.places, block

    def forward(self, ids: Any) -> Any:
        return nn.functional.embedding(*self._looked_up(ids)).to(ids.device)

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


class EmbeddingBag(Embedding):
    """As nn.EmbeddingBag: sums or means of rows ("sum", "mean") over bags of ids, with all else as
    Embedding has it. ids are (bags, n), or flat with `offsets`, where each bag begins and, with
    include_last_offset, where the last one ends. per_sample_weights, of the shape of ids, multiply
    the rows of a "sum" and get gradients. Ids that are padding_idx count in no bag."""

    def __init__(self, rows: Optional[int], width: int, *, mode: str = "mean",
                 include_last_offset: bool = False, **more: Any):
        super().__init__(rows, width, **more)
        if mode not in ("sum", "mean"):
            raise ValueError(f"mode={mode!r}: one of sum, mean")
        self.mode, self.include_last_offset = mode, include_last_offset

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode}"

    def forward(self, ids: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        places, block = self._looked_up(ids)
        padding = None if self.padding_idx is None else block.shape[0] - 1
        if offsets is not None:
            offsets = offsets.detach().cpu().to(torch.int64)
        if per_sample_weights is not None:
            per_sample_weights = per_sample_weights.cpu()
        return nn.functional.embedding_bag(
            places, block, offsets, mode=self.mode, per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset, padding_idx=padding).to(ids.device)
