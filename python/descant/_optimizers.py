# SPDX-License-Identifier: MIT
"""What optimizers keep for a parameter in tensors of floats, to be averaged with it.

An optimizer makes its state as it is made (Adagrad), or in its first step, but segments are
declared before. So a twin of it, of the same class, groups and attributes, makes two steps on zeros
of the parameter's shape: its state has the keys, shapes and types, and what it puts another tensor
into in each step has no lasting place."""

import collections
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

# These may have either sign. Others, as sums of squares or counts, may be meant never to fall below
# zero, where a merge that extrapolates could take them.
_SIGNED = ("momentum_buffer", "exp_avg", "grad_avg")
_WRAPS = ("accelerate", "lightning", "pytorch_lightning")      # whose step is the inner one's
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class Kept(NamedTuple):
    """like: a tensor of the state's shape, type and device. stays: whether steps write into it."""

    key: str
    like: Any
    stays: bool


def _steps(value: Any) -> bool:
    return callable(getattr(value, "step", None)) and hasattr(value, "param_groups")


def unwrapped(optimizer: Any) -> Any:
    """The optimizer inside Accelerate's and Lightning's, which may call its step alone. Others
    that wrap one, as Lookahead, still write parameters after the inner step: theirs is the step."""
    inner = optimizer
    while hasattr(inner, "optimizer") and any(base.__module__.partition(".")[0] in _WRAPS
                                              for base in type(inner).__mro__):
        inner = inner.optimizer
    if not _steps(inner):
        raise TypeError(f"a torch.optim.Optimizer is wanted, or what wraps one, not {optimizer!r}")
    return inner


def calls_hooks(optimizer: Any) -> bool:
    """Since PyTorch 2.0, in a step that torch.optim.Optimizer's __init__ has wrapped."""
    return hasattr(optimizer, "register_step_post_hook") and \
        getattr(getattr(type(optimizer), "step", None), "hooked", False)


def is_state(value: Any) -> bool:
    import torch
    return torch.is_tensor(value) and value.is_floating_point() and value.numel() > 0


def _state_on_zeros(optimizer: Any, group: Dict[str, Any], parameter: Any) -> List[Kept]:
    import torch
    kind = type(optimizer)
    zeros = torch.zeros_like(parameter.detach()).requires_grad_(True)
    zeros.grad = torch.zeros_like(zeros)
    twin = kind.__new__(kind)
    twin.__dict__.update(optimizer.__dict__)
    twin.__dict__.update({name: collections.OrderedDict() for name in _HOOKS})
    twin.state = collections.defaultdict(dict)
    twin.state[zeros] = {key: torch.zeros_like(value) if torch.is_tensor(value) else value
                         for key, value in optimizer.state.get(parameter, {}).items()}
    twin.param_groups = [{**group, "params": [zeros]}]
    try:
        kind.step(twin)
        first = dict(twin.state[zeros])
        kind.step(twin)
    except Exception as error:
        raise TypeError(f"the state of {kind.__name__} cannot be kept in step: leave out "
                        f"optimizer=. Its step on zeros says: {error}") from error
    return [Kept(key, value, value is first.get(key))
            for key, value in twin.state[zeros].items() if is_state(value)]


def kept_states(optimizer: Any, extrapolates: bool) -> Iterator[Tuple[Any, List[Kept]]]:
    """Each parameter, and what is kept for it."""
    for name, value in vars(optimizer).items():
        if value is not optimizer and _steps(value):        # a twin's step would be its step
            kind = type(optimizer).__name__
            raise TypeError(f"the state of {kind} cannot be kept in step, as it wraps another "
                            f"optimizer: give attach that one, optimizer={kind}.{name}, or leave "
                            "out optimizer=")
    for group in optimizer.param_groups:
        found: Dict[Any, List[Kept]] = {}
        for parameter in group["params"]:
            alike = (parameter.shape, parameter.stride(), parameter.dtype, parameter.device)
            if alike not in found:
                found[alike] = _state_on_zeros(optimizer, group, parameter)
            states = found[alike]
            unsigned = [kept.key for kept in states if kept.key not in _SIGNED]
            if extrapolates and unsigned:
                names = ", ".join(f"'{key}'" for key in unsigned)
                raise ValueError(f"{names} of {type(optimizer).__name__} must not fall below zero, "
                                 "as what=block and merge=delta may let it: use another plan, or "
                                 "leave out optimizer=")
            yield parameter, states


class StateOf:
    """A parameter's state, wherever the optimizer has it now."""

    def __init__(self, optimizer: Any, parameter: Any):
        self._optimizer, self._parameter = optimizer, parameter

    def get(self, key: str) -> Any:
        value = self._optimizer.state.get(self._parameter, {}).get(key)
        return value if is_state(value) else None
