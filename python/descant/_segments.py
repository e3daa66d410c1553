# SPDX-License-Identifier: MIT
"""How a tensor or an array becomes a segment of floats.

    Placed      a module's parameter of floats that has its storage for itself: its data moves into
                the library's memory, which peers read in place; nothing is copied any more
    Attached    all other floats in one piece: in memory that others use, too, and the caller's own
                tensors and arrays, which others may look into; these stay where they are
    Staged      all else of PyTorch's: other types, other devices, floats with gaps (_staging.py)
    Mirror      all else of NumPy's. A segment of floats stands beside the array. What changed in
                the array since it was last shown is added to the segment, which keeps what a
                float16 would lose, and then the array shows that
    State       what an optimizer keeps for a placed parameter, placed as soon as it is there

A segment's name has the shape, and the order of dimensions where it is not the usual one: trainers
whose models differ are told by the parameter's name."""

import math
from functools import reduce
from typing import Any, Callable, List, Optional, Sequence, Tuple

from ._job import Job, is_block
from ._staging import Staged


def dense_order(shape: Sequence[int], strides: Sequence[int]) -> Optional[list]:
    """The dimensions above 1, slowest first, if the elements lie without gaps; else None."""
    order = sorted((d for d in range(len(shape)) if shape[d] > 1), key=lambda d: -strides[d])
    step = 1
    for d in reversed(order):
        if strides[d] != step:
            return None
        step *= shape[d]
    return order


def label(name: str, shape: Sequence[int], order: Optional[list] = None) -> str:
    sizes = "x".join(str(n) for n in shape)
    if order is None or order == sorted(order):
        return f"{name}[{sizes}]"
    return f"{name}[{sizes}:{','.join(str(d) for d in order)}]"


class Segment:
    """tensor is what the caller has. address: where it must stay; None: it may move."""

    address: Optional[int] = None

    def __init__(self, name: str, tensor: Any):
        self.name = name
        self.tensor = tensor

    def tie(self, tensor: Any) -> bool:
        """Another tensor begins in this one's memory; false where it has another part of it."""
        return math.prod(tensor.shape) == math.prod(self.tensor.shape)

    def release(self, left: bool) -> None:
        """Training is over. left: so is the job, and the tensor's memory is its own; else it gets
        some."""


class Placed(Segment):
    def __init__(self, job: Job, name: str, tensor: Any, order: list):
        super().__init__(name, tensor)
        self._lend(job, tensor, order)
        self._flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor.data)
        self._move(tensor)
        self.address = tensor.data_ptr()

    def _lend(self, job: Job, like: Any, order: list) -> None:
        import torch
        block = job.alloc(label(self.name, like.shape, order), like.numel())
        self._flat = torch.frombuffer(block, dtype=torch.float32)
        self._tied: List[Any] = []

    def _move(self, tensor: Any) -> None:
        tensor.data = self._flat.as_strided(tensor.shape, tensor.stride())

    def tie(self, tensor: Any) -> bool:
        whole = tensor.numel() == self.tensor.numel() and tensor.storage_offset() == 0 and \
            dense_order(tensor.shape, tensor.stride()) is not None
        if whole:
            self._tied.append(tensor)
            self._move(tensor)
        return whole

    def follow(self, tensor: Any) -> None:
        """Another look into the storage that was this one's, at any part of it, comes along."""
        self._tied.append(tensor)
        tensor.data = self._flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def release(self, left: bool) -> None:
        if self._flat is None:
            return
        own = None if left else self._flat.clone()
        for tensor in [self.tensor, *self._tied]:
            if own is not None and tensor is not None and \
                    _storage(tensor).data_ptr() == self._flat.data_ptr():
                tensor.data = own.as_strided(tensor.shape, tensor.stride(),
                                             tensor.storage_offset())
        self._flat = None


