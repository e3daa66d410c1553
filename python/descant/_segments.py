# SPDX-License-Identifier: MIT
"""How a tensor or an array becomes a segment of floats.

    Placed      a tensor of floats that has its storage for itself: its data moves into the
                library's memory, which peers read in place; nothing is copied any more
    Attached    floats that lie in one piece, in memory that others use too, or NumPy's
    Mirror      all else: other types, other devices, floats with gaps. A segment of floats stands
                beside it. What changed in the tensor since it was last shown is added to the
                segment, which keeps what a bfloat16 would lose, and then the tensor shows that

A segment's name has the shape, and the order of dimensions where it is not the usual one: trainers
whose models differ are told by the parameter's name."""

import math
from typing import Any, List, Optional, Sequence, Tuple

from ._job import Job


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

    def push(self) -> None:
        """Before the library looks: what the caller has changed."""

    def pull(self) -> None:
        """After it: what the library has changed."""

    def take(self) -> None:
        """The tensor has been overwritten, and is the segment's new value."""

    def tie(self, tensor: Any) -> bool:
        """Another tensor begins in this one's memory; false where it has another part of it."""
        return math.prod(tensor.shape) == math.prod(self.tensor.shape)

    def release(self) -> None:
        """The tensor gets memory of its own."""


class Placed(Segment):
    def __init__(self, job: Job, name: str, tensor: Any, order: list):
        import torch
        super().__init__(name, tensor)
        data, block = tensor.data, job.alloc(label(name, tensor.shape, order), tensor.numel())
        self._flat = torch.frombuffer(block, dtype=torch.float32)
        self._tied = []
        self._move(tensor)
        tensor.data.copy_(data)
        self.address = tensor.data_ptr()

    def _move(self, tensor: Any) -> None:
        tensor.data = self._flat.as_strided(tensor.shape, tensor.stride())

    def tie(self, tensor: Any) -> bool:
        whole = tensor.numel() == self.tensor.numel() and tensor.storage_offset() == 0 and \
            dense_order(tensor.shape, tensor.stride()) is not None
        if whole:
            self._tied.append(tensor)
            self._move(tensor)
        return whole

    def release(self) -> None:
        own = self._flat.clone()
        for tensor in [self.tensor, *self._tied]:
            if tensor.data_ptr() == self.address:
                tensor.data = own.as_strided(tensor.shape, tensor.stride())
        self._flat = None


class Attached(Segment):
    def __init__(self, job: Job, name: str, tensor: Any, order: list, address: int, n: int):
        super().__init__(name, tensor)
        self.address = address
        job.attach(label(name, tensor.shape, order), address, n)


class TorchMirror(Segment):
    def __init__(self, job: Job, name: str, tensor: Any):
        import torch
        super().__init__(name, tensor)
        block = job.alloc(label(name, tensor.shape), tensor.numel())
        self._mirror = torch.frombuffer(block, dtype=torch.float32).view(tensor.shape)
        self.take()

    def _values(self) -> Any:
        import torch
        return self.tensor.data.to("cpu", torch.float32)

    def push(self) -> None:
        self._mirror.add_(self._values() - self._shown)

    def pull(self) -> None:
        self.tensor.data.copy_(self._mirror)
        self._shown = self._values().clone()

    def take(self) -> None:
        self._shown = self._values().clone()
        self._mirror.copy_(self._shown)

    def release(self) -> None:
        self._mirror = None


class NumpyMirror(Segment):
    def __init__(self, job: Job, name: str, tensor: Any):
        import numpy
        super().__init__(name, tensor)
        block = job.alloc(label(name, tensor.shape), tensor.size)
        self._mirror = numpy.frombuffer(block, numpy.float32).reshape(tensor.shape)
        self.take()

    def push(self) -> None:
        self._mirror += self.tensor.astype("f4") - self._shown

    def pull(self) -> None:
        self.tensor[...] = self._mirror
        self._shown = self.tensor.astype("f4")

    def take(self) -> None:
        self._shown = self.tensor.astype("f4")
        self._mirror[...] = self._shown

    def release(self) -> None:
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
    if tensor.device.type == "meta":
        raise ValueError(f"'{name}' is on the device meta and has no values")


def torch_segment(job: Job, name: str, tensor: Any) -> Segment:
    import torch
    order = dense_order(tensor.shape, tensor.stride())
    if tensor.device.type != "cpu" or tensor.dtype != torch.float32 or order is None:
        return TorchMirror(job, name, tensor)
    if _storage(tensor).nbytes() == 4 * tensor.numel():
        return Placed(job, name, tensor, order)
    return Attached(job, name, tensor, order, tensor.data_ptr(), tensor.numel())


def numpy_segment(job: Job, name: str, array: Any) -> Segment:
    import numpy
    if array.dtype.kind != "f":
        raise TypeError(f"'{name}' is of {array.dtype}: only floating arrays are kept in step")
    if not array.flags.writeable:
        raise ValueError(f"'{name}' cannot be written")
    order = dense_order(array.shape, [s // array.itemsize for s in array.strides])
    if array.dtype != numpy.float32 or order is None:
        return NumpyMirror(job, name, array)
    return Attached(job, name, array, order, array.ctypes.data, array.size)


def is_torch(value: Any) -> bool:
    return any(kind.__module__.split(".")[0] == "torch" for kind in type(value).__mro__)


def place_keys(name: str, tensor: Any) -> List[Tuple[str, int]]:
    """What tells that two tensors are in one memory: their storage, or where they begin."""
    if not is_torch(tensor):
        return [("array", tensor.ctypes.data)]
    _check_tensor(name, tensor)
    device = str(tensor.device)
    return [("storage " + device, _storage(tensor).data_ptr()), (device, tensor.data_ptr())]


def make_segment(job: Job, name: str, tensor: Any) -> Segment:
    return (torch_segment if is_torch(tensor) else numpy_segment)(job, name, tensor)


class Buffers:
    """Batch-norm statistics and their like: a segment that is zero until the end, so that no round
    changes it, and then what the mean is taken of."""

    def __init__(self, job: Job, tensors: Sequence[Any]):
        import torch
        self._tensors = tensors
        n = sum(tensor.numel() for tensor in tensors)
        self._flat = torch.frombuffer(job.alloc(label("buffers", [n]), n), dtype=torch.float32)

    def _parts(self) -> Any:
        sizes = [tensor.numel() for tensor in self._tensors]
        return zip(self._tensors, self._flat.split(sizes))

    def push(self) -> None:
        for tensor, part in self._parts():
            part.copy_(tensor.detach().reshape(-1))

    def pull(self) -> None:
        for tensor, part in self._parts():
            tensor.data.copy_(part.view(tensor.shape))

    def release(self) -> None:
        self._flat = None
