# SPDX-License-Identifier: MIT
"""Trainers over TCP on hosts that come and go, made of namespaces, as root: one JSON object a line.

    python3 bench/hosts.py PART ...

kills   one host of four is killed every 5 to 20 s, and starts again 1 s later. host3 is never killed:
        it sees all kills, and its memory is that of the row
loss    the held-out loss of a DLRM after LOSS_EXAMPLES, those of killed hosts too, under such kills of
        any of the hosts up to 85 % of them, beside the same run without: pairs of one seed, in changing
        order
late    the same loss where hosts 1 to 3 are stopped at random, so that about LATE_SHARES of all arrivals
        are late, or host3 nine tenths of the time ("one"); beside the same plan without stops and without
        a quorum. `late` is the share of arrivals that missed their round
join    a third host joins two with a model of JOIN_BYTES: their steps/s meanwhile, and its time until
        its first step is done, in parts: until its process runs (process_s), the job is open, there
        is memory for the model, a first MB has come (wait_s), the last one has (transfer_s), the job
        has started, and the step is done
slow    one host of four is slow: its steps take ten times as long (steps), or it is stopped for 2 s of
        each 10 (pauses), or its link has a hundredth of the rate (link); under each plan, and where
        that can have a quorum, with quorum=3, too
cuts    groups of 1 and 1, 2 and 2, 1 and 3 hosts (the first coordinator is alone) cannot reach each
        other for CUT_S, and then can again
epoch   one pass over items that are dealt to four hosts, one of which has steps SLOWER times as long:
        steps/s of the job / the sum of what each does alone, and how much later the slow one ends
dealt   hosts but host3 are killed at random in such a pass, without slow ones, and come back: items
        that are left out, and that are done twice
leave   one of three hosts with a model of JOIN_BYTES leaves: the seconds until its steps are with the
        others, and until it is gone

A trainer of all parts but loss and late is bench/cluster/member.c: a step each 5 ms, of which it works
HOSTS_WORK_MS, so two cores are enough for four hosts; with less of it for several of these runs at once.
Steps/s are of windows of 1 s, at each tenth of a second, from a trainer's first step to its end. Starting
trainers take CPU, too: each 5 ms for which a trainer was ready to run and had no core (schedstat) counts as
a step, up to 200 a second, but not in steps_per_s_raw and least_per_s_raw.

BUILD: where the program is (build/gcc). HOSTS_PLANS: the plans, with spaces between them. HOSTS_BYTES
(4M): the model of kills and cuts. HOSTS_WORK_MS (1). HOSTS_LINK (1gbit). KILLS_MINUTES (30),
LOSS_EXAMPLES (1000000), LOSS_SEEDS (8), LOSS_FIRST_SEED (1), HOSTS_CORE (0: the first of four cores on
which trainers of loss and late run, where several of these run at once), JOIN_BYTES (1000M), JOIN_S (40: before the joiner), CUT_S (300),
LATE_SHARES (0.1 0.3 0.6 one), LATE_STOP_S (0.4: a stop, on average), SLOW_S (15), SLOW_CASES (steps
pauses link), EPOCH_S (30: of the pass, at best), DEALT_KILLS (30)."""

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
import time

TOP = pathlib.Path(__file__).resolve().parents[1]
BUILD = TOP / os.environ.get("BUILD", "build/gcc")
MAKER = str(TOP / "tests/cluster/hosts")
HOSTS = pathlib.Path(os.environ.get("HOSTS", "/nowhere"))
LINK = os.environ.get("HOSTS_LINK", "1gbit")
RATE = {"gbit": 1e9, "mbit": 1e6}
STEP_MS = 5
EACH = 20                           # steps of an item that is dealt
EPOCH = ("ma,every=40,quorum=3 dasgd-delta,every=40,delay=20,quorum=3 "
         "diloco,every=200,quorum=3 shadow-easgd,gap=40 shadow-bmuf,gap=40")