class State(Placed):
    """tensor is None until find gives one: an optimizer makes it in its first step. Until then it
    is zero, as the segment is, to which others may have added meanwhile."""

    def __init__(self, job: Job, name: str, like: Any, find: Callable[[], Any]):
        Segment.__init__(self, name, None)
        self._find = find
        self._lend(job, like, dense_order(like.shape, like.stride()))
        self._view = self._flat.as_strided(like.shape, like.stride())

    def bind(self) -> bool:
        """Whether the tensor is there; if so, it is placed."""
        tensor = self._find()
        if tensor is None:
            return False
        if tensor.is_sparse:
            raise TypeError(f"the optimizer's '{self.name}' is sparse: leave out optimizer=")
        self._view.add_(tensor)
        tensor.data = self._view.view_as(self._view)
        self.tensor, self.address = tensor, tensor.data_ptr()
        return True

    def take(self) -> None:
        """load_state_dict has put another tensor, or none, into the place of ours."""
        if self._find() is not self.tensor:
            self.tensor = self.address = None
            self._flat.zero_()

    def release(self, left: bool) -> None:
        super().release(left)
        self._view = None


class Attached(Segment):
    def __init__(self, job: Job, name: str, tensor: Any, order: list, address: int, n: int,
                 lender: Any):
        super().__init__(name, tensor)
        self.address = address
        job.attach(label(name, tensor.shape, order), address, n, lender)


def numpy_where_finite(values: Any, others: Any) -> Any:
    import numpy
    return numpy.where(numpy.isfinite(values), values, others)


class NumpyMirror(Segment):
    """push, before the library looks: what the caller has changed. pull, after it: what the library
    has changed; exact: its own bits, else what an array of doubles has beyond them stays. take: the
    array was overwritten, and is the segment's new value."""

    is_well = True

    def __init__(self, job: Job, name: str, tensor: Any):
        import numpy
        super().__init__(name, tensor)
        block = job.alloc(label(name, tensor.shape), tensor.size)
        self._mirror = numpy.frombuffer(block, numpy.float32).reshape(tensor.shape)
        self.take()

    def push(self) -> None:
        now = self.tensor.astype("f4")
        self._mirror += now - self._shown
        self._shown = now

    def pull(self, exact: bool) -> None:
        if exact or self.tensor.itemsize <= 4:
            self.tensor[...] = self._mirror
        else:
            moved = self._mirror - self.tensor.astype("f4")
            self.tensor[...] = numpy_where_finite(self.tensor + moved, self._mirror)
        self._shown = self.tensor.astype("f4")

    def take(self) -> None:
        self._shown = self.tensor.astype("f4")
        self._mirror[...] = self._shown

    def release(self, _left: bool) -> None:
        self._mirror = None


def _storage(tensor: Any) -> Any:
    return (tensor.untyped_storage if hasattr(tensor, "untyped_storage") else tensor.storage)()


def _check_tensor(name: str, tensor: Any) -> None:
    import torch
    if getattr(torch.nn.parameter, "is_lazy", lambda _: False)(tensor):
        raise ValueError(f"'{name}' has no shape yet: attach after the first batch")
    if not tensor.is_floating_point():
        raise TypeError(f"'{name}' is of {tensor.dtype}: only floating tensors are kept in step")
    if tensor.layout != torch.strided or type(tensor.data) is not torch.Tensor:
        raise TypeError(f"'{name}' is a {type(tensor.data).__name__} of {tensor.layout}: only "
                        "plain, dense tensors are kept in step")
    if any(n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride())):
        raise ValueError(f"'{name}' is expanded, several of its elements are one float: attach what it "
                         "is expanded from, or its clone()")
    if tensor.device.type == "meta":
        raise ValueError(f"'{name}' is on the device meta and has no values")


def _is_plain(tensor: Any) -> bool:
    """Whether the library can use it where it is."""
    import torch
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32 and \
        dense_order(tensor.shape, tensor.stride()) is not None


