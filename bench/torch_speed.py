# SPDX-License-Identifier: MIT
"""What keeping PyTorch models in step costs; one JSON object a line. bench/torch.sh calls it.

    torch_speed.py pairs MODEL LINK PAIRS SECONDS PLAN ...
                two trainers of one thread each, under each plan and under none in turns: the
                ratio of their steps a second, a line for each plan
    torch_speed.py ranks MODEL PAIRS SECONDS PLAN ...
                this rank of two that mpirun has started, the same; BENCH_FOLDER: common to both
    torch_speed.py ddp|local MODEL PAIRS SECONDS
                this rank of two, under PyTorch's DDP, or its local SGD with a mean every 8 steps,
                and alone in turns
    torch_speed.py step PLAN SECONDS    what sync.step() takes
    torch_speed.py memory PLAN          what attach takes beside the parameters

MODEL: resnet, dlrm, of examples/torch. LINK: none, or what an address takes, "rate=1gbit,rtt=1ms".
What is compared takes turns, and each round begins with the next one: a ratio is the mean, by
multiplication, of the medians of each order."""

import json
import math
import os
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples/torch"))

import torch        # noqa: E402
from torch import distributed, nn       # noqa: E402

import descant      # noqa: E402
import dlrm         # noqa: E402
import resnet       # noqa: E402

WARM, BATCHES, ROWS = 3, 8, 1000


def made(name):
    """A model, and its loss on the k-th of a few batches."""
    torch.manual_seed(1)
    if name == "dlrm":
        model = dlrm.DLRM(ROWS)
        data = [each.split(128) for each in dlrm.clicks(128 * BATCHES, ROWS, 1)]
        return model, lambda model, k: dlrm.loss_of(model, *(each[k % BATCHES] for each in data))
    model = resnet.ResNet20()
    data = [(torch.randn(32, 1, 28, 28), torch.randint(10, (32,))) for _ in range(BATCHES)]

    def loss_of(model, k):
        x, y = data[k % BATCHES]
        return nn.functional.cross_entropy(model(x), y)
    return model, loss_of


class Loop:
    """A model in training; calls: what each sync.step() took, in seconds."""

    def __init__(self, name):
        self.model, self.loss_of = made(name)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9)
        self.calls = []

    def wait(self):
        """Until all is done that was begun."""

    def step(self, k, model, after):
        self.optimizer.zero_grad()
        self.loss_of(model, k).backward()
        self.optimizer.step()
        start = time.perf_counter()
        after()
        self.calls.append(time.perf_counter() - start)

    def rate(self, seconds, after=lambda: None):
        """Steps a second, of so many seconds."""
        for k in range(WARM):
            self.step(k, self.model, after)
        self.wait()
        self.calls.clear()
        k, start = 0, time.perf_counter()
        while time.perf_counter() < start + seconds:
            self.step(k, self.model, after)
            k += 1
        self.wait()
        return k / (time.perf_counter() - start)

    def rate_of(self, steps, model, after):
        """Of so many steps."""
        for k in range(WARM):
            self.step(k, model, after)
        start = time.perf_counter()
        for k in range(steps):
            self.step(k, model, after)
        return steps / (time.perf_counter() - start)


def of_orders(ratios, n):
    """The ratio, of rounds in n orders."""
    orders = [statistics.median(ratios[k::n]) for k in range(min(n, len(ratios)))]
    return math.prod(orders) ** (1 / len(orders))


def turned(kinds, k):
    k %= len(kinds)
    return kinds[k:] + kinds[:k]


def say(**figures):
    print(json.dumps({"bench": "torch", **figures}), flush=True)


# of Student's distribution, for 1, 2, … degrees of freedom
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20)


def interval(ratios):
    """Of 95 %, for their mean by multiplication."""
    logs = [math.log(ratio) for ratio in ratios]
    if len(logs) < 2:
        return None
    wide = T95[min(len(logs) - 1, len(T95)) - 1] * statistics.stdev(logs) / len(logs) ** 0.5
    return [round(math.exp(statistics.mean(logs) + k * wide), 4) for k in (-1, 1)]


