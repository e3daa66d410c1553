# SPDX-License-Identifier: MIT
"""descant train with tables whose rows have owners, on hosts made of namespaces, as root: one JSON
object a line.

    python3 bench/sharded.py PART ...

speed    examples/s of a job of SHARDED_HOSTS hosts / those of as many hosts of which each trains alone,
         with tables in its memory, all at once (`ratio`), in turns, and the share of time in which
         workers waited for rows; the DLRM of bench/README.md over SHARDED_LINKS. Hosts of one machine
         share its caches and its memory, so several are slower than one also where none speaks to
         another; `ratio_idle` is beside a host alone while the others' cores are idle
quality  the held-out loss after one pass over SHARDED_CLICKS, beside one host: pairs of one seed
lockstep the same of one host whose batches are so many times as large: of what that many hosts would
         compute if each step were a sum of all their gradients, of rows, too
limit    four hosts that may use SHARDED_MB of memory each, with a table that is larger: it trains, is
         kept, and goes on from what was kept

A host is pinned to a core of its own. If there are more hosts than cores each has a quota of
SHARDED_CORES of a core (0.9 of this machine's, shared by its hosts), whose period is SHARDED_PERIOD_MS
(10, or the shortest that the kernel allows: 2.2 for 0.45 of a core): a host that has used its part
answers nobody until the next, which a slower core would not do. A run of speed is long enough that its
start weighs little: owners touch the memory of their rows for the first time while they train, a host
alone before its clock runs (a twentieth of a run of 5 s).

BUILD: where the program is (build/gcc). SHARDED_HOSTS (2 4), SHARDED_LINKS (10gbit 1gbit), SHARDED_WAYS
(--rows-wire f32;--rows-wire bf16 --rows-age 0.2), SHARDED_PAIRS (6), SHARDED_S (20: of a run),
SHARDED_CLICKS (2000000; limit: 1000000), SHARDED_ROWS (300000: of each of limit's 26 tables), SHARDED_MB
(400), SHARDED_SEEDS (5), SHARDED_FIRST_SEED (1), SHARDED_OPTIMIZERS (adaptive momentum), SHARDED_WARMUP
(0.3: of adaptive), SHARDED_PLAN (shadow-bmuf,scale=root, the program's default), SHARDED_MORE: options of
descant train, to try."""

import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

from hosts import BUILD, HOSTS, MAKER, T95, give_up, hosts, setting

PLAN = os.environ.get("SHARDED_PLAN", "shadow-bmuf,scale=root")
WAYS = os.environ.get("SHARDED_WAYS", "--rows-wire f32;--rows-wire bf16 --rows-age 0.2").split(";")
LIMITS = pathlib.Path("/sys/fs/cgroup")
OPTIMIZERS = {
    "adaptive": "--optimizer adagrad --table-optimizer adagrad --lr 0.04 --table-lr 0.1 "
                f"--warmup {setting('SHARDED_WARMUP', 0.3)}",
    "momentum": "--optimizer sgd --momentum 0.9 --lr 0.01 --table-lr 5 --schedule cosine",
}


def say(part, **row):
    shown = {k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}
    print(json.dumps({"bench": "sharded", "part": part, **shown}, separators=(",", ":")), flush=True)


# --- limits of a host ---


class Limit:
    """A cgroup, of either version, for all processes of a host."""

    def __init__(self, controller, name, **files):
        both = (LIMITS / "cgroup.controllers").exists()
        self.at = (LIMITS if both else LIMITS / controller) / f"descant-{time.time_ns()}-{name}"
        self.at.mkdir()
        self.procs = self.at / "cgroup.procs"
        for file, value in files["of_2" if both else "of_1"].items():
            (self.at / file).write_text(str(value))

    def peak_mb(self):
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            if (self.at / name).exists():
                return int((self.at / name).read_text()) / (1 << 20)
        return math.nan

    def remove(self):
        self.at.rmdir()


def quota(name, cores):
    """Of 1 ms or more, the least that the kernel allows."""
    period = max(int(setting("SHARDED_PERIOD_MS", 10.0) * 1000), math.ceil(1000 / cores))
    part = max(1000, int(cores * period))
    return Limit("cpu", name, of_2={"cpu.max": f"{part} {period}"},
                 of_1={"cpu.cfs_period_us": period, "cpu.cfs_quota_us": part})


def memory(name, mb):
    return Limit("memory", name, of_2={"memory.max": mb << 20, "memory.swap.max": 0},
                 of_1={"memory.limit_in_bytes": mb << 20})


# --- runs ---


def cores_of(ranks):
    enough = ranks <= os.cpu_count()
    return setting("SHARDED_CORES", 1.0 if enough else 0.9 * os.cpu_count() / ranks)