def _has_its_storage(tensor: Any) -> bool:
    """Whether nobody else uses it, as far as PyTorch knows: other processes, or NumPy (what is
    not resizable is another's, or an earlier job's; PyTorch 1.13 does not tell)."""
    storage = _storage(tensor)
    return storage.nbytes() == 4 * tensor.numel() and not tensor.is_shared() and \
        (getattr(storage, "resizable", lambda: True)() or is_block(storage.data_ptr()))


def staged(job: Job, name: str, like: Any, find: Callable[[], Any]) -> Staged:
    """Its floats lie as they do in like, unless that has gaps."""
    order = dense_order(like.shape, like.stride())
    strides = like.stride() if order is not None else \
        [math.prod(like.shape[d + 1:]) for d in range(len(like.shape))]
    return Staged(job, name, label(name, like.shape, order), like, strides, find)


def torch_segment(job: Job, name: str, tensor: Any, movable: bool) -> Any:
    if not _is_plain(tensor):
        return staged(job, name, tensor, lambda: tensor)
    order = dense_order(tensor.shape, tensor.stride())
    if movable and _has_its_storage(tensor):
        return Placed(job, name, tensor, order)
    return Attached(job, name, tensor, order, tensor.data_ptr(), tensor.numel(), tensor.detach())


def state_segment(job: Job, name: str, kept: Any, find: Callable[[], Any]) -> Any:
    """Of what an optimizer keeps for a parameter."""
    if kept.stays and _is_plain(kept.like):
        return State(job, name, kept.like, find)
    return staged(job, name, kept.like, find)


