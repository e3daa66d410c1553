# SPDX-License-Identifier: MIT
"""What attach gives: one trainer's part in a job, around a training loop.

A step is one call into the library and a look at a few parameters in turn, whether they are still
where they were: what model.to or .data = have moved would be trained and never exchanged."""

import contextlib
import ctypes
import itertools
import os
import threading
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from . import _library
from ._job import Job
from ._library import check, failure, library
from ._segments import Buffers, Placed, Segment, is_torch, make_segment, place_keys

_FINALS = {"local": 0, "mean": 1, "central": 2}
_LOOKS = 8      # parameters a step looks at


def _named(model: Any) -> List[Tuple[str, Any]]:
    """Names and tensors of a module, a dict, pairs, a list, or one tensor."""
    if hasattr(model, "named_parameters"):
        return list(model.named_parameters())
    if hasattr(model, "items"):
        return list(model.items())
    if hasattr(model, "shape"):
        return [("0", model)]
    return [each if isinstance(each, tuple) else (str(i), each) for i, each in enumerate(model)]


def _owners(model: Any) -> Dict[int, Tuple[dict, str]]:
    """Of each parameter of a module the dict that holds it, to see if another takes its place."""
    if not hasattr(model, "modules"):
        return {}
    return {id(p): (module._parameters, key) for module in model.modules()
            for key, p in module._parameters.items() if p is not None}


