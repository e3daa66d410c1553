# SPDX-License-Identifier: MIT
"""What attach gives: one trainer's part in a job, around a training loop.

A step is one call into the library. Now and then it also looks at a few parameters in turn,
whether they are still where they were, and frozen ones still frozen: what model.to or .data = have
moved, or what was not taken, would be trained and never exchanged."""

import contextlib
import ctypes
import functools
import itertools
import os
import threading
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from . import _library
from ._agree import agreed_any, agreed_broadcast, agreed_mean
from ._gradients import AtBackward, Gradients
from ._job import Job
from ._library import failure, library, settings
from ._optimizers import StateOf, kept_states, unwrapped
from ._others import wrapper_of
from ._segments import (Buffers, NumpyMirror, Placed, State, check_overlaps, is_torch, make_segment,
                        place_keys, state_segment, storage_key)
from ._staging import Stage, Staged, stages

_step = library.descant_step
_FINALS = {"local": 0, "mean": 1, "central": 2}
_LOOKS = 8      # parameters that a step looks at, one of as many steps


class Event(NamedTuple):
    """What befell a trainer, as the log has it in text.

    kind       joined, finished: rank takes part from now on, or has called finish
               lost: it has died; bad: it brought NaN or Inf, and was left out of a round
               no_round: this trainer steps beside others, and no round has been made
               unfinished: rank, perhaps this trainer, has left without finish, as after an
               exception; broken: a round failed for good
               told: it was told to end, and has called tell; left: it has gone since, and its steps
               are with the others
    rank       -1: of several, or it is not known of whom
    members    trainers that take part now
    count      how often, since the last event of this kind and rank"""

    kind: str
    rank: int
    members: int
    count: int
    text: str


def _teller(listeners: List[Callable[[Event], Any]], tellers: Set[int]) -> Any:
    """What the library calls, from a thread that does nothing else: in tellers meanwhile."""
    def tell(_user: Any, event: Any) -> int:
        said = event.contents
        told = Event(_library.EVENTS[said.kind], said.rank, said.members, said.count,
                     said.text.decode(errors="replace"))
        quiet = False
        tellers.add(threading.get_ident())
        for listener in list(listeners):
            try:
                quiet |= listener(told) is True
            except Exception:
                _library.log.exception("a function that on_event was given has failed")
        tellers.discard(threading.get_ident())
        return int(quiet)
    return _library.ON_EVENT(tell)


def _peer(peer: _library.Peer) -> Dict[str, Any]:
    figures = {name: getattr(peer, name) for name, *_ in _library.Peer._fields_
               if name != "n_values"}
    return {**figures, "last": _library.EVENTS[peer.last], "host": peer.host.decode(errors="replace"),
            "values": list(peer.values[:peer.n_values])}


def _named(model: Any) -> List[Tuple[str, Any]]:
    """Names and tensors of a module, a dict, pairs, a list, or one tensor."""
    if hasattr(model, "named_parameters"):
        return list(model.named_parameters())
    if hasattr(model, "items"):
        return list(model.items())
    if hasattr(model, "shape"):
        return [("0", model)]
    return [each if isinstance(each, tuple) else (str(i), each) for i, each in enumerate(model)]


def _check_model(model: Any) -> None:
    if isinstance(model, (str, bytes)) or not (hasattr(model, "shape") or hasattr(model, "items") or
                                               hasattr(model, "named_parameters") or
                                               hasattr(model, "__iter__")):
        raise TypeError("attach wants a torch.nn.Module, or tensors or NumPy arrays: a dict, a list, "
                        f"or one; not {_brief(model)}")


def _owners(model: Any) -> Dict[int, Tuple[dict, str]]:
    """Of each parameter of a module the dict that holds it, to see if another takes its place."""
    if not hasattr(model, "modules"):
        return {}
    return {id(p): (module._parameters, key) for module in model.modules()
            for key, p in module._parameters.items() if p is not None}


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(str, list(value)[:4]))}" + ", …" * (len(value) > 4)
    known = isinstance(value, (int, float, str, bytes, type(None)))
    return repr(value) if known else "an object of " + type(value).__name__


def _number(loss: Any) -> float:
    return 0.0 if loss is None else float(loss.detach() if is_torch(loss) else loss)


def _like(loss: Any, mean: float) -> Any:
    if not is_torch(loss):
        return mean
    import torch
    return torch.full_like(loss.detach(), mean)