def numpy_segment(job: Job, name: str, array: Any) -> Segment:
    import numpy
    if array.dtype.kind != "f":
        raise TypeError(f"'{name}' is of {array.dtype}: only floating arrays are kept in step")
    if not array.flags.writeable:
        raise ValueError(f"'{name}' cannot be written")
    order = dense_order(array.shape, [s // array.itemsize for s in array.strides])
    if array.dtype != numpy.float32 or order is None or not array.flags.aligned:
        return NumpyMirror(job, name, array)
    return Attached(job, name, array, order, array.ctypes.data, array.size, array)


def is_torch(value: Any) -> bool:
    return any(kind.__module__.split(".")[0] == "torch" for kind in type(value).__mro__)


def storage_key(tensor: Any) -> Optional[Tuple[str, int]]:
    """place_keys' first, of a tensor that is not taken; None for what cannot be where others are
    placed."""
    import torch
    if getattr(torch.nn.parameter, "is_lazy", lambda _: False)(tensor) or \
            tensor.layout != torch.strided or tensor.device.type != "cpu" or \
            type(tensor.data) is not torch.Tensor:
        return None
    return ("storage cpu", _storage(tensor).data_ptr())


def place_keys(name: str, tensor: Any) -> List[Tuple[str, int]]:
    """What tells that two tensors are in one memory: their storage, or where they begin."""
    if not is_torch(tensor):
        if not hasattr(tensor, "ctypes"):
            raise TypeError(f"'{name}' is of {type(tensor).__name__}: only tensors and NumPy arrays "
                            "are kept in step")
        return [("array", tensor.ctypes.data)]
    _check_tensor(name, tensor)
    device = str(tensor.device)
    return [("storage " + device, _storage(tensor).data_ptr()), (device, tensor.data_ptr())]


class _Extent:
    """Where a tensor lies: on which device, from low to high, and how, in bytes."""

    def __init__(self, name: str, tensor: Any):
        self.name, self.shape = name, list(tensor.shape)
        if is_torch(tensor):
            self.device, begin, self.item = str(tensor.device), tensor.data_ptr(), \
                tensor.element_size()
            strides = [self.item * s for s in tensor.stride()]
        else:
            self.device, begin, self.item = "cpu", tensor.ctypes.data, tensor.itemsize
            strides = tensor.strides
        self.low = begin + sum((n - 1) * s for n, s in zip(self.shape, strides) if s < 0)
        self.strides = [abs(s) for s in strides]        # the same bytes, from low
        self.high = self.low + self.item + \
            sum((n - 1) * s for n, s in zip(self.shape, self.strides))


def _check_group(group: List[_Extent], torch_there: bool) -> None:
    """Of tensors whose extents overlap: each puts its number into a map of the bytes."""
    if len(group) < 2:
        return
    if torch_there:
        import torch as library
        as_strided, on_host = library.as_strided, {"device": "cpu"}
    else:
        import numpy as library
        as_strided, on_host = library.lib.stride_tricks.as_strided, {}
    low, high = group[0].low, max(e.high for e in group)
    unit = reduce(math.gcd, (n for e in group for n in (e.low - low, e.item, *e.strides)))
    owners = library.zeros((high - low) // unit, dtype=library.int32, **on_host)
    for number, e in enumerate(group, 1):
        sizes = [n if s else 1 for n, s in zip(e.shape, e.strides)] + [e.item // unit]
        steps = [s // unit for s in e.strides] + [1]
        part = owners[(e.low - low) // unit:]
        view = as_strided(part, sizes, steps, part.storage_offset()) if torch_there else \
            as_strided(part, sizes, [owners.itemsize * s for s in steps])
        if view.max() > 0:
            raise ValueError(f"'{e.name}' shares a part of its memory with "
                             f"'{group[int(view.max()) - 1].name}'")
        view[...] = number


def check_overlaps(tensors: Sequence[Tuple[str, Any]]) -> None:
    """Refuses two that have a part in common, before any is moved. Those with the same place are
    tied; those with gaps, as columns of one matrix, may lie in each other's."""
    extents = sorted((_Extent(name, tensor) for name, tensor in tensors if 0 not in tensor.shape),
                     key=lambda e: (e.device, e.low, -e.high))
    torch_there = any(is_torch(tensor) for _, tensor in tensors)
    group: List[_Extent] = []
    place, reach = None, 0
    for e in extents:
        if (e.device, e.low, e.high) == place:
            continue
        place = (e.device, e.low, e.high)
        if group and (e.device != group[0].device or e.low >= reach):
            _check_group(group, torch_there)
            group = []
        reach = max(reach, e.high) if group else e.high
        group.append(e)
    _check_group(group, torch_there)


def make_segment(job: Job, name: str, tensor: Any, movable: bool) -> Any:
    """movable: a module has it as its parameter, so that all who use it find it there."""
    if is_torch(tensor):
        return torch_segment(job, name, tensor, movable)
    return numpy_segment(job, name, tensor)


class Buffers:
    """Batch-norm statistics and their like: a segment that is zero until the end, so that no round
    changes it, and then what the mean is taken of. holders: the dict that has each, and its name
    there; a module may put another tensor into its place. Where one has Inf, as a mask, it keeps that,
    and counts as zero; with NaN the trainer is left out of the mean, as always."""

    def __init__(self, job: Job, holders: Sequence[Tuple[dict, str]]):
        import torch
        self._holders = holders
        n = sum(holder[key].numel() for holder, key in holders)
        self._flat = torch.frombuffer(job.alloc(label("buffers", [n]), n), dtype=torch.float32)

    def _parts(self) -> Any:
        tensors = [holder[key] for holder, key in self._holders]
        return zip(tensors, self._flat.split([tensor.numel() for tensor in tensors]))

    def push(self) -> None:
        for tensor, part in self._parts():
            part.copy_(tensor.detach().reshape(-1))
            part.masked_fill_(part.isinf(), 0)

    def pull(self, exact: bool) -> None:
        """Where there are others."""
        for tensor, part in self._parts() if exact else ():
            value = part.view(tensor.shape).to(tensor.device, tensor.dtype)
            tensor.data.copy_(value.where(~tensor.detach().isinf(), tensor.detach()))

    def release(self, _left: bool) -> None:
        self._flat = None
