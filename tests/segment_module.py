# SPDX-License-Identifier: MIT
"""The module of test_segment_python: gives known gradients by descant_ml.py, and looks at the same
memory by the tables of docs/segment.md alone. The keeper stores version 2 when it has the first."""

import ctypes
import mmap
import os
import re
import struct
import sys
import time

import numpy

import descant_ml


def tables(path):
    fields, table = {}, None
    for line in open(path):
        heading = re.match(r"### (\w+)", line)
        if heading:
            table = fields.setdefault(heading.group(1), {})
        row = re.match(r"\| (\d+) \| (\d+)[^|]*\| (\w+)[^|]*\| `(\w+)` \|", line)
        if row:
            table[row.group(4)] = int(row.group(1)), int(row.group(2)), row.group(3)
    return fields


class Segment:
    def __init__(self, name):
        with open("/dev/shm/descant." + name, "rb") as file:
            self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.fields = tables("docs/segment.md")

    def get(self, table, name, base=0):
        at, size, kind = self.fields[table][name]
        if kind == "text":
            return self.memory[base + at:base + at + size].split(b"\0")[0].decode()
        return int.from_bytes(self.memory[base + at:base + at + size], sys.byteorder)

    def floats(self, at, n):
        return numpy.array(struct.unpack_from(f"={n}f", self.memory, at))


def expect(failure, call, *said):
    try:
        call()
    except failure as error:
        assert all(word in str(error) for word in said), str(error)
    else:
        raise AssertionError(f"no {failure.__name__}")


segment = Segment(os.environ["DESCANT_SEGMENT"])
header = {name: segment.get("Header", name) for name in segment.fields["Header"]}
ml = descant_ml.attach(wait_s=0)
descant_ml._library.descant_status_text.restype = ctypes.c_void_p
n = ml.size
assert header["magic"] == int.from_bytes(b"DESCBSP\0", sys.byteorder) and header["version"] == 1
assert (header["n"], header["slots"], header["copies"]) == (n, 2, 4)
assert header["bytes"] == len(segment.memory)
assert header["keeper"] >> 40 == os.getppid()
parts = [header["parts_at"] + 128 * i for i in range(header["n_parts"])]
assert list(ml.parts) == [segment.get("Part", "name", part) for part in parts] == ["b", "w"]
for part, where in zip(parts, ml.parts.values()):
    first = segment.get("Part", "first", part)
    assert (where.start, where.stop) == (first, first + segment.get("Part", "n", part))
slot = header["slots_at"]
assert segment.get("Slot", "owner", slot) >> 40 == os.getpid()

model, version = ml.pin()
assert version == 1 and model.dtype == numpy.float32 and (model == 1).all()
pin = segment.get("Slot", "pin", slot)
assert pin >> 16 == 1
copy = header["copies_at"] + ((pin & 0xFFFF) - 1) * header["copy_bytes"]
assert (segment.floats(copy, n) == model).all()
expect(ValueError, lambda: model.__setitem__(0, 5))
expect(ValueError, lambda: ml.add(numpy.ones(n - 1), 1), "floats")
expect(descant_ml.Error, lambda: ml.add(numpy.zeros(n), -1), "no examples")
ml.stage("w", numpy.zeros(n - 1))
expect(descant_ml.Error, lambda: ml.commit(-1), "no examples")

ml.add(numpy.arange(n), examples=4)         # float64 is taken, too
until = time.monotonic() + 30
while segment.get("Header", "newest") >> 16 != 2 and time.monotonic() < until:
    time.sleep(0.001)
assert (model == 1).all()                   # it is pinned
expect(descant_ml.Stale, lambda: ml.add(model, 1), "on version 1, the model is at 2")
model, version = ml.pin()
assert version == 2 and (model == 2).all()
bad = numpy.ones(n - 1)
bad[3] = numpy.nan
ml.stage("w", bad)
expect(descant_ml.NotFinite, lambda: ml.commit(1), "'w' has NaN at 3")
ml.stage("w", numpy.ones(n - 1))
ml.stage(slice(0, 1), [3])
ml.commit(2)
flip = segment.get("Slot", "flip", slot)
tally = slot + 256 + 64 * (flip & 3)
assert [segment.get("Tally", name, tally) for name in ("gradients", "examples")] == [1, 2]
values = segment.floats(header["sums_at"] + (flip & 3) * header["sum_bytes"], n)
assert values[0] == 6 and (values[1:] == 2).all()
assert ml.stats() == {"gradients": 2, "examples": 6, "stale": 1, "bad": 1}
for status, kind in descant_ml._FAILURES.items():
    text = ctypes.string_at(descant_ml._library.descant_status_text(status)).decode()
    assert text.lower() + "." == kind.__doc__.lower(), text
ml.detach()
assert segment.get("Slot", "owner", slot) == 0
expect(descant_ml.Error, lambda: ml.pin(), "not attached")
