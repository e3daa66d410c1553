# SPDX-License-Identifier: MIT
"""What PyTorch's optimizers keep for a parameter, in its shape, that can be averaged with it."""

from typing import Any, Dict, Iterator, List, Optional, Tuple

_ADAM = {"exp_avg": None, "exp_avg_sq": None, "max_exp_avg_sq": "amsgrad"}
# of each class: the state's keys, and which option makes an optimizer keep it
_STATES: Dict[str, Dict[str, Optional[str]]] = {
    "SGD": {"momentum_buffer": "momentum"},
    "Adam": _ADAM, "AdamW": _ADAM, "NAdam": _ADAM, "RAdam": _ADAM,
    "Adagrad": {"sum": None},
    "RMSprop": {"square_avg": None, "momentum_buffer": "momentum", "grad_avg": "centered"},
}
# sums of squares: a merge that extrapolates could take them below zero
_SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "sum", "square_avg")


def _states_of(optimizer: Any) -> Dict[str, Optional[str]]:
    for kind in type(optimizer).__mro__:
        if kind.__module__.startswith("torch.optim") and kind.__name__ in _STATES:
            return _STATES[kind.__name__]
    raise TypeError(f"the state of {type(optimizer).__name__} cannot be kept in step: optimizer= "
                    f"is one of {', '.join(_STATES)}")


def kept_states(optimizer: Any, extrapolates: bool) -> Iterator[Tuple[Any, List[str]]]:
    """Each parameter, and the keys of what is kept for it."""
    states = _states_of(optimizer)
    for group in optimizer.param_groups:
        keys = [key for key, option in states.items() if option is None or group.get(option)]
        squares = [key for key in keys if key in _SQUARES]
        if extrapolates and squares:
            raise ValueError(f"'{squares[0]}' of {type(optimizer).__name__} must not fall below "
                             "zero, as what=block and merge=delta may let it: use another plan, or "
                             "leave out optimizer=")
        for parameter in group["params"]:
            yield parameter, keys


class StateOf:
    """A parameter's state, wherever the optimizer has it now."""

    def __init__(self, optimizer: Any, parameter: Any):
        self._optimizer, self._parameter = optimizer, parameter

    def get(self, key: str) -> Any:
        return self._optimizer.state.get(self._parameter, {}).get(key)