class Sync:
    """One trainer's part in a job; made by attach, and a context manager: leaving it finishes, or,
    after an exception, only closes. rank and size are as at the start. All calls are one thread's,
    but step, which each of `workers` threads makes."""

    def __init__(self, model: Any, options: _library.Options, *, frozen: bool, buffers: str,
                 final: Optional[str]):
        if buffers not in ("leave", "mean"):
            raise ValueError(f"buffers={buffers!r}: 'leave' or 'mean'")
        plan = (options.plan or os.environ.get("DESCANT_PLAN", "").encode()
                or b"shadow-easgd").decode()
        self.plan = plan
        preset = plan.split(",")[0].strip()
        self.means_gradients = preset == "allreduce" or "what=gradient" in plan
        self._rests = preset == "none" or "when=never" in plan
        self._final = final or ("local" if self.means_gradients or self._rests else "mean")
        self._final_number(self._final, buffers)
        self._job: Optional[Job] = Job(options)
        self._segments: List[Segment] = []
        self._buffers: Optional[Buffers] = None
        self._finished = False
        self._last_stats: Dict[str, float] = {}
        self._steps_before = 0
        self._gradient: Any = None
        self._meaned = False
        try:
            self._take_in(model, frozen, buffers, options.workers)
            check(library.descant_start(self._job.handle))
            for segment in self._segments:
                segment.pull()
            members = self.members()
        except BaseException:
            self.close()
            raise
        self.rank, self.size = members["rank"], members["size"]

    # ---------------------------------------------------------------- segments

    def _take_in(self, model: Any, frozen: bool, buffers: str, workers: int) -> None:
        whole = hasattr(model, "named_parameters")
        places: Dict[Any, Segment] = {}
        for name, tensor in _named(model):
            left = whole and not tensor.requires_grad and not (frozen and
                                                               tensor.is_floating_point())
            if not left:
                self._take_tensor(name, tensor, places)
        if not self._segments:
            raise ValueError("there is nothing to keep in step: no parameter that is trained"
                             + ("" if frozen or not whole else " (frozen=True takes all)"))
        if buffers == "mean" and whole:
            self._take_buffers(model)
        self._mirrors = [s for s in self._segments if type(s).pull is not Segment.pull]
        if self._mirrors and workers > 1:
            raise ValueError(f"'{self._mirrors[0].name}' is not of floats on the CPU, and is kept "
                             "in step through a copy: only with one worker")
        self._looks = self._rounds_of_looks(_owners(model))

    def _take_tensor(self, name: str, tensor: Any, places: Dict[Any, Segment]) -> None:
        if any(tensor is segment.tensor for segment in places.values()):
            return
        keys = place_keys(name, tensor)
        if 0 in tensor.shape:
            return
        first = next((places[key] for key in keys if key in places), None)
        if first is None:
            segment = make_segment(self._job, name, tensor)
            self._segments.append(segment)
            places[keys[0] if isinstance(segment, Placed) else keys[-1]] = segment
        elif not first.tie(tensor):
            raise ValueError(f"'{name}' shares a part of its memory with '{first.name}'")

    def _take_buffers(self, model: Any) -> None:
        found = [b for _, b in model.named_buffers() if b.is_floating_point() and b.numel() > 0]
        if found:
            self._buffers = Buffers(self._job, found)

    def _rounds_of_looks(self, owners: Dict[int, Tuple[dict, str]]) -> Iterator[Any]:
        rows = [(*owners.get(id(s.tensor), ({"": s.tensor}, "")), s.tensor, s.address, s.name)
                for s in self._segments if is_torch(s.tensor)]
        self._rows = rows
        return itertools.cycle([tuple(rows[i:i + _LOOKS]) for i in range(0, len(rows), _LOOKS)]
                               or [()])

    def _look(self, rows: Iterable[Any]) -> None:
        for parameters, key, tensor, address, name in rows:
            if parameters.get(key) is not tensor:
                raise RuntimeError(f"the parameter '{name}' has been replaced by another: attach "
                                   "after that, or load with assign=False")
            if address is not None and tensor.data_ptr() != address:
                raise RuntimeError(f"the parameter '{name}' has moved to other memory (model.to, "
                                   ".data = …): write into it in place, or attach after that")

    # ---------------------------------------------------------------- training

    def step(self) -> None:
        """After each optimizer step. Under a shadow plan it counts; under others it may wait for
        the other trainers, with the GIL free."""
        if self._mirrors or self.means_gradients:
            self._before_step()
        status = library.descant_step(self._job.handle)
        if status:
            raise failure(status)
        for segment in self._mirrors:
            segment.pull()
        self._look(next(self._looks))

    def _before_step(self) -> None:
        if self.means_gradients and not self._meaned:
            raise RuntimeError(f"under the plan {self.plan} gradients are averaged before they are "
                               "applied: call sync.mean_gradients() before optimizer.step(), or "
                               "let descant.hook(optimizer, sync) do it")
        self._meaned = False
        for segment in self._mirrors:
            segment.push()

    def mean(self, values: Any) -> None:
        """values, floats in one piece, become their mean over the trainers, who all call this;
        only under the plan "allreduce"."""
        torch = is_torch(values)
        whole = values.is_contiguous() if torch else values.flags.c_contiguous
        if not whole or str(values.dtype) not in ("torch.float32", "float32"):
            raise ValueError("a mean is of float32, in one piece")
        address = values.data_ptr() if torch else values.ctypes.data
        check(library.descant_mean(self._job.handle, address, values.size if not torch
                                   else values.numel()))

    def mean_gradients(self) -> None:
        """Under the plan "allreduce", between backward and optimizer.step: each parameter's
        gradient becomes its mean over the trainers. No gradient counts as zero."""
        import torch
        tensors = [s.tensor for s in self._segments if s.tensor.requires_grad]
        if self._gradient is None:
            self._gradient = torch.empty(sum(t.numel() for t in tensors))
        parts = self._gradient.split([t.numel() for t in tensors])
        for tensor, part in zip(tensors, parts):
            if tensor.grad is None:
                part.zero_()
            else:
                part.copy_(tensor.grad.reshape(-1))
        self.mean(self._gradient)
        for tensor, part in zip(tensors, parts):
            if tensor.grad is not None:
                tensor.grad.copy_(part.view(tensor.shape))
            elif bool(part.any()):
                tensor.grad = part.view(tensor.shape).to(tensor.device, tensor.dtype, copy=True)
        self._meaned = True

    def worker_done(self) -> None:
        """This thread makes no more steps, and nobody waits for it."""
        check(library.descant_worker_done(self._job.handle))

    # ---------------------------------------------------------------- checkpoints

    @property
    def steps(self) -> int:
        """Of this trainer, with those before the state that was loaded."""
        return self._steps_before + int(self.stats()["steps"])

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """No round touches the parameters inside, and they may be overwritten: afterwards all
        trainers take them. After an exception inside, the job stays paused, and can only be
        closed."""
        check(library.descant_pause(self._job.handle))
        yield
        for segment in self._mirrors:
            segment.take()
        check(library.descant_reload(self._job.handle))

    def state_dict(self) -> Dict[str, Any]:
        """What the model's and the optimizer's own do not have: the outer state (the central copy,
        or the global version and its momentum) as bytes in a tensor or an array, and the steps."""
        size = ctypes.c_size_t(0)
        check(library.descant_outer_save(self._job.handle, None, ctypes.byref(size)))
        room = ctypes.create_string_buffer(size.value)
        check(library.descant_outer_save(self._job.handle, room, ctypes.byref(size)))
        outer: Any = bytearray(room.raw[:size.value])
        if is_torch(self._segments[0].tensor):
            import torch
            outer = torch.frombuffer(outer, dtype=torch.uint8)
        return {"plan": self.plan, "steps": self.steps, "outer": outer}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Of a job with the same plan and model, after the model's and the optimizer's were loaded.
        All trainers take this one's parameters with it."""
        if not self._rests:
            outer = bytes(memoryview(state["outer"].numpy() if is_torch(state["outer"])
                                     else state["outer"]))
            with self.paused():
                check(library.descant_outer_load(self._job.handle, outer, len(outer)))
        self._steps_before = state["steps"] - int(self.stats()["steps"])

    # ---------------------------------------------------------------- figures

    def members(self) -> Dict[str, int]:
        """rank, size (trainers that take part now), epoch, host, hosts, local_rank."""
        members = _library.Members()
        check(library.descant_members(self._job.handle, ctypes.byref(members)))
        return {name: getattr(members, name) for name, *_ in members._fields_}

    def stats(self) -> Dict[str, float]:
        """The fields of struct descant_stats; once closed, as they were last."""
        if self._job.handle is None:
            return dict(self._last_stats)
        stats = _library.Stats()
        check(library.descant_stats(self._job.handle, ctypes.byref(stats)))
        return {name: getattr(stats, name) for name, *_ in stats._fields_}

    def waits(self) -> str:
        """Who waits for whom now; "" for nobody."""
        text = ctypes.create_string_buffer(1 << 14)
        library.descant_waits(self._job.handle, text, len(text))
        return text.value.decode(errors="replace")

    # ---------------------------------------------------------------- the end

    def _final_number(self, final: str, buffers: str) -> int:
        if final not in _FINALS:
            raise ValueError(f"final={final!r}: one of {', '.join(_FINALS)}")
        if final == "central" and buffers == "mean":
            raise ValueError("buffers='mean': a central copy has none; final='mean' or 'local'")
        return _FINALS[final]

    def finish(self, final: Optional[str] = None) -> None:
        """Ends training: waits for the trainers still at work, and gives all the same final model:
        the "mean" of the present ones', the first one's ("local"), or the "central" copy or global
        version of the plan. A second call does nothing."""
        if self._finished:
            return
        number = self._final_number(final or self._final, "mean" if self._buffers else "leave")
        self._look(self._rows)
        ends: List[Any] = [*self._mirrors, *([self._buffers] if self._buffers else [])]
        if ends and not self._rests:
            check(library.descant_pause(self._job.handle))
        for each in ends:
            each.push()
        check(library.descant_finish(self._job.handle, number))
        for each in ends:
            each.pull()
        self._finished = True

    def close(self) -> None:
        """Leaves the job. Parameters keep their values, in memory of their own."""
        if self._job is None or self._job.handle is None:
            return
        with contextlib.suppress(_library.Error):       # a broken job has none
            self._last_stats = self.stats()
        for each in [*self._segments, *([self._buffers] if self._buffers else [])]:
            each.release()
        self._job.close()

    def __enter__(self) -> "Sync":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.close()