SLOWER, PAUSED_S, PAUSE_EACH_S = 10, 2, 10
SHADOW = "shadow-ma,gap=40 shadow-easgd,gap=40"      # a round each 0.2 s: four hosts have two cores
DELAYED = "dasgd-delta,every=40,delay=40"
T95 = [6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771,
       1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725]      # one-sided, for 1, 2, ... degrees


def setting(name, default):
    return type(default)(os.environ.get(name, default))


def bytes_of(text):
    return int(float(text.rstrip("KMG")) * {"K": 1e3, "M": 1e6, "G": 1e9}.get(text[-1], 1))


def give_up(text):
    sys.exit(f"bench: {text}")


def hosts(*words):
    subprocess.run([MAKER, *map(str, words)], check=True)


def say(part, **row):
    shown = {k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}
    print(json.dumps({"bench": "hosts", "part": part, **shown}, separators=(",", ":")), flush=True)


# --- trainers ---


class Life:
    """A process of a rank, from its start to its end, with what it has said."""

    def __init__(self, job, rank, number):
        self.rank, self.number, self.began_ms, self.ended_ms = rank, number, now_ms(), None
        self.said = HOSTS / f"said.{rank}.{number}"
        self.log = HOSTS / f"log.{rank}.{number}"
        variables = [f"RANK={rank}", f"WORLD_SIZE={job.size}", "DESCANT_LOG=warning",
                     f"DESCANT_JOB=tcp:host0:7000,secret={HOSTS}/secret", f"DESCANT_TLS_MODULE={BUILD}"]
        with open(self.said, "w") as said, open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [MAKER, "on", f"host{rank}", "env", *variables, *job.command(rank, number)],
                stdout=said, stderr=log)

    def lines(self):
        return whole_lines(self.said)

    def last(self):
        lines = whole_lines(self.said, 4096)
        return lines[-1] if lines else None

    def started_ms(self):
        """When the job had let it in; None: it has not, or the process died before."""
        first = self.lines()[:1]
        return first[0]["ms"] if first else None

    def stepped_ms(self):
        """When its first step was done, or None."""
        last = self.last()
        return last and (last["stepped_ms"] or None)

    def kill(self):
        self.ended_ms = now_ms()
        self.process.kill()
        self.process.wait()

    def status(self, seconds):
        """That the process ends with, once it was told to end."""
        self.ended_ms = now_ms()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return give_up(f"rank {self.rank} does not end: {self.log.read_text()}")

    def resources(self):
        """KB of memory, descriptors, threads."""
        proc = pathlib.Path(f"/proc/{self.process.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        return (int(status["VmRSS"].split()[0]), len(list((proc / "fd").iterdir())),
                int(status["Threads"]))