def _paces(keys: Dict[str, str]) -> Optional[Tuple[int, int]]:
    """every and delay, where rounds begin and merge at such steps alone: else None."""
    if keys.get("when") != "every" or keys.get("what") == "gradient":
        return None
    with contextlib.suppress(ValueError):       # the library says what is wrong with it
        return int(keys.get("every", 1)), int(keys.get("delay", 0))
    return 1, 0


def _stats_of(job: Job) -> _library.Stats:
    stats = _library.Stats()
    job.call(library.descant_stats, ctypes.byref(stats))
    return stats


_attached: "weakref.WeakSet[Sync]" = weakref.WeakSet()


def _check_free(tensors: List[Tuple[str, Any]]) -> None:
    """No tensor is at work in two jobs: each would write what the other has not seen."""
    used = {id(tensor) for sync in list(_attached)
            if not sync.ended and sync._job.pid == os.getpid() for _, tensor in sync._tensors}
    for name, tensor in tensors:
        if id(tensor) in used:
            raise RuntimeError(f"'{name}' is attached already: finish or close what that attach has "
                               "returned before")


def _default_plan(optimizer: Any) -> bytes:
    """The shadow plan whose results are nearest to DDP's (docs/torch.md); one that pulls where the
    optimizer's state goes with the parameters."""
    return b"shadow-delta" if optimizer is None else b"shadow-easgd"


class _Counted:
    """An optimizer among those that are hooked."""

    def __init__(self, hooked: List[Any], optimizer: Any):
        self._hooked, self._optimizer = hooked, optimizer

    def remove(self) -> None:
        self._hooked[:] = [each for each in self._hooked if each is not self._optimizer]


