# SPDX-License-Identifier: MIT
"""An ML module of Descant's BSP system, with NumPy.

    import descant_ml

    with descant_ml.attach() as ml:              # the segment that DESCANT_SEGMENT names
        while True:
            model, version = ml.pin()            # float32, read where it is; Ended in the end
            gradient = ...                       # the mean over the batch, at `model`
            ml.add(gradient, examples=len(batch))

Nothing here waits for anybody but attach. What is refused is an exception: Stale (the model has
moved on too far; pin again) or NotFinite, both Refused; neither is counted as a gradient. One
Module belongs to one thread at a time, and not to forked children. The arrays lie in the shared
memory of docs/segment.md; its atomic words are the C library's, the one that the package descant
finds."""

import ctypes

import numpy

from descant._library import path

_FLOATS = ctypes.POINTER(ctypes.c_float)


class Error(Exception):
    """What the library says, and its number, status."""


class Refused(Error):
    pass


class Stale(Refused):
    """The gradient is of a model that is too old."""


class NotFinite(Refused):
    """The gradient has NaN or Inf."""


class Ended(Error):
    """The job has ended."""


_FAILURES = {15: Stale, 16: NotFinite, 17: Ended}


class _Model(ctypes.Structure):
    _fields_ = [("values", _FLOATS), ("version", ctypes.c_uint64)]


class _Part(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("first", ctypes.c_size_t), ("n", ctypes.c_size_t)]


class _Stats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("gradients", "examples", "stale", "bad")]


def _load():
    library = ctypes.CDLL(path())
    ml, size, floats = ctypes.c_void_p, ctypes.c_size_t, _FLOATS
    library.descant_last_error.restype = ctypes.c_char_p
    library.descant_ml_size.restype = library.descant_ml_parts.restype = size
    library.descant_ml_attach.argtypes = [ctypes.POINTER(ml), ctypes.c_char_p, ctypes.c_double]
    library.descant_ml_part.argtypes = [ml, size, ctypes.POINTER(_Part)]
    library.descant_ml_pin.argtypes = [ml, ctypes.POINTER(_Model)]
    library.descant_ml_add.argtypes = [ml, floats, ctypes.c_uint64]
    library.descant_ml_stage.argtypes = [ml, size, floats, size]
    library.descant_ml_commit.argtypes = [ml, ctypes.c_uint64]
    library.descant_ml_stats.argtypes = [ml, ctypes.POINTER(_Stats)]
    for name in ("size", "parts", "unpin", "drop", "detach"):
        getattr(library, "descant_ml_" + name).argtypes = [ml]
    return library


_library = None


def _call(name, *arguments):
    status = getattr(_library, "descant_ml_" + name)(*arguments)
    if status != 0:
        error = _FAILURES.get(status, Error)(_library.descant_last_error().decode())
        error.status = status
        raise error


def _count(examples):
    """ctypes would make a large number of one below 0; 0 is refused."""
    return max(examples, 0)


def attach(name=None, wait_s=60):
    """Takes a slot of the segment; waits so long for a segment that is not there yet."""
    global _library
    if _library is None:
        _library = _load()
    return Module(name, wait_s)


class Module:
    """size: floats of the model. parts: {name: slice of them}, in order."""

    def __init__(self, name, wait_s):
        self._ml = ctypes.c_void_p()
        _call("attach", ctypes.byref(self._ml), name.encode() if name else None, wait_s)
        self.size = _library.descant_ml_size(self._ml)
        self.parts = {}
        for i in range(_library.descant_ml_parts(self._ml)):
            part = _Part()
            _call("part", self._ml, i, ctypes.byref(part))
            self.parts[part.name.decode()] = slice(part.first, part.first + part.n)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.detach()

    def pin(self):
        """The newest model, as a read-only array that is valid until the next pin, unpin or
        detach (copy what is to stay longer), and its version."""
        model = _Model()
        _call("pin", self._ml, ctypes.byref(model))
        values = numpy.ctypeslib.as_array(model.values, (self.size,))
        values.flags.writeable = False
        return values, model.version

    def unpin(self):
        _call("unpin", self._ml)

    def add(self, gradient, examples):
        """A gradient on the model that was pinned last: the mean over so many examples."""
        values = self._floats(gradient, self.size)
        _call("add", self._ml, values.ctypes.data_as(_FLOATS), _count(examples))

    def stage(self, part, piece):
        """A part of a gradient, by its name or as a slice of the model; commit gives them all."""
        where = self.parts[part] if isinstance(part, str) else part
        first, last, _ = where.indices(self.size)
        values = self._floats(piece, last - first)
        _call("stage", self._ml, first, values.ctypes.data_as(_FLOATS), values.size)

    def commit(self, examples):
        _call("commit", self._ml, _count(examples))

    def drop(self):
        """Forgets what is staged."""
        _call("drop", self._ml)

    def stats(self):
        """Since attach: gradients and examples committed, gradients stale and bad."""
        stats = _Stats()
        _call("stats", self._ml, ctypes.byref(stats))
        return {name: getattr(stats, name) for name, _ in _Stats._fields_}

    def detach(self):
        if self._ml:
            _call("detach", self._ml)
            self._ml = None

    @staticmethod
    def _floats(values, n):
        flat = numpy.ascontiguousarray(values, numpy.float32).reshape(-1)
        if flat.size != n:
            raise ValueError(f"{flat.size} floats, the model or part has {n}")
        return flat
