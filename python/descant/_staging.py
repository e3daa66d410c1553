# SPDX-License-Identifier: MIT
"""Tensors that the library cannot use where they are: on a device, of other types than float32, or
with gaps. Each has a segment of floats beside it, its mirror, and shows what that has:

    gather      v = tensor + rest, of all tensors of a device in one vector there; rest is what a
                half-precision tensor cannot show
    down        that vector to pinned memory of the host, by a stream of its own
    fold        mirror += v - shown; shown = mirror: what training did goes in
    up          shown - v, what the library has merged meanwhile, to the device
    give        tensor, rest = the float32 of v + that, in two parts

Under shadow plans a step never waits for a copy: `turn` does what can be done, and training goes on
between gather and give, which is why an increment is given. Where a round belongs to one step,
`push` before it and `pull` after it wait, and the mirror is given as it is: all trainers then have
the same bits. To a tensor of doubles the difference is given, so that it keeps what floats cannot
show; only what others began with, and what all end with, is the mirror itself. So is a mirror given
that the library has healed, of a tensor with NaN or Inf: nothing can be added to those.

One thread, the caller's. Training's stream runs gather and give; the lane's own the copies, ordered
after the one and before the other. On the CPU nothing moves, and host and device are one vector."""

import math
from typing import Any, Callable, List, Optional

from ._job import Job


class Lane:
    """The way between a device and the host; one copy at a time."""

    def __init__(self, device: Any):
        import torch
        self._cuda = torch.cuda if device.type == "cuda" else None
        self._device = device
        if self._cuda:
            self._stream = self._cuda.Stream(device)
            self._event = self._cuda.Event()

    def host(self, flat: Any) -> Any:
        """Memory of the host for as much as flat, of the device, has."""
        import torch
        if self._device.type == "cpu":
            return flat
        return torch.zeros(flat.numel(), pin_memory=self._cuda is not None)

    def copy(self, target: Any, source: Any) -> None:
        """After what training's stream was given; target may be used after arrived or wait."""
        if not self._cuda:
            if target is not source:
                target.copy_(source)
            return
        self._stream.wait_stream(self._cuda.current_stream(self._device))
        with self._cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            self._event.record()

    def arrived(self) -> bool:
        return not self._cuda or self._event.query()

    def wait(self) -> None:
        if self._cuda:
            self._event.synchronize()


class Staged:
    """One tensor; find gives it, or None as long as it is not there (an optimizer's state comes
    with its first step), when it shows nothing, and counts as zero. mirror, shown, host: of the
    host; flat: of the device. sick: it has NaN or Inf, which the library knows of; it gets the
    mirror as it is, once that is healed. moves: of doubles, is given what to add. lane: what may
    still write into flat."""

    address: Optional[int] = None
    sick = moves = False
    lane: Optional["Lane"] = None

    def __init__(self, job: Job, name: str, label: str, like: Any, find: Callable[[], Any]):
        import torch
        self.name = name
        self.n, self.device = like.numel(), like.device
        self.is_double = like.dtype == torch.float64
        self._find, self._rest = find, None
        self.mirror = torch.frombuffer(job.alloc(label, self.n), dtype=torch.float32)

    @property
    def tensor(self) -> Any:
        return self._find()

    def gather(self) -> None:
        import torch
        tensor = self._find()
        if tensor is None:
            self.flat.zero_()
            return
        self.flat.view(tensor.shape).copy_(tensor.detach())
        if self._rest is not None:
            self.flat.add_(self._rest)
        elif tensor.dtype in (torch.float16, torch.bfloat16):
            self._rest = torch.zeros_like(self.flat)

    def give(self, whole: bool) -> None:
        """flat is the new value, or what is to be added to it."""
        import torch
        tensor = self._find()
        if tensor is None:
            return
        data = tensor.data
        value = self.flat.view(data.shape)
        if not whole:
            value = data.to(torch.promote_types(data.dtype, value.dtype)) + value
            if self._rest is not None:
                value += self._rest.view(data.shape)
        data.copy_(value)
        if self._rest is not None:
            rest = torch.nan_to_num(value - data, nan=0.0, posinf=0.0, neginf=0.0)
            self._rest.copy_(rest.reshape(-1))

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

    def forget_rest(self) -> None:
        self._rest = None

    def tie(self, tensor: Any) -> bool:
        """Another tensor begins in this one's memory; false where it has another part of it."""
        return tensor.numel() == self.n

    def release(self, _left: bool) -> None:
        if self.lane is not None:
            self.lane.wait()
        self.mirror = None