def tell_pairs(pairs, orders, calls=(), **settings):
    ratios = [with_it / without for with_it, without in pairs]
    if calls:
        settings["step_us"] = round(1e6 * statistics.median(calls), 2)
        settings["step_p99_us"] = round(1e6 * sorted(calls)[len(calls) * 99 // 100], 2)
    say(**settings, pairs=len(pairs), ratio=round(of_orders(ratios, orders), 4),
        ratio_95=interval(ratios), ratio_least=round(min(ratios), 4), ratio_most=round(max(ratios), 4),
        steps_per_s=round(statistics.median(a for a, _ in pairs), 2),
        none_steps_per_s=round(statistics.median(b for _, b in pairs), 2))


# --- Descant ---

def rounds_of(loop, n, seconds, plans, job_of):
    """The rate under each plan of each round, what each sync.step() took, and the rounds a second
    that were merged. job_of: the address for the i-th of round k."""
    rates, calls, merged = [], {plan: [] for plan in plans}, {plan: [] for plan in plans}
    for k in range(n):
        rate = {}
        for plan in turned(plans, k):
            with descant.attach(loop.model, plan=plan, job=job_of(k, len(rate))) as sync:
                rate[plan] = loop.rate(seconds, sync.step)
                stats = sync.stats()
            merged[plan].append(stats["rounds"] / stats["wall_s"])
            calls[plan] += loop.calls
        rates.append(rate)
    return rates, calls, merged


def trainer(rank, size, make, link, n, seconds, plans, folder):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    of_link = "" if link == "none" else "," + link
    said = rounds_of(make(), n, seconds, plans,
                     lambda k, i: f"shm:bench-{os.getppid()}-{k}-{i}{of_link}")
    pathlib.Path(folder, str(rank)).write_text(json.dumps(said))


def of_trainers(size, make, link, n, seconds, plans):
    """What rounds_of has of each of so many processes, whose loop make() makes."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            trainer, (size, make, link, int(n), float(seconds), plans, folder), size,
            start_method="fork")
        return [json.loads(pathlib.Path(folder, str(rank)).read_text()) for rank in range(size)]


def tell_plans(said, plans, **settings):
    """said: what rounds_of has of each trainer."""
    (_, calls, merged), *_ = said
    rounds = [{plan: statistics.mean(each[plan] for each in of_all) for plan in of_all[0]}
              for of_all in zip(*(rates for rates, _, _ in said))]
    for plan in plans:
        tell_pairs([(each[plan], each["none"]) for each in rounds], 1 + len(plans), calls[plan],
                   plan=plan, rounds_per_s=round(statistics.median(merged[plan]), 2), **settings)


def part_pairs(name, link, n, seconds, *plans):
    said = of_trainers(2, lambda: Loop(name), link, n, seconds, ("none", *plans))
    tell_plans(said, plans, part="pairs", model=name, link=link)


def part_ranks(name, n, seconds, *plans):
    said = rounds_of(Loop(name), int(n), float(seconds), ("none", *plans), lambda k, i: "mpi")
    folder = pathlib.Path(os.environ["BENCH_FOLDER"])
    if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        (folder / "unfinished").write_text(json.dumps(said))
        (folder / "unfinished").rename(folder / "1")
        return
    while not (folder / "1").exists():
        time.sleep(0.1)
    tell_plans([said, json.loads((folder / "1").read_text())], plans, part="ranks", model=name,
               link=os.environ.get("BENCH_LINK", "none"))


def part_step(plan, seconds):
    """By itself, and between steps of training, which leave nothing of it in the caches; an empty
    function there."""
    loop, calls = Loop("resnet"), []
    with descant.attach(loop.model, plan=plan, job=f"shm:bench-{os.getpid()}") as sync:
        loop.rate(float(seconds))
        empty = loop.calls[:]
        loop.rate(float(seconds), sync.step)
        until = time.perf_counter() + float(seconds)
        while time.perf_counter() < until:
            start = time.perf_counter()
            sync.step()
            calls.append(time.perf_counter() - start)
    say(part="step", plan=plan, median_us=round(1e6 * statistics.median(calls), 2),
        in_training_us=round(1e6 * statistics.median(loop.calls), 2),
        empty_in_training_us=round(1e6 * statistics.median(empty), 2))


def resident():
    """Bytes of this process, shared ones too; a page that it maps twice is one."""
    lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines
               if line.startswith(("Pss_Anon", "Pss_Shmem")))


def part_memory(plan):
    model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(64)])
    job = f"shm:bench-{os.getpid()}"
    with descant.attach(nn.Linear(4, 4), plan=plan, job=job + "-warm"):
        before = resident()
    sync = descant.attach(model, plan=plan, job=job)
    grown = resident() - before
    say(part="memory", plan=plan, parameters=256 << 20, grown=grown,
        grown_by_parameters=round(grown / (256 << 20), 3))
    sync.close()


# --- what PyTorch has, on Gloo ---

def in_turns(part, name, n, seconds, peer_of):
    """The rate with the peer and alone; peer_of(model): the model to train, and what follows each
    step. All ranks make the same number of steps, since they wait for one another."""
    distributed.init_process_group("gloo")
    loop = Loop(name)
    alone, peer = (loop.model, lambda: None), peer_of(loop.model)
    least = torch.tensor([loop.rate_of(8, *peer) * float(seconds)])
    distributed.all_reduce(least, distributed.ReduceOp.MIN)
    pairs = []
    for pair in range(int(n)):
        rates = {}
        for kind in turned((peer, alone), pair):
            distributed.barrier()
            rates[kind] = loop.rate_of(max(int(least), 8), *kind)
        pairs.append((rates[peer], rates[alone]))
    if distributed.get_rank() == 0:
        tell_pairs(pairs, 2, part=part, model=name, link=os.environ.get("BENCH_LINK", "none"))
    distributed.barrier()       # who goes while another is in a call takes it along
    distributed.destroy_process_group()


def part_ddp(name, n, seconds):
    in_turns("ddp", name, n, seconds,
             lambda model: (nn.parallel.DistributedDataParallel(model), lambda: None))


def part_local(name, n, seconds):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    def peer_of(model):
        averager = PeriodicModelAverager(period=8, warmup_steps=0)
        return model, lambda: averager.average_parameters(model.parameters())
    in_turns("local", name, n, seconds, peer_of)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"pairs": part_pairs, "ranks": part_ranks, "ddp": part_ddp, "local": part_local, "step": part_step,
     "memory": part_memory}[sys.argv[1]](*sys.argv[2:])