def begin(host, ranks, cores, port, limits, words):
    enter = "".join(f"echo $$ >{limit.procs} && " for limit in limits)
    safe = "insecure=1" if setting("SHARDED_TLS", 1) == 0 else f"secret={HOSTS}/secret"
    address = f"tcp:host0:{port},{safe}" if ranks > 1 else "self"
    variables = [f"RANK={host % ranks}", f"WORLD_SIZE={ranks}", "DESCANT_LOG=warning",
                 f"DESCANT_TLS_MODULE={BUILD}"]
    pinned = ["taskset", "-c", host % os.cpu_count()] if cores >= 1 else []
    log = HOSTS / (f"log.{host}" if ranks == 1 else "log")
    command = ["env", *variables, *pinned, BUILD / "descant", "train", "--trainers", 0, "--job", address,
               *words, "--log", log]
    with open(HOSTS / f"said.{host}", "w") as said:
        return subprocess.Popen([MAKER, "on", f"host{host}", "sh", "-c", enter + 'exec "$@"', "sh",
                                 *map(str, command)], stdout=said, stderr=said)


def said(host):
    return (HOSTS / f"said.{host}").read_text()


def train(ranks, cores, words, limits=(), fails=False, alone=1):
    """One job of so many hosts or, of one, as many at once, each for itself. The summary in the first
    host's log, with the mean of all hosts' stalls for rows, and of the jobs' examples/s; None if it failed,
    where it may."""
    for old in HOSTS.glob("log*"):
        old.unlink()
    hosts = ranks * alone
    quotas = [quota(f"cpu{host}", cores) for host in range(hosts) if cores < 1]
    port = random.randrange(20000, 30000)
    words = [*words.split(), *setting("SHARDED_MORE", "").split(), "--quiet", "--log-every", 1000]
    try:
        begun = [begin(host, ranks, cores, port, [*quotas[host:host + 1], *limits[host:host + 1]], words)
                 for host in range(hosts)]
        statuses = [process.wait(timeout=1800) for process in begun]
    finally:
        for limit in quotas:
            limit.remove()
    if any(statuses) and fails:
        return None
    if any(statuses):
        give_up(f"statuses {statuses}: " + " ".join(said(host) for host in range(hosts)))
    ends = [json.loads(line) for log in sorted(HOSTS.glob("log*")) for line in open(log)
            if '"kind":"summary"' in line]
    found = dict(ends[0])
    found["per_s"] = (found.get("job_examples_per_s") if ranks > 1 else
                      statistics.mean(end["examples_per_s"] for end in ends))
    found["stall_rows"] = statistics.mean(end.get("stall_rows", 0) for end in ends)
    return found


def clicks(name, rows, seed):
    path = HOSTS / f"{name}.tsv"
    subprocess.run([BUILD / "descant", "gen", "ctr", "--rows", str(rows), "--seed", str(seed), "--out",
                    str(path)], stderr=subprocess.DEVNULL, check=True)
    return path


def mean_within(values):
    """And the half of the interval that has it with 95 %."""
    n = len(values)
    deviation = statistics.stdev(values) if n > 1 else math.nan
    return statistics.mean(values), 2 * deviation / math.sqrt(n)


def part_speed():
    data = clicks("speed", 200000, 1)
    model = f"--data {data} --epochs 1000000 --model dlrm --batch 128 {OPTIMIZERS['adaptive']}"

    def run(k, examples, more):
        return train(k, cores, f"{model} --sync {PLAN} --tables shard {more} --examples {int(k * examples)}")

    def run_alone(hosts, examples):
        return train(1, cores, f"{model} --sync none --examples {int(examples)}", alone=hosts)

    for ranks in map(int, setting("SHARDED_HOSTS", "2 4").split()):
        cores = cores_of(ranks)
        each = run_alone(1, 40000)["per_s"] * setting("SHARDED_S", 20.0)
        for link in setting("SHARDED_LINKS", "10gbit 1gbit").split():
            for rank in range(ranks):
                hosts("link", f"host{rank}", link)
            for more in WAYS:
                ratios, of_one, stalls = [], [], []
                for pair in range(setting("SHARDED_PAIRS", 6)):
                    ways = {"job": lambda: run(ranks, each, more), "alone": lambda: run_alone(ranks, each),
                            "one": lambda: run_alone(1, each)}
                    turn = list(ways)[pair % 3:] + list(ways)[:pair % 3]
                    of = {way: ways[way]() for way in turn}
                    ratios.append(of["job"]["per_s"] / ranks / of["alone"]["per_s"])
                    of_one.append(of["job"]["per_s"] / ranks / of["one"]["per_s"])
                    stalls.append(of["job"]["stall_rows"])
                (ratio, within), (one, one_within) = mean_within(ratios), mean_within(of_one)
                say("speed", hosts=ranks, link=link, how=more, cores=cores, pairs=len(ratios),
                    alone_per_s=of["alone"]["per_s"], ratio=ratio, within=within, least=min(ratios),
                    ratio_idle=one, within_idle=one_within, stall_rows=statistics.mean(stalls),
                    cached=of["job"]["rows_cached"] / max(1, of["job"]["rows_fetched"]))