class Sync:
    """One trainer's part in a job; made by attach, and a context manager: leaving it finishes, or,
    after an exception, only closes. rank and size are as at the start. All calls are one thread's,
    but step, which each of `workers` threads makes."""

    # what steps look at; with all in the dict, which then has more than 30, they are slower
    __slots__ = ("_job", "_light", "_prepares", "_unbound", "_absent", "_mirrors", "_exact",
                 "_turning", "_owners", "_rows", "_looks", "__dict__", "__weakref__")

    def __init__(self, model: Any, options: _library.Options, *, optimizer: Any, frozen: bool,
                 buffers: Optional[str], final: Optional[str]):
        if buffers not in (None, "leave", "mean"):
            raise ValueError(f"buffers={buffers!r}: 'leave' or 'mean'")
        _check_model(model)
        options.plan = (options.plan or os.environ.get("DESCANT_PLAN", "").encode()
                        or _default_plan(optimizer))
        plan = options.plan.decode()
        self.plan = plan
        keys = settings(plan)
        self.means_gradients = keys.get("what") == "gradient"
        self._rests = keys.get("when") == "never"
        self.merges_parameters = not self.means_gradients and not self._rests
        self._is_shadow = keys.get("when") == "shadow"
        self._extrapolates = keys.get("what") == "block" or keys.get("merge") == "delta"
        self._has_no_centre = "when" in keys and keys.get("what") not in ("elastic", "block")
        self._paces = _paces(keys)
        self._final = final or ("local" if self.means_gradients or self._rests else "mean")
        whole = hasattr(model, "named_parameters")
        self._buffers_asked = buffers == "mean"
        buffers = buffers or ("mean" if whole else "leave")
        self._final_number(self._final)
        if buffers == "mean" and not whole:
            raise ValueError("buffers='mean': only a module has buffers")
        self._listeners: List[Callable[[Event], Any]] = []
        tellers: Set[int] = set()
        options.on_event = _teller(self._listeners, tellers)
        tables = [(name, module) for name, module in
                  (model.named_modules() if whole else ()) if hasattr(module, "_descant_join")]
        options.owned = self._has_tables = bool(tables)
        self._job = Job(options, tellers)
        self._segments: List[Any] = []
        self._stages: List[Stage] = []
        self._tensors: List[Tuple[str, Any]] = []       # also those that share a segment
        self._buffers: Optional[Buffers] = None
        self._finished = self._closed = self._pausing = False
        self._last_stats: Dict[str, float] = {}
        self._steps_before = 0
        self._begun = False         # a step was made
        self._gradients: Optional[Gradients] = None
        self._at_backward: Optional[AtBackward] = None
        self._meaned = False
        self._workers = options.workers
        self._light = 0         # steps that are only a call; none, where another thread may close
        self._hooked: List[Any] = []        # optimizers whose steps a hook counts
        self._paced = 0         # steps, where _paces counts
        self._model = model if whole else None
        self._untaken: List[Any] = []      # parameters that are not taken
        try:
            self._take_in(model, optimizer, frozen, buffers)
            self._find_mirrors(options.workers)
            self._rounds_of_looks(_owners(model))
            for name, table in tables:
                table._descant_join(self._job, name)
            self._job.wait_for(library.descant_start)
            members = self.members()
            for mirror in self._mirrors:
                mirror.pull(exact=members["rank"] != 0)
        except BaseException:
            self.close()
            raise
        self.rank, self.size = members["rank"], members["size"]
        _attached.add(self)
        self._alone = True          # as far as is known
        self._look_for_others()

    # ---------------------------------------------------------------- segments

    def _take_in(self, model: Any, optimizer: Any, frozen: bool, buffers: str) -> None:
        whole = hasattr(model, "named_parameters")
        places: Dict[Any, Any] = {}
        taken = [(name, tensor) for name, tensor in _named(model)
                 if not whole or tensor.requires_grad or (frozen and tensor.is_floating_point())]
        _check_free(taken)
        keys = [place_keys(name, tensor) for name, tensor in taken]
        check_overlaps(taken)
        for (name, tensor), its_keys in zip(taken, keys):
            self._take_tensor(name, tensor, its_keys, places, whole)
        if whole:
            self._leave(model, {id(tensor) for _, tensor in taken}, places)
        self._torch = any(is_torch(tensor) for _, tensor in taken)
        if not self._segments and self._has_tables:     # which alone are trained
            self._job.alloc("nothing", 1)
        elif not self._segments:
            raise ValueError("there is nothing to keep in step: no parameter that is trained"
                             + ("" if frozen or not whole else " (frozen=True takes all)"))
        self._states: List[Tuple[Any, str, Any]] = []
        if optimizer is not None:
            self._take_states(unwrapped(optimizer))
        if buffers == "mean" and whole:
            self._take_buffers(model)

    def _take_states(self, optimizer: Any) -> None:
        """_states: their segments, with where each is."""
        kept = {id(each.tensor): each for each in self._segments}
        if not any(id(p) in kept for group in optimizer.param_groups for p in group["params"]):
            raise ValueError("optimizer=: it steps none of the parameters that are kept in step; give "
                             "the optimizer that was made of this model's parameters")
        for parameter, states in kept_states(optimizer, self._extrapolates):
            for each in states if id(parameter) in kept else []:
                state = StateOf(optimizer, parameter)
                segment = state_segment(self._job, f"{kept[id(parameter)].name}.{each.key}", each,
                                        functools.partial(state.get, each.key))
                self._states.append((state, each.key, segment))
        self._segments += [segment for _, _, segment in self._states]

    def _find_mirrors(self, workers: int) -> None:
        """What has to be told of a step: in the step itself, or, of stages under shadow plans, as
        it comes. _unbound, _absent: states that no step of the optimizer has made yet, placed and
        staged."""
        staged = [each for each in self._segments if isinstance(each, Staged)]
        arrays = [each for each in self._segments if isinstance(each, NumpyMirror)]
        if workers > 1 and self._states:
            raise ValueError("optimizer=: its state is kept in step only with one worker")
        if workers > 1 and staged + arrays:
            raise ValueError(f"'{(staged + arrays)[0].name}' is not of floats on the CPU, and is "
                             "kept in step through a copy: only with one worker")
        self._stages = stages(staged, lambda job=self._job: _stats_of(job).budget)
        for stage in self._stages:
            stage.take()
        self._mirrors: List[Any] = [*arrays, *self._stages]
        self._turning = self._stages if self._is_shadow else []
        self._exact = arrays if self._is_shadow else self._mirrors
        self._prepares = self.means_gradients or bool(self._mirrors and not self._rests)
        self._find_unbound()

    def _find_unbound(self) -> None:
        self._unbound = [each for each in self._segments if isinstance(each, State)
                         and each.tensor is None and not each.bind()]
        self._absent = [] if self._is_shadow else [each for each in self._segments
                                                   if isinstance(each, Staged)
                                                   and each.tensor is None]

    def _take_tensor(self, name: str, tensor: Any, keys: List[Any],
                     places: Dict[Any, Any], movable: bool) -> None:
        if 0 in tensor.shape or any(tensor is segment.tensor for segment in places.values()):
            return
        first = next((places[key] for key in keys if key in places), None)
        if first is None:
            segment = make_segment(self._job, name, tensor, movable)
            self._segments.append(segment)
            places[keys[0] if isinstance(segment, Placed) else keys[-1]] = segment
        elif not first.tie(tensor):
            raise ValueError(f"'{name}' shares a part of its memory with '{first.name}'")
        self._tensors.append((name, tensor))

    def _leave(self, model: Any, taken: Set[int], places: Dict[Any, Any]) -> None:
        """What is not taken, but looks into memory that has moved, comes along; a parameter that
        is trained later is an error."""
        for path, module in model.named_modules():
            for holder in (module._parameters, module._buffers):
                for key, tensor in holder.items():
                    if tensor is None or id(tensor) in taken:
                        continue
                    name = f"{path}.{key}" if path else key
                    place = places.get(storage_key(tensor))
                    if place is not None and tensor.dtype != place.tensor.dtype:
                        raise ValueError(f"'{name}' shares the memory of '{place.name}', which is "
                                         "moved, as another type")
                    if place is not None:
                        place.follow(tensor)
                    if holder is module._parameters and \
                            (tensor.is_floating_point() or tensor.is_complex()):
                        self._untaken.append((holder, key, None, None, f"the parameter '{name}'"))
        self._seen = {id(p): weakref.ref(p) for p in model.parameters()}

    def _take_buffers(self, model: Any) -> None:
        found = {id(b): (module._buffers, key) for module in model.modules()
                 for key, b in module._buffers.items()
                 if b is not None and b.is_floating_point() and b.numel() > 0}
        if found:
            self._buffers = Buffers(self._job, list(found.values()))

    def _rounds_of_looks(self, owners: Dict[int, Tuple[dict, str]]) -> None:
        """_rows: where each tensor is kept, what it was, and where its floats are. Without what it
        was: one that is not trained."""
        states = {id(segment) for _, _, segment in self._states}
        rows: List[Any] = list(self._untaken)
        for each in self._segments:
            if is_torch(each.tensor) and id(each) not in states:
                holder, key = owners.get(id(each.tensor), ({"": each.tensor}, ""))
                rows.append((holder, key, each.tensor, each.address,
                             f"the parameter '{each.name}'"))
        for state, key, each in self._states:
            if each.address is not None:
                rows.append((state, key, each.tensor, each.address,
                             f"the optimizer's '{each.name}'"))
        self._owners, self._rows = owners, rows
        self._looks = itertools.cycle([tuple(rows[i:i + _LOOKS])
                                       for i in range(0, len(rows), _LOOKS)] or [()])

    def _look(self, rows: Iterable[Any]) -> None:
        for holder, key, tensor, address, what in rows:
            if holder.get(key) is not tensor:
                if tensor is not None:
                    raise RuntimeError(f"{what} has been replaced by another: attach after that, "
                                       "load in 'with sync.paused()', or a model with assign=False")
                if holder[key].requires_grad:
                    raise RuntimeError(f"{what} is trained now, and was frozen at attach: attach "
                                       "after that, or with frozen=True")
            if address is not None and tensor.data_ptr() != address:
                raise RuntimeError(f"{what} has moved to other memory (model.to, .data = …): write "
                                   "into it in place, or attach after that")

    def _look_for_others(self) -> None:
        """Whether DDP does the same work; as training begins it has what it will have."""
        if not self._torch or self._rests or not self._alone:
            return
        wrapper = wrapper_of(tensor for _, tensor in self._tensors)
        self._alone = wrapper is None
        if wrapper:
            _library.log.warning("%s keeps this model together as well: each step waits for it, and "
                                 "Descant does the same work once more. Train without it "
                                 "(docs/torch.md has how, for Trainer, Accelerate and Lightning), "
                                 "or without Descant", wrapper)

    def _look_at_all(self) -> None:
        """Also for what has come since."""
        self._look(self._rows)
        for name, p in self._model.named_parameters() if self._model is not None else ():
            if p.requires_grad and 0 not in p.shape and \
                    (id(p) not in self._seen or self._seen[id(p)]() is not p):
                raise RuntimeError(f"the parameter '{name}' has been added, and is trained by each "
                                   "alone: attach after that")

    # ---------------------------------------------------------------- training

    def step(self) -> None:
        """After each optimizer step, but one that descant.hook counts. Under a shadow plan it
        counts; under others it may wait for the other trainers, with the GIL free."""
        light = self._light
        if not light:
            if self._hooked and not self.ended:
                raise RuntimeError("descant.hook(optimizer, sync) calls sync.step() after each "
                                   "optimizer.step(): leave out this call, which would count each "
                                   "step twice, or the hook")
            self._whole_step()
            return
        self._light = light - 1
        status = _step(self._job.handle)
        if status:
            raise failure(status)

    def _whole_step(self) -> None:
        if not self._begun:
            self._begun = True
            self._look_for_others()
        if self._prepares or self._unbound or self._absent:
            self._prepared_step()
            return
        self._job.call(_step)
        self._look(next(self._looks))
        self._light = 0 if self._workers > 1 or self._hooked else _LOOKS - 1

    def _prepared_step(self) -> None:
        exact = self._exact if self._has_round() or self._has_come() else []
        self._before_step(exact)
        merges = self._merges()
        self._job.call(_step)
        self._paced += 1
        for mirror in exact:
            if merges or not mirror.is_well:
                mirror.pull(exact=False)
        self._look(next(self._looks))

    def _has_round(self) -> bool:
        """Whether the next step begins a round or merges one."""
        if self._paces is None:
            return not self._rests
        return (self._paced + 1) % self._paces[0] == 0 or self._merges()

    def _merges(self) -> bool:
        """Whether the next step may change the parameters; who has joined merges at delay."""
        if self._paces is None:
            return True
        every, delay = self._paces
        step = self._paced + 1
        return bool(self._absent) or (step >= delay and (step - delay) % every == 0)

    def _has_come(self) -> bool:
        """A state, to which others may have added before."""
        n, self._absent = len(self._absent), [each for each in self._absent if each.tensor is None]
        return len(self._absent) < n

    def _before_step(self, exact: List[Any]) -> None:
        if self.means_gradients and not self._meaned:
            raise RuntimeError(f"under the plan {self.plan} gradients are averaged before they are "
                               "applied: let descant.hook(optimizer, sync) do it, or call "
                               "sync.mean_gradients() before optimizer.step()")
        self._meaned = False
        self._bind_states()
        for mirror in exact:
            mirror.push()
        for stage in self._turning:
            stage.turn()

    def _bind_states(self) -> None:
        unbound = [state for state in self._unbound if not state.bind()]
        if len(unbound) < len(self._unbound):
            self._unbound = unbound
            self._rounds_of_looks(self._owners)

    def mean_(self, values: Any) -> None:
        """values, a tensor or an array of floats in one piece, on the CPU, become their mean over
        the trainers, who all call this; only under the plan "allreduce"."""
        torch = is_torch(values)
        if torch:
            fits = values.device.type == "cpu" and values.is_contiguous()
        else:
            fits = hasattr(values, "ctypes") and values.flags.c_contiguous and \
                values.flags.writeable
        if not fits or str(values.dtype) not in ("torch.float32", "float32"):
            raise ValueError("a mean is of a tensor or an array of float32 on the CPU, in one "
                             "piece, that can be written")
        address = values.data_ptr() if torch else values.ctypes.data
        self._job.call(library.descant_mean, address, values.numel() if torch else values.size)

    def mean_gradients(self, loss: Any = None) -> Any:
        """Under the plan "allreduce", between backward and optimizer.step, in loops without
        descant.hook: each parameter's gradient becomes its mean over the trainers. No gradient
        counts as zero, and a trainer whose gradients have NaN or Inf is left out. In a closure that
        optimizer.step(closure) calls: loss is what it would return, and the mean of that is
        returned, so that all trainers go the same way."""
        mean = self._average_gradients(_number(loss))
        return None if loss is None else _like(loss, mean)

    def _average_gradients(self, loss: float = 0.0, spread: bool = False) -> float:
        if self._gradients is None:     # who freezes one later, has it as zero
            self._gradients = Gradients(self._tensors, self.mean_)
        mean = self._gradients.average(loss, spread)
        self._meaned = True
        return mean

    def counts(self, optimizer: Any) -> "_Counted":
        """For hook: from now on hooked_step follows each step of this optimizer, until remove."""
        if any(each is optimizer for each in self._hooked):
            raise RuntimeError("hook(optimizer, sync): this optimizer has a hook for this sync "
                               "already, and a second one would count each step twice; call "
                               "remove() of what hook has returned before")
        self._hooked.append(optimizer)
        self._light = 0
        return _Counted(self._hooked, optimizer)

    def hooked_step(self) -> None:
        if not self.ended:
            self._whole_step()

    def averages_at_backward(self) -> Optional[AtBackward]:
        """For hook: under the plan "allreduce", what averages gradients as each backward ends."""
        def average() -> None:
            if not self.ended:
                self._average_gradients(spread=True)
        if not self.means_gradients or not self._torch:
            return None
        if self._at_backward is None:
            self._at_backward = AtBackward([tensor for _, tensor in self._tensors], average)
        return self._at_backward.want()

    def before_optimizer(self) -> None:
        """For hook: averages what no backward has, as gradients that were written by hand."""
        if self.means_gradients and not self._meaned and not self.ended:
            self._average_gradients(spread=True)

    def averaged_closure(self, closure: Any) -> Any:
        """For hook: a closure whose gradients and loss are all trainers' means."""
        def averaged() -> Any:
            self._meaned = False
            loss = closure()
            if self.ended:
                return loss
            self.before_optimizer()
            import torch
            mean = torch.tensor([_number(loss)], dtype=torch.float32, device="cpu")
            self.mean_(mean)
            return None if loss is None else _like(loss, float(mean))
        return averaged

    def no_sync(self) -> Any:
        """Gradients of backwards inside are added up, and averaged with those of the next one
        outside, where descant.hook averages them: as DDP's no_sync."""
        return self._at_backward.resting() if self._at_backward else contextlib.nullcontext()

    def worker_done(self) -> None:
        """This thread makes no more steps, and nobody waits for it."""
        self._job.call(library.descant_worker_done)

    # ---------------------------------------------------------------- agreements

    def mean(self, values: Any) -> Any:
        """The mean of values over the trainers: a number, a list of numbers, or a tensor or an array
        of 512 at most, which comes back in the same shape. As any and broadcast it works under
        every plan, from attach to finish: all trainers make the same agreements in the same order,
        and the call sleeps until the others have made it, while rounds go on. A trainer that has
        died, left or finished is not waited for."""
        return agreed_mean(self._job, values)

    def any(self, flag: Any) -> bool:
        """Whether flag is true in some trainer: an agreement, as mean."""
        return agreed_any(self._job, bool(flag))

    def broadcast(self, value: Any = None, from_: int = 0) -> Any:
        """What the trainer of rank from_ has passed: None, bool, int, float, str, or lists and dicts of
        these, or bytes: at most 4095 bytes, as JSON or as they are. The others' value is not looked at. An agreement, as
        mean. If that trainer has died, left or finished, it fails for all, with status BAD_RANK."""
        return agreed_broadcast(self._job, value, from_, self.rank == from_)

    # ---------------------------------------------------------------- checkpoints

    @contextlib.contextmanager
    def hold_rows(self) -> Iterator[None]:
        """Inside no rows of tables move, so that what saved() gives on all ranks has each row once:
        for attach(rows_move=True), before finish. All trainers enter it, as an agreement."""
        self._job.wait_for(library.descant_owned_hold, 1)
        good = failed = False
        try:
            self.any(False)             # all hold
            yield
            good = True
        finally:
            try:
                failed = self.any(not good)     # all have saved, or failed
            except Exception:
                if good:
                    raise
            finally:
                self._job.call(library.descant_owned_hold, 0)
        if failed:
            raise RuntimeError("another trainer has failed while rows were held")

    @property
    def steps(self) -> int:
        """Of this trainer, with those before the state that was loaded."""
        return self._steps_before + int(self.stats()["steps"])

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """No round touches the parameters inside, and they may be overwritten, an optimizer's state
        too: afterwards all trainers take this one's, in their next round. Inside another it does
        nothing more, and under the plan none, without rounds, it only looks at what was
        overwritten. After an exception inside, the job stays paused, and can only be closed."""
        if self._pausing:
            yield
            return
        if not self._rests:
            self._job.call(library.descant_pause)
        self._pausing = True
        try:
            yield
            self._take_anew()
        finally:
            self._pausing = False
        if not self._rests:
            self._job.call(library.descant_reload)

    def _take_anew(self) -> None:
        for _, _, segment in self._states:
            if isinstance(segment, State):
                segment.take()
        self._find_unbound()
        self._rounds_of_looks(self._owners)
        self._look_at_all()             # before anybody takes it
        for mirror in self._mirrors:
            mirror.take()
        self._light = 0

    def state_dict(self) -> Dict[str, Any]:
        """What the model's and the optimizer's own do not have: the outer state (the central copy,
        or the global version and its momentum) as bytes in a tensor or an array, and the steps.
        Until close, after finish, too."""
        size = ctypes.c_size_t(0)
        self._job.call(library.descant_outer_save, None, ctypes.byref(size))
        outer: Any = bytearray(size.value)
        room = (ctypes.c_char * size.value).from_buffer(outer)
        self._job.call(library.descant_outer_save, room, ctypes.byref(size))
        if self._torch:
            import torch
            outer = torch.frombuffer(outer, dtype=torch.uint8)
        return {"plan": self.plan, "steps": self.steps, "outer": outer}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Takes up what state_dict has returned in a job with the same plan and model. The model and
        the optimizer load their own states first: before attach, or, in the midst of training,
        inside one 'with sync.paused():' together with this call. In the next round all trainers
        take this trainer's parameters."""
        missing = {"plan", "steps", "outer"} - set(state if isinstance(state, dict) else ())
        if missing:
            raise TypeError("load_state_dict wants what sync.state_dict() has returned, a dict of "
                            "plan, steps and outer; the model's and the optimizer's own are loaded "
                            f"by themselves. Not {_brief(state)}")
        if not self._rests:
            outer = bytes(memoryview(state["outer"].cpu().numpy() if is_torch(state["outer"])
                                     else state["outer"]))
            with self.paused():
                self._job.call(library.descant_outer_load, outer, len(outer))
        self._steps_before = state["steps"] - int(self.stats()["steps"])

    # ---------------------------------------------------------------- figures

    def members(self) -> Dict[str, int]:
        """rank, size (trainers that take part now), epoch, host, hosts, local_rank."""
        members = _library.Members()
        self._job.call(library.descant_members, ctypes.byref(members))
        return {name: getattr(members, name) for name, *_ in members._fields_}

    def stats(self) -> Dict[str, float]:
        """Figures of this trainer since attach; once closed, as they were last.

        steps, rounds     made; merged
        gap_mean          steps between two merges; gap_p50, gap_p99, gap_max, and gap_per_worker
        age_steps, age_s  from the last round's begin to its merge
        exchange_p50_s    seconds from a round's begin until its result is here; exchange_p99_s
        stall_ns          what steps have waited for others; copy_ns: what they copied and merged
        bytes             moved by this trainer's rounds
        bad               contributions that were left out for NaN or Inf, of any trainer
        restarts          rounds begun again because one of their trainers left
        shadow_cpu_s      CPU time of the threads in the background; budget: the share of a core that
                          they may use
        wall_s            since attach
        distance          from this trainer's parameters to the result, as a part of that, at the
                          last merge; 0 where they have NaN or Inf
        outer_rate        of the last round of bmuf and diloco, with outer_momentum; outer_cosine
                          at 0 or below says that this step overshoots
        missed            rounds that have closed without this trainer (quorum=)
        merged            its steps that results have

        rows_…: of embedding tables, which Python does not have."""
        if self._job.closing:
            return dict(self._last_stats)
        stats = _stats_of(self._job)
        return {name: getattr(stats, name) for name, *_ in stats._fields_}

    def show(self, *values: float) -> None:
        """Gives up to 16 numbers to the trainers that get this one's figures: examples, loss, and
        so on. They replace those of the call before."""
        self._job.call(library.descant_show, (ctypes.c_double * len(values))(*values), len(values))

    def peers(self) -> List[Dict[str, Any]]:
        """Figures of all trainers that are known here, ascending by rank, this one among them. On one
        machine all trainers know all; between machines the two lowest ranks that are there do. A
        trainer tells its own about once a second.

        rank, host        its number, and the name of its machine ("": not known)
        last              "joined": it takes part; "finished", "left", "unfinished", "lost":
                          how it went
        heard_s           the age of these figures
        values            what its program has given to show
        workers, steps, rounds, bytes, stall_ns, gap_mean, age_s, exchange_p99_s, distance, wall_s
                          as in stats"""
        room, known = 0, ctypes.c_size_t(64)
        while known.value > room:
            room = known.value
            peers = (_library.Peer * room)()
            self._job.call(library.descant_peers, peers, room, ctypes.byref(known))
        return [_peer(each) for each in peers[:known.value]]

    def on_event(self, listener: Callable[[Event], Any]) -> Callable[[Event], Any]:
        """Calls listener(event) whenever a trainer comes, leaves, dies or brings NaN, where no round
        is made, and so on (descant.Event), in a thread of its own that nothing waits for but close.
        It may call members, stats and waits; close fails there. If it returns True, the log has no
        line of that."""
        self._listeners.append(listener)
        return listener

    def waits(self) -> str:
        """What calls and rounds wait for now, and for whom, a line each."""
        text = ctypes.create_string_buffer(1 << 14)
        handle = self._job.enter()
        try:
            library.descant_waits(handle, text, len(text))
        finally:
            self._job.exit()
        return text.value.decode(errors="replace")

    # ---------------------------------------------------------------- the end

    @property
    def ended(self) -> bool:
        """Finished or closed."""
        return self._finished or self._job.closing

    def _final_number(self, final: str) -> int:
        if final not in _FINALS:
            raise ValueError(f"final={final!r}: one of {', '.join(_FINALS)}")
        if final == "central" and self._buffers_asked:
            raise ValueError("buffers='mean': a central copy has none; final='mean' or 'local'")
        if final == "central" and self._has_no_centre:
            raise ValueError(f"final='central': the plan {self.plan} has no central copy or global "
                             "version; final='mean' or 'local'")
        return _FINALS[final]

    def finish(self, final: Optional[str] = None) -> None:
        """Ends training: waits for the trainers still at work, and gives all the same final model:
        the "mean" of the present ones', the first one's ("local"), or the "central" copy or global
        version of the plan. A second call does nothing."""
        if self._finished:
            return
        if not self._rests and self.stats()["steps"] == 0:
            _library.log.warning("no step was counted: sync.step() follows each optimizer.step()")
        final = final or self._final
        number = self._final_number(final)
        self._bind_states()
        self._look_at_all()
        members = self.members()
        has_others = members["size"] > 1 or members["epoch"] > 1        # or had
        buffers = [self._buffers] if self._buffers and final != "central" else []
        if self._buffers and not buffers and has_others:
            _library.log.warning("final='central': a central copy has no buffers, each trainer has "
                                 "its own")
        ends: List[Any] = [*self._mirrors, *buffers]
        if ends and not self._rests:
            self._job.call(library.descant_pause)
        for each in ends:
            each.push()
        self._job.wait_for(library.descant_finish, number)
        for each in ends:
            each.pull(exact=has_others)
        self._finished = True

    def tell(self) -> None:
        """Tells all trainers that this one was told to end, as by SIGTERM: each gets an event of the
        kind told. It returns at once, and does not end this trainer."""
        self._job.call(library.descant_tell)

    def part(self, seconds: float = 25.0) -> bool:
        """Ends this trainer alone, in place of finish, while the others train on: its last steps go
        into one more exchange, for which it waits so long at most: the notice of a spot instance
        leaves 30 s. Then close it. False: the others did not come to that in time, and have its
        work up to its last round."""
        if self._finished:
            return True
        self._bind_states()
        self._look_at_all()
        for mirror in self._mirrors if not self._rests else []:
            mirror.push()
        try:
            self._job.wait_for(library.descant_part, seconds)
        except _library.Error as error:
            if error.status != "TIMEOUT":
                raise
            self._finished = True
            return False
        self._finished = True
        return True

    def close(self) -> None:
        """Leaves the job; over mpi it waits until all ranks have. Parameters keep their values, in
        memory of their own."""
        if self._closed:
            return
        self._light = 0
        with contextlib.suppress(RuntimeError):         # a broken job has none
            self._last_stats = self.stats()
        for stage in self._stages:      # or one's thread would write while segments are kept
            stage.stop()
        self._job.close()
        for each in [*self._segments, *([self._buffers] if self._buffers else [])]:
            each.release(self._job.left)
        self._stages = self._mirrors = self._turning = self._exact = []     # a device's memory
        self._closed = True

    def __enter__(self) -> "Sync":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.close()
