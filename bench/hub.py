# SPDX-License-Identifier: MIT
"""A star on this machine: trainers as processes, and descant hub between them. JSON lines.

    python3 bench/hub.py PART ...

law     what a hub costs with HUB_TRAINERS trainers and a model of HUB_BYTES, each in HUB_S seconds of
        rounds as fast as they go (ma,every=1): bytes through loopback a round and trainer, both ways,
        as a part of 2 HUB_BYTES, which is the law; packets a round and trainer; the hub's CPU us a
        MB that it receives or sends. Loopback's packets have up to 64 KB
kills   the hub is killed every HUB_EACH_S for HUB_MINUTES: the trainers' longest step, the time that
        steps waited, rounds, and the longest time without one
loss    the held-out loss of descant train (DLRM, 3 trainers, LOSS_EXAMPLES) under a hub that is killed
        every HUB_EACH_S, beside the same without kills: LOSS_SEEDS pairs of one seed, in changing order

BUILD: where the program is (build/gcc). HUB_TRAINERS (2 8 32 64), HUB_BYTES (1000000), HUB_S (8),
HUB_PLAN (of kills and loss: shadow-easgd), HUB_EACH_S (30), HUB_MINUTES (20), LOSS_EXAMPLES (600000),
LOSS_SEEDS (8)."""

import json
import math
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from hosts import BUILD, T95, TOP, setting

PROGRAM = str(BUILD / "descant")
TICK = os.sysconf("SC_CLK_TCK")


def say(part, **row):
    shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
    print(json.dumps({"bench": "hub", "part": part, **shown}, separators=(",", ":")), flush=True)


class Star:
    """A hub and trainers; command(rank): a trainer's words."""

    def __init__(self, folder, size, command):
        self.folder, self.size = pathlib.Path(folder), size
        self.address = f"tcp:127.0.0.1:{random.randrange(20000, 30000)}"
        self.start_hub()
        self.trainers = []
        for rank in range(size):
            with open(self.folder / f"said.{rank}", "w") as said:
                self.trainers.append(subprocess.Popen(
                    command(rank), stdout=said, stderr=subprocess.STDOUT,
                    env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size),
                         "DESCANT_LOG": "warning",
                         "DESCANT_JOB": f"{self.address},star,ranks={size + 1}"}))

    def start_hub(self):
        with open(self.folder / "hub", "a") as log:
            self.hub = subprocess.Popen([PROGRAM, "hub", f"{self.address},ranks={self.size + 1}",
                                         "--trainers", str(self.size)],
                                        stdout=log, stderr=subprocess.STDOUT)

    def kill_hub(self):
        self.hub.kill()
        self.hub.wait()

    def lines(self, rank):
        text = (self.folder / f"said.{rank}").read_text().splitlines()
        return [json.loads(line) for line in text if line.startswith("{") and line.endswith("}")]

    def last(self, rank):
        lines = self.lines(rank)
        return lines[-1] if lines else {"rounds": 0, "members": 0}

    def together(self):
        until = time.monotonic() + 120
        while not all(self.last(k)["rounds"] > 3 for k in range(self.size)):
            if time.monotonic() > until:
                sys.exit(f"bench: no rounds: {[self.last(k) for k in range(self.size)]}")
            time.sleep(0.2)

    def finish(self):
        for trainer in self.trainers:
            trainer.send_signal(signal.SIGTERM)
        for process in [*self.trainers, self.hub]:
            process.wait(120)


def member(folder, *words):
    program = pathlib.Path(folder) / "member"
    if not program.exists():
        subprocess.run(["cc", "-O2", "-I", str(TOP / "include"), "-o", str(program),
                        str(TOP / "bench/cluster/member.c"), "-L", str(BUILD), "-ldescant",
                        f"-Wl,-rpath,{BUILD}"], check=True)
    return [str(program), *map(str, words)]


def cpu_s(pid):
    words = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / TICK


def loopback():
    """Bytes and packets that loopback has carried."""
    for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            words = line.split(":")[1].split()
            return int(words[0]), int(words[1])
    return 0, 0


def part_law():
    size = setting("HUB_BYTES", 1000000)
    with tempfile.TemporaryDirectory() as folder:
        for k in map(int, setting("HUB_TRAINERS", "2 8 32 64").split()):
            star = Star(folder, k, lambda rank: member(folder, "ma,every=1", size, 0, 1))
            star.together()
            rounds, (bytes_, packets), cpu = star.last(0)["rounds"], loopback(), cpu_s(star.hub.pid)
            began = time.monotonic()
            time.sleep(setting("HUB_S", 8.0))
            rounds = star.last(0)["rounds"] - rounds
            took = time.monotonic() - began
            bytes_, packets = (b - a for b, a in zip(loopback(), (bytes_, packets)))
            cpu = cpu_s(star.hub.pid) - cpu
            star.finish()
            say("law", trainers=k, bytes=size, rounds_per_s=rounds / took,
                bytes_of_law=bytes_ / (rounds * k * 2 * size), packets=packets / (rounds * k),
                hub_us_per_mb=cpu * 1e12 / bytes_)