class Job:
    """Ranks 0 to size - 1, each on the host of its number, all their processes, and what those were
    seen to have: (life, seconds, KB of memory, descriptors, threads)."""

    def __init__(self, size, command):
        self.size, self.command, self.lives, self.seen = size, command, [], []
        for rank in range(size):
            self.start(rank)

    def start(self, rank):
        self.lives.append(Life(self, rank, len(self.lives)))
        return self.lives[-1]

    def living(self):
        return [life for life in self.lives if life.ended_ms is None]

    def check(self):
        for life in self.living():
            if life.process.poll() is not None:
                give_up(f"rank {life.rank} has ended by itself: {life.log.read_text()}")

    def wait(self, seconds, true, what):
        """Until true of every living trainer's last line; how long that took, in seconds."""
        began = time.monotonic()
        while True:
            self.check()
            last = [life.last() for life in self.living()]
            if all(last) and all(true(line) for line in last):
                return time.monotonic() - began
            if time.monotonic() - began > seconds:
                give_up(f"{what}: {last}; " + " ".join(l.log.read_text() for l in self.living()))
            time.sleep(0.05)

    def together(self, seconds, rounds=0):
        """All living trainers know of each other, and have merged more rounds than these."""
        n = len(self.living())
        return self.wait(seconds, lambda l: l["members"] == n and l["rounds"] > rounds,
                         f"{n} trainers do not come together in {seconds} s")

    def rest(self, seconds):
        """Looks at all of them each second."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.check()
            for life in self.living():
                self.seen.append((life, time.monotonic(), *life.resources()))
            time.sleep(max(0, min(1, until - time.monotonic())))

    def finish(self):
        living = self.living()
        for life in living:
            life.process.terminate()
        return [life.status(60) for life in living]


def now_ms():
    return time.monotonic() * 1e3


def whole_lines(path, most=None):
    """The objects of a file of JSON lines, or those in its last bytes; not what is torn."""
    with open(path, "rb") as file:
        if most:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        return [json.loads(line) for line in file.read().splitlines()
                if line.startswith(b"{") and line.endswith(b"}")]


def member(plan, size, slow_rank=None):
    return lambda rank, number: [str(HOSTS / "member"), plan, str(size),
                                 str(setting("HOSTS_WORK_MS", 1.0)),
                                 str(STEP_MS * (SLOWER if rank == slow_rank else 1))]


def one_model(job):
    return len({life.last()["hash"] for life in job.lives if life.last()["kind"] == "end"}) == 1


# --- figures ---


def windows(life, low_ms=0, high_ms=math.inf):
    """Within those times, for each line a second after the first: its time, the steps/s of the second
    before it, and the same with the time in which it had no core."""
    lines = [l for l in life.lines() if l["kind"] != "end" and low_ms <= l["ms"] <= high_ms]
    found, first = [], 0
    for line in lines:
        while first + 1 < len(lines) and line["ms"] - lines[first + 1]["ms"] >= 1000:
            first += 1
        took_ms, steps = (line[key] - lines[first][key] for key in ("ms", "steps"))
        queued_ms = (line["queued_ns"] - lines[first]["queued_ns"]) / 1e6
        if took_ms >= 1000:
            fed = min(1e3 * (steps + queued_ms / STEP_MS) / took_ms, 1e3 / STEP_MS)
            found.append((line["ms"], fed, 1e3 * steps / took_ms))
    return found


def below_half_s(found):
    longest = since = 0
    for ms, per_s, _ in found:
        since = (since or ms) if per_s < 1e3 / STEP_MS / 2 else 0
        longest = max(longest, ms - since + 1000 if since else 0)
    return longest / 1e3


def speed(lives, low_ms=0, high_ms=math.inf):
    """Of these trainers: median, least and mean of the windows' steps/s, the longest below half."""
    found = [windows(life, low_ms, high_ms) for life in lives]
    rates, raw = ([line[k] for each in found for line in each] or [math.nan] for k in (1, 2))
    return {"steps_per_s": statistics.median(rates), "least_per_s": min(rates),
            "mean_per_s": statistics.mean(rates),
            "below_half_s": max(below_half_s(each) for each in found),
            "steps_per_s_raw": statistics.median(raw), "least_per_s_raw": min(raw),
            "mean_per_s_raw": statistics.mean(raw)}


def grown(life, key, low_ms, high_ms):
    lines = [l for l in life.lines() if low_ms <= l["ms"] <= high_ms]
    return lines[-1][key] - lines[0][key] if lines else 0


def stall_ms(lives):
    return sum(life.last()["stall_ns"] for life in lives if life.last()) / 1e6


def received(host):
    """Bytes that have come to a host by its network card."""
    devices = pathlib.Path(f"/proc/{(HOSTS / f'{host}.pid').read_text().strip()}/net/dev").read_text()
    return int(next(line for line in devices.splitlines() if "eth0:" in line).split(":")[1].split()[0])


def left_behind():
    """Files in /dev/shm and in the temporary folder of each host."""
    found = 0
    for host in sorted(HOSTS.glob("host*.pid")):
        name = host.stem
        said = subprocess.run([MAKER, "on", name, "find", "/dev/shm", str(HOSTS / f"{name}.tmp"),
                               "-mindepth", "1"], stdout=subprocess.PIPE, text=True, check=True)
        found += len(said.stdout.split())
    return found


# --- the parts ---


def kill_and_start(job, chance, goes_on, victims):
    """While goes_on(); returns the lives that were started."""
    started = []
    while True:
        job.rest(chance.uniform(5, 20))
        if not goes_on():
            return started
        rank = chance.choice(victims)
        for life in job.living():
            if life.rank == rank:
                life.kill()
        job.rest(1)
        started.append(job.start(rank))


