# SPDX-License-Identifier: MIT
"""Agreements: small values of all trainers, as bytes that the library carries.

Bytes from another trainer are read as numbers or as JSON, and never as a pickle, which could make
something run."""

import ctypes
import json
from typing import Any, List

from ._library import Error, library
from ._segments import is_torch

_MOST, _BYTES = 512, 4096       # of descant_agree_mean and descant_agree_broadcast
_JSON, _RAW = b"j", b"b"


def _floats(values: Any) -> List[float]:
    if is_torch(values):
        return values.detach().double().flatten().tolist()
    if hasattr(values, "astype"):
        return values.astype("float64").ravel().tolist()
    return [float(each) for each in values] if isinstance(values, (list, tuple)) else [float(values)]


def _like(values: Any, means: List[float]) -> Any:
    if is_torch(values):
        import torch
        kind = values.dtype if values.is_floating_point() else torch.get_default_dtype()
        return torch.tensor(means, dtype=kind, device=values.device).reshape(values.shape)
    if hasattr(values, "astype"):
        import numpy
        kind = values.dtype if values.dtype.kind == "f" else numpy.float64
        return numpy.array(means, kind).reshape(values.shape)
    return type(values)(means) if isinstance(values, (list, tuple)) else means[0]


def agreed_mean(job: Any, values: Any) -> Any:
    floats = _floats(values)
    if not 1 <= len(floats) <= _MOST:
        raise ValueError(f"mean of {len(floats)} values: 1 to {_MOST} can be agreed on; parameters "
                         "and gradients are averaged by the plan")
    room = (ctypes.c_double * len(floats))(*floats)
    job.wait_for(library.descant_agree_mean, room, len(floats))
    return _like(values, list(room))


def agreed_any(job: Any, flag: bool) -> bool:
    room = ctypes.c_int(flag)
    job.wait_for(library.descant_agree_any, ctypes.byref(room))
    return bool(room.value)


def _check_keys(value: Any) -> None:
    """JSON would make other keys strings."""
    if isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(key, str):
                raise TypeError(f"broadcast: the key {key!r} of a dict is not a string")
            _check_keys(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _check_keys(each)


def _pack(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray)):
        packed = _RAW + bytes(value)
    else:
        _check_keys(value)
        packed = _JSON + json.dumps(value, separators=(",", ":")).encode()
    return packed


def agreed_broadcast(job: Any, value: Any, from_: int, gives: bool) -> Any:
    packed = _pack(value) if gives else b""
    room = ctypes.create_string_buffer(packed, max(len(packed), _BYTES))
    n = ctypes.c_size_t(len(packed))
    try:
        job.wait_for(library.descant_agree_broadcast, room, _BYTES, ctypes.byref(n), from_)
    except Error:
        if len(packed) <= _BYTES:
            raise
        raise ValueError(f"broadcast of {len(packed) - 1} bytes: {_BYTES - 1} at most") from None
    came = room.raw[:n.value]
    return came[1:] if came[:1] == _RAW else json.loads(came[1:])
