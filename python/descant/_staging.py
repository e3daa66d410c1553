# SPDX-License-Identifier: MIT
"""Tensors that the library cannot use where they are: on a device, of other types than float32, or
with gaps. Each has a segment of floats beside it, its mirror, and shows what that has:

    gather      v = tensor + rest, of all tensors of a device in one vector there; rest is what a
                half-precision tensor cannot show
    down        that vector to pinned memory of the host, by a stream of its own
    fold        mirror += v - shown: what training did goes in; shown = mirror; and v becomes
                shown - v, what the library has merged meanwhile (descant_fold)
    up          that, to the device
    give        tensor, rest = the float32 of tensor + rest + that, in two parts

Under shadow plans a step never waits: `turn` begins an exchange when none is under way, and gives
what one has brought that has ended. Down, fold and up are a thread's, while training goes on between
gather and give, which is why an increment is given. An exchange begins no sooner than that thread may
work again: it has the share of a core that the library's shadow has. Nor sooner than gather and give,
which the training loop's own thread launches, are OF_LOOP of its time. Where a round belongs to one
step, `push` before it waits, and so does `pull` after a step that merges, and the mirror is given as
it is: all trainers then have the same bits. To a tensor of doubles the difference is given, so that it keeps what floats
cannot show; only what others began with, and what all end with, is the mirror itself. So is a mirror
given that the library has healed, of a tensor with NaN or Inf: nothing can be added to those.

Training's stream, the one that is current where a step is called, runs gather and give; the lane's
own stream the copies, ordered after the gather, and before the give, which waits for the thread.
While an exchange is under way its vectors, _well and each tensor's sick and moves are the thread's;
else they are the caller's: Lane.busy and Lane.wait order the two. On the CPU nothing moves, host and
device are one vector, and the caller does it all."""

import ctypes
import math
import os
import time
from typing import Any, Callable, List, Optional, Sequence, Tuple

from ._job import Job
from ._library import library, log

PART = 4 << 20      # floats of one copy: training's own copies, as of a loss, get in between two
OF_LOOP = 0.01      # of the training loop's time, that it may launch gathers and gives


def floats(n: int, **more: Any) -> Any:
    """n zeros of float32, whatever the program's default type and device are."""
    import torch
    return torch.zeros(n, dtype=torch.float32, **{"device": "cpu", **more})


def _each(name: str, pairs: Sequence[Tuple[Any, Any]], **more: Any) -> None:
    """target.name(source) of each pair: by few kernels, where this PyTorch can do that, and in one
    call, without the GIL."""
    import torch
    together = getattr(torch, f"_foreach_{name}", None)
    if together is not None and pairs:
        together(*map(list, zip(*pairs)), **more)
        return
    for target, source in pairs:
        getattr(target, name)(source, **more)


class Lane:
    """The way between a device and the host; one exchange at a time. spent: seconds of CPU that the
    last one took of its thread."""

    spent = 0.0

    def __init__(self, device: Any):
        import torch
        self._device = device
        self._exchange: Any = None      # a future
        self._pid = os.getpid()
        self._cuda = torch.cuda if device.type == "cuda" else None
        if self._cuda:
            import concurrent.futures
            self._stream = self._cuda.Stream(device)
            self._event = self._cuda.Event(blocking=True)       # a wait for it sleeps
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "descant-lane")

    def host(self, flat: Any) -> Any:
        """Memory of the host for as much as flat, of the device, has."""
        if self._device.type == "cpu":
            return flat
        return floats(flat.numel(), pin_memory=self._cuda is not None)

    def check(self) -> None:
        if self._cuda and self._cuda.is_current_stream_capturing():
            raise RuntimeError("sync.step() is being captured into a CUDA graph, which would exchange "
                               "nothing when it is replayed: call it after the replay")

    def uses(self, flat: Any) -> None:
        """Training's stream of now, which may be another than flat was made in, is going to: flat's
        memory is not given away before that is done."""
        if self._cuda:
            flat.record_stream(self._cuda.current_stream(self._device))

    def copy(self, target: Any, source: Any) -> None:
        """After what training's stream was given; returns when target can be used."""
        self._follow()
        self._carry(target, source)

    def start(self, flat: Any, host: Any, fold: Callable[[], None]) -> None:
        """host gets flat, fold is called, and flat gets host: by the thread."""
        self._follow()
        if self._cuda:
            self._exchange = self._thread.submit(self._exchanges, flat, host, fold)
        else:
            self._exchanges(flat, host, fold)

    def _follow(self) -> None:
        if self._cuda:
            self._stream.wait_stream(self._cuda.current_stream(self._device))

    def _exchanges(self, flat: Any, host: Any, fold: Callable[[], None]) -> None:
        began = time.thread_time()
        self._carry(host, flat)
        fold()
        self._carry(flat, host)
        if self._cuda:
            self.spent = time.thread_time() - began

    def _carry(self, target: Any, source: Any) -> None:
        if not self._cuda:
            if target is not source:
                target.copy_(source)
            return
        with self._cuda.stream(self._stream):
            _each("copy_", list(zip(target.split(PART), source.split(PART))), non_blocking=True)
            self._event.record()
        self._event.synchronize()

    @property
    def has_thread(self) -> bool:
        return self._cuda is not None

    def busy(self) -> bool:
        return self._exchange is not None and not self._exchange.done()

    def wait(self) -> None:
        """For the exchange that is under way. What it failed with is raised."""
        if self._exchange is not None:
            self._exchange.exception()      # Ctrl-C may end this wait, and then it is still under way
            exchange, self._exchange = self._exchange, None
            exchange.result()

    def stop(self) -> None:
        """Nothing is written any more. A forked child has no such thread."""
        try:
            if os.getpid() == self._pid:
                self.wait()
        except Exception as error:      # of a device that has failed
            log.warning("an exchange with %s has failed: %s", self._device, error)