class Stage:
    """All tensors of one device. _way: what is being copied, "down" or "up"."""

    def __init__(self, staged: List[Staged], lane: Optional[Lane] = None):
        import torch
        self.staged = staged
        self._lane = lane or Lane(staged[0].device)
        sizes = [each.n for each in staged]
        self._flat = torch.zeros(sum(sizes), device=staged[0].device)
        self._host = self._lane.host(self._flat)
        self._shown = torch.zeros(sum(sizes))
        self._way: Optional[str] = None
        self._well = True           # what is shown is finite
        for each, *parts in zip(staged, *(v.split(sizes) for v in
                                          (self._flat, self._host, self._shown))):
            each.flat, each.host, each.shown = parts
            each.lane = self._lane

    def _gather(self) -> None:
        for each in self.staged:
            each.gather()
        self._lane.copy(self._host, self._flat)
        self._way = "down"

    def _add_progress(self) -> None:
        if self._well:
            for each in self.staged:
                each.mirror.add_(each.host - each.shown)
            return
        sick = any(each.stays_bad() for each in self.staged)
        for each in self.staged:
            each.add_progress(sick)

    def _look_at_mirrors(self) -> None:
        for each in self.staged:
            if each.tensor is None:
                each.shown.zero_()
            else:
                each.shown.copy_(each.mirror)
        self._well = math.isfinite(float(self._shown.sum()))

    def _give(self, whole: bool) -> None:
        self._lane.wait()
        for each in self.staged:
            each.give((whole and not each.moves) or each.sick)
            each.sick = each.moves = False
        self._way = None

    def turn(self) -> None:
        """Under shadow plans, at each step: what can be done without waiting."""
        if not self._lane.arrived():
            return
        if self._way == "up":
            self._give(whole=False)
        if self._way == "down":
            self._add_progress()
            self._look_at_mirrors()
            self._host.sub_(self._shown).neg_()
            if not self._well:          # nothing to be added
                self._host.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
            self._heal()
            self._lane.copy(self._flat, self._host)
            self._way = "up"
        else:
            self._gather()

    def _heal(self) -> None:
        """All at once: one that is healed would get NaN from one that is not."""
        import torch
        sick = [each for each in self.staged if each.sick]
        healed = all(bool(torch.isfinite(each.shown).all()) for each in sick)
        for each in sick:
            each.sick = healed
            if healed:
                each.host.copy_(each.shown)

    def push(self) -> None:
        """Before a call of the library: the mirrors have what the tensors have."""
        self._lane.wait()
        if self._way == "up":           # its increment is a part of shown
            self._give(whole=False)
        self._gather()
        self._lane.wait()
        self._add_progress()

    def pull(self, exact: bool) -> None:
        """After it: the tensors have what the mirrors have; exact: doubles, too, to the bit."""
        import torch
        self._look_at_mirrors()
        for each in self.staged:
            each.moves = each.is_double and not exact and bool(torch.isfinite(each.host).all())
            if each.moves:
                each.host.neg_().add_(each.shown)
            else:
                each.host.copy_(each.shown)
        self._lane.copy(self._flat, self._host)
        self._give(whole=True)

    def take(self) -> None:
        """The tensors were overwritten, and are the mirrors' new values."""
        self._lane.wait()
        for each in self.staged:
            each.forget_rest()
        self._gather()
        self._lane.wait()
        for each in self.staged:
            each.mirror.copy_(each.host)
        self._look_at_mirrors()
        self._way = None


def stages(staged: List[Staged]) -> List[Stage]:
    devices = {each.device for each in staged}
    return [Stage([each for each in staged if each.device == device]) for device in devices]