def part_kills():
    plan, minutes = setting("HUB_PLAN", "shadow-easgd"), setting("HUB_MINUTES", 20.0)
    with tempfile.TemporaryDirectory() as folder:
        star = Star(folder, 4, lambda rank: member(folder, plan, 1000000, 1, 5))
        star.together()
        began, kills, longest = time.monotonic(), 0, 0.0
        while time.monotonic() - began < 60 * minutes:
            time.sleep(setting("HUB_EACH_S", 30.0) * random.uniform(0.5, 1.5))
            star.kill_hub()
            kills, dead = kills + 1, time.monotonic()
            rounds = star.last(0)["rounds"]
            time.sleep(1)
            star.start_hub()
            while star.last(0)["rounds"] <= rounds + 1:
                time.sleep(0.05)
            longest = max(longest, time.monotonic() - dead)
        star.finish()
        ends = [star.lines(k)[-1] for k in range(star.size)]
        windows = [line for line in star.lines(0) if line.get("kind") == "window"]
        gaps = [(b["steps"] - a["steps"]) / max(1e-3, (b["ms"] - a["ms"]) / 1e3)
                for a, b in zip(windows, windows[10:])]
        say("kills", plan=plan, kills=kills, without_round_s=longest,
            steps_per_s=statistics.mean(gaps), least_steps_per_s=min(gaps),
            stall_s=max(e["stall_ns"] for e in ends) / 1e9,
            rounds=[e["rounds"] for e in ends])


def held_out(folder, seed, kills):
    """The loss of a run in which the hub is killed again and again, and how often."""
    plan = setting("HUB_PLAN", "shadow-easgd")
    clicks = pathlib.Path(folder) / "clicks.tsv"
    star = Star(folder, 3, lambda rank: [
        PROGRAM, "train", "--data", str(clicks), "--eval", str(pathlib.Path(folder) / "eval.tsv"),
        "--rows", "20000", "--sync", plan, "--seed", str(seed), "--quiet"])
    n, began = 0, time.monotonic()
    while any(t.poll() is None for t in star.trainers):
        time.sleep(0.1)
        if kills and time.monotonic() - began > setting("HUB_EACH_S", 30.0):
            star.kill_hub()
            star.start_hub()
            n, began = n + 1, time.monotonic()
    try:
        star.hub.wait(10)
    except subprocess.TimeoutExpired:   # started after the last round: it waits for another job
        star.kill_hub()
    for k in range(star.size):
        found = re.search(r"held-out loss +([0-9.]+)", (star.folder / f"said.{k}").read_text())
        if found:
            return float(found.group(1)), n
    return sys.exit("bench: " + (star.folder / "said.0").read_text())


def part_loss():
    examples, seeds = setting("LOSS_EXAMPLES", 600000), setting("LOSS_SEEDS", 8)
    with tempfile.TemporaryDirectory() as folder:
        for name, rows, seed in (("clicks", examples, 1), ("eval", 50000, 2)):
            subprocess.run([PROGRAM, "gen", "ctr", "--rows", str(rows), "--seed", str(seed), "--out",
                            f"{folder}/{name}.tsv"], check=True, stdout=subprocess.DEVNULL)
        differ, n = [], 0
        for seed in range(1, seeds + 1):
            loss = {}
            for kills in (True, False) if seed % 2 else (False, True):
                loss[kills], more = held_out(folder, seed, kills)
                n += more
            differ.append(100 * (loss[True] / loss[False] - 1))
            say("pair", seed=seed, killed=loss[True], without=loss[False], differs_percent=differ[-1])
        spread = statistics.stdev(differ) if len(differ) > 1 else math.nan
        bound = (statistics.mean(differ) +
                 T95[min(len(differ) - 2, len(T95) - 1)] * spread / math.sqrt(len(differ)))
        say("loss", plan=setting("HUB_PLAN", "shadow-easgd"), pairs=len(differ), kills=n,
            mean_percent=statistics.mean(differ), deviation=spread, upper_95_percent=bound)


PARTS = {"law": part_law, "kills": part_kills, "loss": part_loss}
if not sys.argv[1:] or not set(sys.argv[1:]) <= set(PARTS):
    sys.exit(__doc__)
for name in sys.argv[1:]:
    PARTS[name]()