class Staged:
    """One tensor; find gives it, or None as long as it is not there (an optimizer's state comes
    with its first step), when it shows nothing, and counts as zero. shows: whether it was there when
    its values were gathered. mirror, shown, host: of the host; flat, rest: of the device. sick: it
    has NaN or Inf, which the library knows of; it gets the mirror as it is, once that is healed.
    moves: of doubles, is given what to add. strides: the order in which the floats of all vectors
    lie, that of the tensor if it has no gaps: PyTorch then copies many tensors by one kernel."""

    address: Optional[int] = None
    sick = moves = shows = False

    def __init__(self, job: Job, name: str, label: str, like: Any, strides: Sequence[int],
                 find: Callable[[], Any]):
        import torch
        self.name = name
        self.n, self.shape, self.device = like.numel(), like.shape, like.device
        self._strides = strides
        self.is_double = like.dtype == torch.float64
        self.is_half = like.element_size() < 4
        self._find = find
        self.mirror = torch.frombuffer(job.alloc(label, self.n), dtype=torch.float32)

    @property
    def tensor(self) -> Any:
        return self._find()

    def look(self, flat: Any) -> Any:
        """At its part of a vector of the device, in the tensor's shape."""
        return flat.as_strided(self.shape, self._strides, flat.storage_offset())

    def stays_bad(self) -> bool:
        import torch
        return not bool((torch.isfinite(self.shown) | torch.isfinite(self.host)).all())

    def add_progress(self, sick: bool) -> None:
        """Where something has NaN or Inf. If they are new, the mirror gets them, and the library
        leaves this trainer out; sick: it knows, and may have healed the mirror."""
        import torch
        good = torch.isfinite(self.host)
        self.sick = sick and not bool(good.all())
        moved = self.mirror + self.host - self.shown
        self.mirror.copy_(torch.where(
            good, torch.where(torch.isfinite(self.shown), moved, self.host),
            self.mirror if sick else moved))

    def tie(self, tensor: Any) -> bool:
        """Another tensor begins in this one's memory; false where it has another part of it."""
        return tensor.numel() == self.n

    def release(self, _left: bool) -> None:
        self.mirror = self.flat = self.rest = self.host = self.shown = None


