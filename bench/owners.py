# SPDX-License-Identifier: MIT
"""Tables with owners, between ranks of this machine over TCP: one JSON object a line.

    python3 bench/owners.py PART ...

law     OWNERS_RANKS ranks of one worker each, as fast as they go, for OWNERS_S seconds: bytes an
        example that leave or come to a rank, as a part of the law, 2 f (2 r + 8) (k - 1) / k, where
        a row travels in r bytes; CPU us an example of workers, and of the threads that serve rows; the share of time in
        which workers waited for rows
memory  the same for ranks that have pushed to all of OWNERS_ROWS rows: MB of a rank, without what
        it has without a table, as a part of rows / k * (8 w + 8)
copies  OWNERS_BATCHES batches of each rank, from a cold start, of rows whose k-th comes with a chance
        near k^-S, in each of OWNERS_FIELDS parts of all rows. Ranks keep copies of the hottest rows
        of others, for longer than the bench takes: the share of those rows that copies serve, and
        bytes, as a part of those without copies. For each S of OWNERS_ZIPF, and OWNERS_CACHED in 100
        of all rows. These are counts, and do not depend on speed
balance rows that the busiest owner serves, as a part of the mean over OWNERS_OWNERS owners, for each
        S of OWNERS_ZIPF: the expected number, without a draw, where a batch of each rank fetches each
        of its rows once. places: "sorted", the k-th row of a field is its k-th hottest, or "hashed",
        hot rows are anywhere: the mean and the largest of OWNERS_SEEDS draws of these places

But for copies and balance, rows are drawn at random, without regard to those that a batch has twice. BUILD: where the library is
(build/gcc). OWNERS_RANKS (1 2 4 8), OWNERS_ROWS (4000000), OWNERS_WIDTH (16), OWNERS_FIELDS (26),
OWNERS_BATCH (128), OWNERS_DEPTH (4), OWNERS_WIRE (0: f32; 1: bf16; 2: q8), OWNERS_S (5),
OWNERS_ZIPF (0.8 1 1.2), OWNERS_CACHED (1 10), OWNERS_BATCHES (3000), OWNERS_OWNERS (2 4 8 16),
OWNERS_SEEDS (10)."""

import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

from hosts import BUILD, TOP, setting

SLICES = 1024               # of a table


def say(part, **row):
    shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
    print(json.dumps({"bench": "owners", "part": part, **shown}, separators=(",", ":")), flush=True)


def program(folder):
    path = pathlib.Path(folder) / "rows"
    if not path.exists():
        subprocess.run(["cc", "-O2", "-I", str(TOP / "include"), "-o", str(path),
                        str(TOP / "bench/cluster/rows.c"), "-L", str(BUILD), "-ldescant", "-lm", "-pthread",
                        f"-Wl,-rpath,{BUILD}"], check=True)
    return str(path)


def run(folder, ranks, rows, *more):
    """What each rank says at its end."""
    address = f"tcp:127.0.0.1:{random.randrange(20000, 30000)},ranks={max(2, ranks)}"
    words = [program(folder), rows, setting("OWNERS_WIDTH", 16), setting("OWNERS_FIELDS", 26),
             setting("OWNERS_BATCH", 128), setting("OWNERS_DEPTH", 4), setting("OWNERS_S", 5.0), 1,
             setting("OWNERS_WIRE", 0), *more]
    begun = [subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "RANK": str(k), "WORLD_SIZE": str(ranks),
                                   "DESCANT_LOG": "warning", "DESCANT_JOB": address})
             for k in range(ranks)]
    said = [process.communicate(timeout=600)[0] for process in begun]
    if any(process.returncode for process in begun):
        sys.exit("bench: a rank has failed")
    return [json.loads(text) for text in said]


def mean(said, key):
    return statistics.mean(one[key] for one in said)


def record():
    """Bytes of a row with Adagrad's state, with room for an id."""
    return 8 * setting("OWNERS_WIDTH", 16) + 8


def travels():
    width = setting("OWNERS_WIDTH", 16)
    return (4 * width, 2 * width, width + 4)[setting("OWNERS_WIRE", 0)]