def losses(part, run):
    data, held = clicks("pass", setting("SHARDED_CLICKS", 2000000), 1), clicks("held", 200000, 2)
    first, seeds = setting("SHARDED_FIRST_SEED", 1), setting("SHARDED_SEEDS", 5)
    for name in setting("SHARDED_OPTIMIZERS", "adaptive momentum").split():
        model = f"--data {data} --eval {held} --model dlrm {OPTIMIZERS[name]} --workers 1"
        differences = {}
        for seed in range(first, first + seeds):
            one = train(1, 1, f"{model} --batch 128 --seed {seed} --sync none")["eval_loss"]
            for ranks in map(int, setting("SHARDED_HOSTS", "2 4").split()):
                end = run(ranks, f"{model} --seed {seed}")
                difference = end["eval_loss"] / one - 1
                differences.setdefault(ranks, []).append(difference)
                say("pair", optimizer=name, hosts=ranks, seed=seed, loss=one, difference=difference,
                    gap=end.get("gap_mean"))
        for ranks, found in differences.items():
            bound = (T95[min(seeds - 2, len(T95) - 1)] * statistics.stdev(found) / math.sqrt(seeds)
                     if seeds > 1 else math.nan)
            say(part, plan=PLAN if part == "quality" else "none", optimizer=name, hosts=ranks, seeds=seeds,
                difference=statistics.mean(found), difference_at_most=statistics.mean(found) + bound)


def part_quality():
    losses("quality", lambda ranks, words: train(
        ranks, cores_of(ranks), f"{words} --batch 128 --sync {PLAN} --tables shard"))


def part_lockstep():
    losses("lockstep", lambda ranks, words: train(1, 1, f"{words} --batch {128 * ranks} --sync none"))


def part_limit():
    ranks, rows, examples = 4, setting("SHARDED_ROWS", 300000), setting("SHARDED_CLICKS", 1000000)
    data, held = clicks("pass", examples, 1), clicks("held", 50000, 2)
    model = (f"--data {data} --eval {held} --model dlrm --batch 128 --rows {rows} "
             f"{OPTIMIZERS['adaptive']} --sync {PLAN} --checkpoint {HOSTS}/model --start-s 20")
    runs = [("replicate", "--tables replicate", True),
            ("shard", f"--tables shard --examples {examples // 2}", False),
            ("resumed", f"--tables shard --examples {examples} --resume", False)]
    for name, more, fails in runs:
        limits = [memory(f"mb{rank}", setting("SHARDED_MB", 400)) for rank in range(ranks)]
        try:
            end = train(ranks, cores_of(ranks), f"{model} {more}", limits, fails)
            peak = max(limit.peak_mb() for limit in limits)
        finally:
            for limit in limits:
                limit.remove()
        row = {"run": name, "hosts": ranks, "table_mb": 26 * rows * 136 / (1 << 20),
               "limit_mb": setting("SHARDED_MB", 400), "peak_mb": peak}
        if end:
            say("limit", **row, examples=end["examples"], eval_loss=end["eval_loss"])
        else:
            words = [line for rank in range(ranks) for line in said(rank).splitlines() if "memory" in line]
            say("limit", **row, said=words[-1] if words else "killed")


PARTS = {"speed": part_speed, "quality": part_quality, "lockstep": part_lockstep, "limit": part_limit}


def main():
    unknown = [name for name in sys.argv[1:] if name not in PARTS]
    if unknown or not sys.argv[1:]:
        give_up(f"there is no part '{' '.join(unknown)}': allowed: {', '.join(PARTS)}")
    if "HOSTS" not in os.environ:
        why = subprocess.run([MAKER, "missing"], stdout=subprocess.PIPE, text=True, check=True).stdout
        if why:
            give_up(why.strip())
        os.execv(MAKER, [MAKER, "with", "4", sys.executable, *sys.argv])
    (HOSTS / "secret").touch(0o600)
    with open(HOSTS / "secret", "w") as secret:
        subprocess.run([str(BUILD / "descant"), "secret"], stdout=secret, check=True)
    for name in sys.argv[1:]:
        PARTS[name]()


if __name__ == "__main__":
    main()