class Stage:
    """All tensors of one device. share: of a core, that the lane's thread may use."""

    of_loop = OF_LOOP

    def __init__(self, staged: List[Staged], lane: Optional[Lane] = None,
                 share: Callable[[], float] = lambda: 1.0):
        self.staged = staged
        self._lane = lane or Lane(staged[0].device)
        self._share, self._not_before = share, 0.0
        self._launching = self._launched = 0.0      # seconds: this gather, the last gather and give
        sizes = [each.n for each in staged]
        self._flat = floats(sum(sizes), device=staged[0].device)
        self._host = self._lane.host(self._flat)
        self._shown = floats(sum(sizes))
        self._rest = floats(sum(sizes), device=staged[0].device) \
            if any(each.is_half for each in staged) else None
        rests = self._rest.split(sizes) if self._rest is not None else [None] * len(staged)
        for each, flat, rest, *of_host in zip(staged, self._flat.split(sizes), rests,
                                              self._host.split(sizes), self._shown.split(sizes)):
            each.flat = each.look(flat)
            each.rest = None if rest is None else each.look(rest)
            each.host, each.shown = of_host
        self._segments = (ctypes.c_void_p * len(sizes))()
        self._sizes = (ctypes.c_size_t * len(sizes))(*sizes)
        self._under_way = False     # what lane.start was given has not been given back
        self._well = True           # what is shown is finite

    # ---------------------------------------------------------------- training's stream

    def _gather(self) -> None:
        import torch
        self._lane.uses(self._flat)
        there = []
        for k, each in enumerate(self.staged):
            tensor = each.tensor
            if each.shows != (tensor is not None):
                each.shows = not each.shows
                self._segments[k] = each.mirror.data_ptr() if each.shows else None
            if each.shows:
                there.append((each.flat, tensor))
        with torch.no_grad():
            if len(there) < len(self.staged):
                self._flat.zero_()
            _each("copy_", there)
            if self._rest is not None:
                self._flat.add_(self._rest)

    def _give(self, whole: bool) -> None:
        """flat has the new values, or what is to be added to them. Of halves the sums are made there,
        and then what these cannot show."""
        import torch
        self._lane.uses(self._flat)
        new, added, sums, halves = [], [], [], []
        for each in self.staged:
            tensor = each.tensor
            if tensor is None:
                continue
            data, is_new = tensor.data, (whole and not each.moves) or each.sick
            if each.is_half:
                halves.append((each, data))
                if is_new:
                    each.rest.zero_()
                else:
                    sums.append((each.flat, data))
            else:
                (new if is_new else added).append((data, each.flat))
        with torch.no_grad():
            if self._rest is not None:
                self._flat.add_(self._rest)
            _each("add_", added)
            _each("add_", sums)
            _each("copy_", new)
            if halves:
                _each("copy_", [(data, each.flat) for each, data in halves])
                _each("sub_", [(each.flat, data) for each, data in halves])
                _each("copy_", [(each.rest, each.flat) for each, _ in halves])
                self._rest.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        for each in self.staged:
            each.sick = each.moves = False
        self._under_way = False

    # ---------------------------------------------------------------- the host

    def _fold(self) -> None:
        """Afterwards host is shown - v."""
        if self._well:
            self._well = library.descant_fold(self._segments, self._sizes, len(self.staged),
                                              self._shown.data_ptr(), self._host.data_ptr()) == 1
            return
        sick = any(each.stays_bad() for each in self.staged)
        for each in self.staged:
            each.add_progress(sick)
        self._look_at_mirrors()
        self._host.sub_(self._shown).neg_()

    def _look_at_mirrors(self) -> None:
        for each in self.staged:
            if each.shows:
                each.shown.copy_(each.mirror)
            else:
                each.shown.zero_()
        self._well = math.isfinite(float(self._shown.sum()))

    def _fold_and_heal(self) -> None:
        """All at once: one that is healed would get NaN from one that is not."""
        import torch
        self._fold()
        if not self._well:              # nothing to be added
            self._host.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        sick = [each for each in self.staged if each.sick]
        healed = all(bool(torch.isfinite(each.shown).all()) for each in sick)
        for each in sick:
            each.sick = healed
            if healed:
                each.host.copy_(each.shown)

    # ---------------------------------------------------------------- the caller's

    def turn(self) -> None:
        """Under shadow plans, at each step: what can be done without waiting."""
        self._lane.check()
        if self._lane.busy():
            return
        self._end_exchange()
        began = time.monotonic()
        if began >= self._not_before:
            self._gather()
            self._lane.start(self._flat, self._host, self._fold_and_heal)
            self._under_way = True
            self._launching = time.monotonic() - began

    def _end_exchange(self) -> None:
        try:
            self._lane.wait()
        except Exception:               # it has brought nothing
            self._under_way = False
            raise
        if self._under_way:
            began = time.monotonic()
            self._give(whole=False)
            self._not_before = time.monotonic() + self._pause(time.monotonic() - began)

    def _pause(self, giving: float) -> float:
        """Seconds, until both the lane's thread and the caller's may work for another exchange. Of
        launches the shorter of two counts, since the first one of a kernel loads it."""
        launched, last = self._launching + giving, self._launched
        self._launched = launched
        of_loop = min(launched, last) / self.of_loop if self._lane.has_thread else 0.0
        spent = self._lane.spent
        return max(of_loop, spent * (1 / (self._share() or 1) - 1) if spent else 0.0)

    def push(self) -> None:
        """Before a call of the library: the mirrors have what the tensors have."""
        self._lane.check()
        self._end_exchange()
        self._gather()
        self._lane.copy(self._host, self._flat)
        self._fold()

    @property
    def is_well(self) -> bool:
        return self._well

    def pull(self, exact: bool) -> None:
        """After one that has merged: the tensors have what the mirrors have; exact: doubles, too, to
        the bit. Without it what the mirrors have got meanwhile stays there, and the next push adds
        to it."""
        import torch
        for each in self.staged:
            each.moves = each.is_double and not exact and bool(torch.isfinite(each.host).all())
            if each.moves:
                each.host.add_(each.mirror - each.shown)
            else:
                each.host.copy_(each.mirror)
        self._look_at_mirrors()
        self._lane.copy(self._flat, self._host)
        self._give(whole=True)

    def take(self) -> None:
        """The tensors were overwritten, and are the mirrors' new values."""
        self._lane.wait()
        self._under_way = False
        if self._rest is not None:
            self._rest.zero_()
        self._gather()
        self._lane.copy(self._host, self._flat)
        for each in self.staged:
            each.mirror.copy_(each.host)
        self._look_at_mirrors()
        self._host.sub_(self._shown).neg_()

    def stop(self) -> None:
        self._lane.stop()


def stages(staged: List[Staged], share: Callable[[], float]) -> List[Stage]:
    devices = {each.device for each in staged}
    return [Stage([each for each in staged if each.device == device], share=share)
            for device in devices]