def part_kills():
    minutes = setting("KILLS_MINUTES", 30.0)
    for plan in setting("HOSTS_PLANS", f"{SHADOW} {DELAYED}").split():
        job = Job(4, member(plan, bytes_of(setting("HOSTS_BYTES", "4M"))))
        job.together(60)
        job.rest(5)
        job.seen.clear()
        job.rest(5)
        until = time.monotonic() + 60 * minutes
        started = kill_and_start(job, random.Random(plan),
                                 lambda until=until: time.monotonic() < until, [0, 1, 2])
        together_s = job.together(60)
        job.rest(5)
        witness = [seen for seen in job.seen if seen[0].rank == 3]
        statuses = job.finish()
        came = [life.started_ms() - life.began_ms for life in started if life.started_ms()] or [0]
        say("kills", plan=plan, minutes=minutes, kills=len(started), **speed(job.lives),
            stall_ms=stall_ms(job.lives), came_s=statistics.median(came) / 1e3,
            came_most_s=max(came) / 1e3, together_s=together_s,
            memory_mb=witness[0][2] / 1e3, memory_grown_mb=(witness[-1][2] - witness[0][2]) / 1e3,
            memory_grown_late_mb=(witness[-1][2] - witness[len(witness) // 2][2]) / 1e3,
            fds=witness[0][3], fds_last=witness[-1][3], fds_most=max(seen[3] for seen in job.seen),
            threads=witness[0][4], threads_last=witness[-1][4],
            threads_most=max(seen[4] for seen in job.seen), left_behind=left_behind(),
            ended_well=set(statuses) == {0}, one_model=one_model(job))


# Large enough that no run gets through the data: a loss of examples seen twice would say nothing.
LOSS_MODEL = """--model dlrm --rows 20000 --batch 128 --optimizer sgd --momentum 0.9 --lr 0.01
    --table-lr 5""".split()


def examples_seen():
    """By all processes of a run, also by those that were killed."""
    return sum(max([line.get("examples", 0) for line in whole_lines(log, 4096)] or [0])
               for log in HOSTS.glob("run.*"))


def trained(plan, seed, examples, trouble=None):
    """The held-out loss of a run, its seconds, what trouble(job, chance, goes_on) returned, and the share
    of arrivals that missed a round."""
    checkpoint = HOSTS / "model"
    for old in [*HOSTS.glob("model*"), *HOSTS.glob("run.*")]:
        old.unlink()

    def command(rank, number):
        core = (rank + setting("HOSTS_CORE", 0)) % os.cpu_count()
        return ["taskset", "-c", str(core), str(BUILD / "descant"), "train",
                "--trainers", "0", "--data", str(HOSTS / "clicks.tsv"), "--epochs", "1000000",
                "--sync", plan, "--seed", str(seed), "--checkpoint", str(checkpoint),
                "--checkpoint-every", "0", "--quiet", "--log", str(HOSTS / f"run.{number}"),
                "--log-every", "0.25", *LOSS_MODEL]

    job, began = Job(4, command), time.monotonic()
    met = trouble and trouble(job, random.Random(seed), lambda: examples_seen() < 0.85 * examples)
    while examples_seen() < examples or not all(
            [*HOSTS.glob(f"run.{life.number}"), *HOSTS.glob(f"run.{life.number}.*")]
            for life in job.living()):
        job.rest(0.1)
    seconds = time.monotonic() - began
    statuses = job.finish()
    if set(statuses) != {128 + signal.SIGTERM}:
        give_up(f"{plan}, seed {seed}: statuses {statuses}: " +
                " ".join(life.log.read_text() for life in job.lives))
    said = subprocess.run([str(BUILD / "descant"), "eval", "--checkpoint", str(checkpoint), "--data",
                           str(HOSTS / "held.tsv"), "--json"], stdout=subprocess.PIPE, check=True)
    lines = [line for log in HOSTS.glob("run.*") for line in whole_lines(log)
             if line["kind"] == "interval"]
    missed, made = (sum(line.get(key) or 0 for line in lines) for key in ("missed", "rounds"))
    return json.loads(said.stdout)["loss"], seconds, met, missed / max(1, missed + made)


def make_clicks(examples):
    for name, rows, seed in (("clicks", 2 * examples, 1), ("held", 200000, 2)):
        subprocess.run([str(BUILD / "descant"), "gen", "ctr", "--rows", str(rows), "--seed", str(seed),
                        "--out", str(HOSTS / f"{name}.tsv")], stderr=subprocess.DEVNULL, check=True)


def say_losses(part, plan, examples, trouble, calm_plan=None, **row):
    """Of runs with trouble beside those of the same seed without, in changing order."""
    seeds, first, pairs = setting("LOSS_SEEDS", 8), setting("LOSS_FIRST_SEED", 1), []
    for seed in range(first, first + seeds):
        of = {}
        for troubled in (seed % 2 == 0, seed % 2 == 1):
            of[troubled] = (trained(plan, seed, examples, trouble) if troubled else
                            trained(calm_plan or plan, seed, examples))
        pairs.append((of[True], of[False]))
        say("pair", of=part, plan=plan, **row, seed=seed, late=of[True][3], met=of[True][2],
            loss=of[False][0], seconds=of[False][1], difference=of[True][0] / of[False][0] - 1)
    ratios = [a[0] / b[0] - 1 for a, b in pairs]
    deviation = statistics.stdev(ratios) if seeds > 1 else math.nan
    bound = T95[min(seeds - 2, len(T95) - 1)] * deviation / math.sqrt(seeds)
    say(part, plan=plan, examples=examples, seeds=seeds, **row, met=sum(a[2] for a, _ in pairs),
        late=statistics.mean(a[3] for a, _ in pairs),
        loss=statistics.mean(b[0] for _, b in pairs),
        time_ratio=statistics.mean(a[1] / b[1] for a, b in pairs), difference=statistics.mean(ratios),
        difference_most=max(ratios), deviation=deviation,
        difference_at_most=statistics.mean(ratios) + bound)


def part_loss():
    def kills(job, chance, goes_on):
        return len(kill_and_start(job, chance, goes_on, range(4)))

    examples = setting("LOSS_EXAMPLES", 1000000)
    make_clicks(examples)
    for plan in setting("HOSTS_PLANS", f"shadow-ma shadow-easgd {DELAYED}").split():
        say_losses("loss", plan, examples, kills)


LATE = ("ma,every=20,quorum=2,grace=0.5x dasgd-delta,every=20,delay=10,quorum=2,grace=0.5x "
        "diloco,every=20,quorum=2,grace=0.5x easgd,every=20")


def stops_of(share):
    """Stops of hosts, each about LATE_STOP_S long: how many there were."""
    ranks, stopped = ([3], 0.9) if share == "one" else ([1, 2, 3], float(share) * 4 / 3)
    if not 0 < stopped < 1:
        give_up(f"LATE_SHARES: {share} is not 'one', nor above 0 and below 0.75")
    mean_s = setting("LATE_STOP_S", 0.4)

    def stops(job, chance, goes_on):
        def next_of(stops_now):
            mean = mean_s if stops_now else mean_s * (1 - stopped) / stopped
            return time.monotonic() + mean * chance.uniform(0.5, 1.5)

        lives = {life.rank: life for life in job.living()}
        turn = {rank: [next_of(False), False] for rank in ranks}
        n = 0
        while goes_on():
            job.check()
            time.sleep(max(0, min(at for at, _ in turn.values()) - time.monotonic()))
            for rank, (at, is_stopped) in turn.items():
                if time.monotonic() >= at:
                    lives[rank].process.send_signal(signal.SIGCONT if is_stopped else signal.SIGSTOP)
                    n += not is_stopped
                    turn[rank] = [next_of(not is_stopped), not is_stopped]
        for rank in ranks:
            lives[rank].process.send_signal(signal.SIGCONT)
        return n

    return stops


def part_late():
    examples = setting("LOSS_EXAMPLES", 1000000)
    make_clicks(examples)
    for share in setting("LATE_SHARES", "0.1 0.3 0.6 one").split():
        for plan in setting("HOSTS_PLANS", LATE).split():
            say_losses("late", plan, examples, stops_of(share), re.sub(",(quorum|grace)=[^,]*", "", plan),
                       share=share)


def warm(size):
    """Uses so much memory once, in huge pages as the trainers do. The host of a virtual machine gives
    it memory when that is first used, at a tenth of the speed of the machine's own kernel."""
    subprocess.run([sys.executable, "-c", f"""if True:
        import mmap
        memory = mmap.mmap(-1, {size}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, {size}, 4096):
            memory[at] = 1"""], check=True)


def part_join():
    size = bytes_of(setting("JOIN_BYTES", "1000M"))
    bytes_s = 8 * size / (float(LINK[:-4]) * RATE[LINK[-4:]])
    for plan in setting("HOSTS_PLANS", SHADOW).split():
        job = Job(2, member(plan, size))
        founders = job.living()
        job.together(300)
        began_ms = now_ms()
        job.rest(setting("JOIN_S", 40.0))
        warm(4 * size)
        joiner, come = job.start(2), [(now_ms(), received("host2"))]
        while not joiner.stepped_ms():
            job.rest(0.02)
            come.append((now_ms(), received("host2")))
        start, came_ms = joiner.lines()[0], joiner.stepped_ms()
        came_bytes = max(n for ms, n in come if ms <= start["ms"]) - come[0][1]
        first_ms, last_ms = (next(ms for ms, n in come if n - come[0][1] >= least)
                             for least in (min(1e6, came_bytes), came_bytes - 1e6))
        rounds = max(life.last()["rounds"] for life in founders)
        round_s = job.wait(300, lambda l, was=rounds: l["rounds"] > (was if l["rank"] < 2 else 0),
                           "no round with the joiner")
        moments = [joiner.began_ms, start["main_ms"], start["opened_ms"], start["memory_ms"], first_ms,
                   last_ms, start["ms"], came_ms]
        names = ["process_s", "open_s", "memory_s", "wait_s", "transfer_s", "settle_s", "step_s"]
        parts = {name: (b - a) / 1e3 for name, a, b in zip(names, moments, moments[1:])}
        came_s = (came_ms - joiner.began_ms) / 1e3
        before, meanwhile = (speed(founders, a, b) for a, b in ((began_ms, joiner.began_ms),
                                                                (joiner.began_ms, came_ms)))
        memory_mb = max(seen[2] for seen in job.seen) / 1e3
        job.finish()
        say("join", plan=plan, link=LINK, bytes=size,
            ratio=meanwhile["mean_per_s"] / before["mean_per_s"],
            ratio_raw=meanwhile["mean_per_s_raw"] / before["mean_per_s_raw"], **meanwhile,
            before_per_s=before["steps_per_s"], before_least_per_s=before["least_per_s"],
            came_s=came_s, bytes_s=bytes_s, came_to_bytes=came_s / bytes_s, **parts,
            queued_s=start["queued_ns"] / 1e9,
            came_to_model=came_bytes / size,
            rounds_until=rounds, round_after_s=round_s, stall_ms=stall_ms(job.lives), memory_mb=memory_mb,
            one_model=one_model(job))


def part_leave():
    size = bytes_of(setting("JOIN_BYTES", "1000M"))
    for plan in setting("HOSTS_PLANS", f"{SHADOW} {DELAYED}").split():
        job = Job(3, member(plan, size))
        job.together(300)
        job.rest(setting("JOIN_S", 40.0))
        leaver = job.lives[1]
        leaver.ended_ms = now_ms()
        leaver.process.send_signal(signal.SIGUSR1)
        leaver.process.wait(120)
        left = [line for line in leaver.lines() if line["kind"] == "left"]
        gone_s = (now_ms() - leaver.ended_ms) / 1e3
        job.rest(20)
        ended = [life.last() for life in job.living()]
        job.finish()
        say("leave", plan=plan, link=LINK, bytes=size, gone_s=gone_s,
            left_s=left and (left[0]["ms"] - left[0]["told_ms"]) / 1e3, why=left and left[0]["why"],
            steps=[line["steps"] for line in ended], rounds=[line["rounds"] for line in ended])


CUTS = {"1/1": (2, [1]), "2/2": (4, [2, 3]), "1/3": (4, [0])}


def part_cuts():
    cut_s, dead_s = setting("CUT_S", 300.0), 10
    for plan in setting("HOSTS_PLANS", SHADOW).split():
        for groups, (n, apart) in CUTS.items():
            job = Job(n, member(plan, bytes_of(setting("HOSTS_BYTES", "4M"))))
            job.together(60)
            job.rest(5)
            cut_ms = now_ms()
            hosts("split", *[f"host{rank}" for rank in apart])
            job.rest(cut_s)
            rounds = max(life.last()["rounds"] for life in job.living())
            healed_ms = now_ms()
            for rank in apart:
                hosts("heal", f"host{rank}")
            merged_s = job.together(120, 0)
            after = {life.rank: life.last()["rounds"] for life in job.living()}
            merged_s += job.wait(60, lambda l, after=after: l["rounds"] > after[l["rank"]], "no round")
            quiet_ms = cut_ms + 1e3 * (dead_s * 9 / 8 + 2)      # an epoch is found by then
            made = [sum(grown(l, "rounds", quiet_ms, healed_ms) for l in job.living()
                        if (l.rank in apart) == side) for side in (False, True)]
            figures = speed(job.lives, cut_ms, healed_ms)
            stalled = sum(grown(life, "stall_ns", cut_ms, now_ms()) for life in job.lives) / 1e6
            job.finish()
            say("cuts", plan=plan, groups=groups, cut_s=cut_s, **figures, stall_ms=stalled,
                rounds_together=rounds, rounds_in_cut=made[0], rounds_in_cut_apart=made[1],
                merged_s=merged_s, one_model=one_model(job))


SLOW = ("ma,every=40 dasgd,every=40,delay=20 dasgd-delta,every=40,delay=20 diloco,every=40 "
        "shadow-easgd,gap=40 shadow-ma,gap=40 shadow-bmuf,gap=40 shadow-delta,gap=40")


def pause(life, seconds):
    os.kill(life.process.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(life.process.pid, signal.SIGCONT)


def part_slow():
    seconds = setting("SLOW_S", 15.0)
    plans = [plan + quorum for plan in setting("HOSTS_PLANS", SLOW).split()
             for quorum in ("", ",quorum=3")
             if not (quorum and ("easgd" in plan or "quorum" in plan))]
    for case in setting("SLOW_CASES", "steps pauses link").split():
        alone = {"steps": 1 / SLOWER, "pauses": 1 - PAUSED_S / PAUSE_EACH_S, "link": 1}[case]
        for plan in plans:
            job = Job(4, member(plan, bytes_of(setting("HOSTS_BYTES", "4M")),
                                3 if case == "steps" else None))
            job.together(60)
            if case == "link":
                number = float(LINK[:-4]) * RATE[LINK[-4:]] / 100
                hosts("link", "host3", f"{number / 1e6:g}mbit")
            job.rest(3)
            began = {life.rank: life.last() for life in job.living()}
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if case == "pauses":
                    pause(job.living()[3], PAUSED_S)
                    time.sleep(max(0, min(PAUSE_EACH_S - PAUSED_S, until - time.monotonic())))
                else:
                    job.rest(1)
            ended = {life.rank: life.last() for life in job.living()}
            rates = []
            for rank in range(4):
                a, b = began[rank], ended[rank]
                queued = (b["queued_ns"] - a["queued_ns"]) / 1e6 / STEP_MS * (alone if rank == 3 else 1)
                own = alone if rank == 3 else 1
                rates.append(min((b["steps"] - a["steps"] + queued) * STEP_MS / (b["ms"] - a["ms"]), own))
            hosts("link", "host3", LINK)
            job.finish()
            say("slow", case=case, plan=plan, job_to_alone=sum(rates) / (3 + alone),
                others=sum(rates[:3]) / 3, slow_one=rates[3] / alone,
                rounds_per_s=1e3 * (ended[0]["rounds"] - began[0]["rounds"]) /
                (ended[0]["ms"] - began[0]["ms"]),
                missed=ended[3]["missed"] - began[3]["missed"],
                merged=job.lives[3].last()["merged"] / max(job.lives[3].last()["steps"], 1),
                one_model=one_model(job))


def dealt(plan, items, slow_rank=None):
    """Trainers that are dealt items of EACH steps."""
    of = member(plan, bytes_of(setting("HOSTS_BYTES", "4M")), slow_rank)
    return lambda rank, number: [*of(rank, number), str(items), str(EACH)]


def items_of(job):
    """(rank, item, ms) of each item that a trainer says it has done."""
    return [(line["rank"], line["item"], line["ms"]) for life in job.lives
            for line in life.lines() if line["kind"] == "item"]


def ends_of(job):
    """Waits until all end by themselves; how many items rank 3 knows of."""
    for life in job.living():
        if life.process.wait(600) != 0:
            give_up(f"rank {life.rank}: {life.log.read_text()}")
    known = [line for life in job.lives for line in life.lines() if line["kind"] == "known"]
    return known[-1]["done"] if known else 0


def part_epoch():
    for plan in setting("HOSTS_PLANS", EPOCH).split():
        speed_of_all = (3 + 1 / SLOWER) * 1e3 / STEP_MS
        items = round(setting("EPOCH_S", 30.0) * speed_of_all / EACH)
        job = Job(4, dealt(plan, items, 3))
        known, done = ends_of(job), items_of(job)
        began = min(life.lines()[0]["ms"] for life in job.lives)
        last = {rank: max((ms for r, _, ms in done if r == rank), default=math.nan)
                for rank in range(4)}
        say("epoch", plan=plan, items=items, known=known, twice=len(done) - items,
            job_to_alone=items * EACH / speed_of_all / ((max(last.values()) - began) / 1e3),
            share_of_slow=sum(r == 3 for r, _, _ in done) / items * speed_of_all / 1e3 *
            STEP_MS * SLOWER, slow_item_s=EACH * STEP_MS * SLOWER / 1e3,
            slow_ends_later_s=(last[3] - max(last[rank] for rank in range(3))) / 1e3)


def part_dealt():
    """Kills of random hosts, but host3, in an epoch."""
    kills = setting("DEALT_KILLS", 30)
    for plan in setting("HOSTS_PLANS", f"{SHADOW} {DELAYED}").split():
        chance, met = random.Random(plan), 0
        items = round((2.5 * kills + 10) * 4e3 / STEP_MS / EACH)
        job = Job(4, dealt(plan, items))
        job.wait(60, lambda line: line["kind"] == "item" or line["steps"] > 0, "nobody begins")
        while met < kills and len({item for _, item, _ in items_of(job)}) < 0.9 * items:
            time.sleep(chance.uniform(0.5, 2.5))
            rank = chance.randrange(3)
            for life in job.living():
                if life.rank == rank:
                    life.kill()
            met += 1
            job.start(rank)
        known, done = ends_of(job), items_of(job)
        say("dealt", plan=plan, items=items, kills=met, known=known,
            left_out=items - len({item for _, item, _ in done}),
            twice=len(done) - len({item for _, item, _ in done}))


PARTS = {"epoch": part_epoch, "dealt": part_dealt, "kills": part_kills, "loss": part_loss, "late": part_late, "join": part_join, "leave": part_leave,
         "slow": part_slow, "cuts": part_cuts}


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
    subprocess.run(["cc", "-O2", "-I", str(TOP / "include"), str(TOP / "bench/cluster/member.c"),
                    str(BUILD / "libdescant.a"), "-o", str(HOSTS / "member"), "-pthread", "-ldl", "-lm"],
                   check=True)
    for rank in range(4):
        hosts("link", f"host{rank}", LINK)
    for name in sys.argv[1:]:
        PARTS[name]()


if __name__ == "__main__":
    main()
