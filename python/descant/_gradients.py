# SPDX-License-Identifier: MIT
"""The mean of gradients, under the plan allreduce: by hand, or where PyTorch's DDP takes it.

DDP averages as backward ends: what the caller then does with gradients, as clipping them, or unscaling
and leaving out a step, all trainers do with the same ones. So AtBackward hooks each parameter's
AccumulateGrad node. Each that fires asks the engine for a call at the end of its backward, and the
first of these calls takes the mean of all gradients, also of those that earlier backwards have made
without exchange. Nothing is remembered from one backward to the next: one that fails calls nobody.
A backward inside another, as of checkpoint(use_reentrant=True), is averaged where it ends, and what
all have the same of is averaged once more at the end of the outer one.

All gradients are one vector, behind which each has two flags. given: some trainer has this gradient;
then all get the mean, in which a trainer without it counts as zero, and if none has it, nobody gets
one. DDP with find_unused_parameters does the same. sick: some trainer's has NaN or Inf. The library
would leave such a trainer out of the mean. With DDP all get to see it, and a GradScaler in each
leaves out the same step and lowers its scale; so the vector goes finite, and what was sick
somewhere becomes NaN everywhere. By hand (spread=False) the library does as it does elsewhere.

The vector is the host's, and pinned where some gradients are on a GPU. Training's stream copies
these; the host waits for it once, before it touches the vector itself, and so for the copies back
of the mean before, too."""

import contextlib
import math
from typing import Any, Callable, Iterator, List, Sequence, Tuple

from ._staging import floats


class Gradients:
    """Of these tensors, with their names. mean: of a vector of floats, over the trainers."""

    def __init__(self, tensors: Sequence[Tuple[str, Any]], mean: Callable[[Any], None]):
        import torch
        self._tensors, self._mean = tensors, mean
        self._sizes = [tensor.numel() for _, tensor in tensors]
        self._gpus = {tensor.device for _, tensor in tensors if tensor.device.type == "cuda"}
        self._flat = floats(sum(self._sizes) + 1 + 2 * len(tensors), pin_memory=bool(self._gpus))

    def _parts(self) -> Any:
        n = len(self._tensors)
        *parts, loss, given, sick = self._flat.split([*self._sizes, 1, n, n])
        return parts, loss, given, sick

    def _put(self, spread: bool) -> None:
        import torch
        parts, _, given, sick = self._parts()
        for (name, tensor), part in zip(self._tensors, parts):
            if tensor.grad is None:
                continue
            if tensor.grad.layout != torch.strided:
                raise TypeError(f"the gradient of '{name}' is of {tensor.grad.layout}: only dense "
                                "ones are averaged")
            part.view(tensor.shape).copy_(tensor.grad.detach(), non_blocking=True)
        for device in self._gpus:
            torch.cuda.current_stream(device).synchronize()
        are_given = [tensor.grad is not None for _, tensor in self._tensors]
        for part, is_given in zip(parts, are_given):
            if not is_given:
                part.zero_()
        given.copy_(torch.tensor(are_given, device="cpu"))
        sick.zero_()
        if spread and not math.isfinite(float(self._flat[:sum(self._sizes)].sum())):
            for k, part in enumerate(parts):
                if not bool(torch.isfinite(part).all()):
                    part.zero_()
                    sick[k] = 1

    def _take(self) -> None:
        parts, _, given, sick = self._parts()
        for (_, tensor), part, is_given, is_sick in zip(self._tensors, parts, given.tolist(),
                                                        sick.tolist()):
            if is_sick:
                part.fill_(float("nan"))
            value = part.view(tensor.shape)
            if tensor.grad is not None:
                tensor.grad.detach().copy_(value, non_blocking=True)
            elif is_given:
                tensor.grad = value.to(tensor.device, tensor.dtype, copy=True)

    def average(self, loss: float = 0.0, spread: bool = False) -> float:
        """Gradients become their mean; returned is that of the losses."""
        self._put(spread)
        _, mean_loss, _, _ = self._parts()
        mean_loss.fill_(loss)
        self._mean(self._flat)
        self._take()
        return float(mean_loss)


class AtBackward:
    """Calls average when a backward ends that has made a gradient of these tensors, as long as
    somebody wants it."""

    def __init__(self, tensors: Sequence[Any], average: Callable[[], None]):
        self._tensors, self._average = tensors, average
        self._rests = self._made = False
        self._wanted = 0
        self._nodes: List[Any] = []
        self._handles: List[Any] = []

    def want(self) -> "AtBackward":
        self._wanted += 1
        if self._wanted == 1:
            # nodes are kept: PyTorch forgets one, and its hooks, as soon as no graph has it
            self._nodes = [_accumulates(t) for t in self._tensors if t.requires_grad]
            self._handles = [node.register_hook(self._accumulated) for node in self._nodes]
        return self

    def remove(self) -> None:
        self._wanted -= 1
        if self._wanted == 0:
            for handle in self._handles:
                handle.remove()
            self._nodes, self._handles = [], []

    def _accumulated(self, *_: Any) -> None:
        import torch
        if not self._rests:
            self._made = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)

    def _backward_ends(self) -> None:
        if self._made:
            self._made = False
            self._average()

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        kept, self._rests = self._rests, True
        try:
            yield
        finally:
            self._rests = kept


def _accumulates(tensor: Any) -> Any:
    """The node that adds to tensor.grad."""
    import torch
    with torch.enable_grad():
        return tensor.view_as(tensor).grad_fn.next_functions[0][0]