def part_law():
    with tempfile.TemporaryDirectory() as folder:
        for ranks in map(int, setting("OWNERS_RANKS", "1 2 4 8").split()):
            said = run(folder, ranks, setting("OWNERS_ROWS", 4000000), "fill")
            law = 2 * setting("OWNERS_FIELDS", 26) * (2 * travels() + 8) * (ranks - 1) / ranks
            say("law", ranks=ranks, examples_per_s=sum(o["examples"] / o["wall_s"] for o in said),
                bytes=mean(said, "bytes"), bytes_of_law=mean(said, "bytes") / law if law else None,
                worker_us=mean(said, "worker_us"), owner_us=mean(said, "owner_us"),
                stall=mean(said, "stall"))


def part_memory():
    rows = setting("OWNERS_ROWS", 4000000)
    os.environ["OWNERS_S"] = "0.5"
    with tempfile.TemporaryDirectory() as folder:
        for ranks in map(int, setting("OWNERS_RANKS", "1 2 4 8").split()):
            without = mean(run(folder, ranks, 1000), "memory_mb")
            with_ = mean(run(folder, ranks, rows, "fill"), "memory_mb")
            say("memory", ranks=ranks, rows=rows, memory_mb=with_, without_mb=without,
                of_law=(with_ - without) * 1e6 / (rows / ranks * record()))


def part_copies():
    rows, batches = setting("OWNERS_ROWS", 4000000), setting("OWNERS_BATCHES", 3000)
    with tempfile.TemporaryDirectory() as folder:
        for ranks in map(int, setting("OWNERS_RANKS", "2").split()):
            for zipf in map(float, setting("OWNERS_ZIPF", "0.8 1 1.2").split()):
                words = [f"zipf={zipf}", f"batches={batches}"]
                without = mean(run(folder, ranks, rows, *words), "bytes")
                for part in map(float, setting("OWNERS_CACHED", "1 10").split()):
                    cached = int(rows * part / 100)
                    said = run(folder, ranks, rows, *words, "age=10000", f"cached={cached}")
                    say("copies", ranks=ranks, rows=rows, zipf=zipf, cached=cached,
                        share=mean(said, "cached") * ranks / (ranks - 1),
                        bytes_of_without=mean(said, "bytes") / without)


def chances(n, zipf):
    """Of the k-th of n rows, as bench/cluster/rows.c draws them: real numbers from 1 to n + 1 whose
    density is k^-zipf, rounded down."""
    rest = 1 - zipf
    up_to = [math.log(k) if abs(rest) < 1e-6 else (k ** rest - 1) / rest for k in range(1, n + 2)]
    return [(b - a) / up_to[-1] for a, b in zip(up_to, up_to[1:])]


def busiest(slices, owners):
    """Slices go to owners by turns (src/owners/map.c)."""
    loads = [sum(slices[owner::owners]) for owner in range(owners)]
    return max(loads) / (sum(loads) / owners)


def part_balance():
    fields, batch = setting("OWNERS_FIELDS", 26), setting("OWNERS_BATCH", 128)
    part, seeds = setting("OWNERS_ROWS", 4000000) // fields, setting("OWNERS_SEEDS", 10)
    for zipf in map(float, setting("OWNERS_ZIPF", "0.8 1 1.2").split()):
        comes = [1 - (1 - chance) ** batch for chance in chances(part, zipf)]   # in a batch
        ordered = [0.0] * SLICES
        for field in range(fields):
            for first in range(SLICES):
                ordered[(field * part + first) % SLICES] += sum(comes[first::SLICES])
        hashed = [[0.0] * SLICES for _ in range(seeds)]
        for seed, slices in enumerate(hashed):
            chance = random.Random(seed)
            for _ in range(fields):
                for load, place in zip(comes, chance.choices(range(SLICES), k=part)):
                    slices[place] += load
        for owners in map(int, setting("OWNERS_OWNERS", "2 4 8 16").split()):
            say("balance", owners=owners, zipf=zipf, places="sorted",
                most_of_mean=busiest(ordered, owners))
            draws = [busiest(slices, owners) for slices in hashed]
            say("balance", owners=owners, zipf=zipf, places="hashed",
                most_of_mean=statistics.mean(draws), largest=max(draws))


PARTS = {"law": part_law, "memory": part_memory, "copies": part_copies, "balance": part_balance}
if not sys.argv[1:] or not set(sys.argv[1:]) <= set(PARTS):
    sys.exit(__doc__)
for name in sys.argv[1:]:
    PARTS[name]()
