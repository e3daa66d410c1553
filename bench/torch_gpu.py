# SPDX-License-Identifier: MIT
"""What keeping PyTorch models in step costs on a GPU; one JSON object a line, as torch_speed.py.

    torch_gpu.py [--device cpu] PART ...

    step MILLIONS SECONDS PLAN ...      sync.step() of a trainer alone with so many parameters, in a
                                        loop whose steps are 10 ms of the GPU and nothing of the host
    pairs MODEL TRAINERS PAIRS SECONDS PLAN ...
                                        so many trainers that share the GPU, under each plan and under
                                        none in turns: the ratio of their steps a second
    gradients MILLIONS TRAINERS         the mean of so many gradients, under allreduce
    memory MILLIONS PLAN ...            what attach takes of the device and of the host

MODEL: resnet, torchvision's ResNet-50 with batches of 64, copied from pinned memory in each step; gpt, that of examples/torch with 100
million parameters and batches of 8 windows of 1,024 bytes. Both compute in bfloat16 by autocast.
--device cpu has small models, to try. Nothing is asked of CUDA before the trainers are forked."""

import collections
import os
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import descant
import torch_speed          # which knows the folder of examples/torch
import gpt
from torch_speed import say

CUDA = True
AHEAD = 2       # steps that the host may be ahead of the GPU


def device():
    return torch.device("cuda" if CUDA else "cpu")


def wait():
    if CUDA:
        torch.cuda.synchronize()


def attend(self, x):
    """In place of the example's, which makes all scores at once."""
    batch, length, width = x.shape
    q, k, v = self.ask(x).view(batch, length, 3, gpt.HEADS, -1).permute(2, 0, 3, 1, 4)
    y = scaled_dot_product_attention(q, k, v, is_causal=True)
    return self.answer(y.transpose(1, 2).reshape(batch, length, width))


def made_gpt():
    gpt.Attention.forward = attend
    gpt.WINDOW, gpt.WIDTH, gpt.HEADS, gpt.LAYERS = (1024, 768, 12, 14) if CUDA else (32, 32, 2, 2)
    with device():
        model = gpt.GPT()
        data = torch.randint(256, (torch_speed.BATCHES, 8, gpt.WINDOW + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA or None)
    return model, optimizer, lambda model, k: gpt.loss_of(model, data[k % len(data)])


def made_resnet():
    if not CUDA:
        model, loss_of = torch_speed.made("resnet")
        return model, torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9), loss_of
    import torchvision
    with device():
        model = torchvision.models.resnet50().to(memory_format=torch.channels_last)
    x = torch.randn(64, 3, 224, 224).to(memory_format=torch.channels_last).pin_memory()
    y = torch.randint(1000, (64,)).pin_memory()

    def loss_of(model, _):
        images, kinds = (each.to(device(), non_blocking=True) for each in (x, y))
        return cross_entropy(model(images), kinds)
    return model, torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9), loss_of


class Loop(torch_speed.Loop):
    """On the device; the host is at most AHEAD steps ahead of it, as a loop that looks at a loss
    now and then, or a full queue would be waited for in sync.step()."""

    def __init__(self, name):
        torch.manual_seed(1)
        self.model, self.optimizer, loss_of = {"gpt": made_gpt, "resnet": made_resnet}[name]()
        self.calls, self.begun = [], collections.deque()

        def in_halves(model, k):
            with torch.autocast(device().type, torch.bfloat16):
                return loss_of(model, k)
        self.loss_of = in_halves

    def step(self, k, model, after):
        super().step(k, model, after)
        keep_near(self.begun)

    def wait(self):
        wait()


def keep_near(begun):
    if CUDA:
        begun.append(torch.cuda.Event(blocking=True))
        begun[-1].record()
        if len(begun) > AHEAD:
            begun.popleft().synchronize()


def layers(millions):
    """Of a million parameters each, and as many of a thousand."""
    return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(int(millions))]).to(device())


def alone(model, plan):
    os.environ.update(RANK="0", WORLD_SIZE="1")
    return descant.attach(model, plan=plan, job=f"shm:bench-gpu-{os.getpid()}-{time.monotonic_ns()}")


def part_step(millions, seconds, *plans):
    model = layers(millions)
    for plan in plans:
        calls, begun = [], collections.deque()
        with alone(model, plan) as sync:
            start, until = time.perf_counter(), time.perf_counter() + float(seconds)
            while time.perf_counter() < until:
                if CUDA:
                    torch.cuda._sleep(17_000_000)
                began = time.perf_counter()
                sync.step()
                calls.append(time.perf_counter() - began)
                keep_near(begun)
            took, stats = time.perf_counter() - start, sync.stats()
        calls.sort()
        say(part="gpu-step", plan=plan, millions=int(millions), steps=len(calls),
            steps_per_s=round(len(calls) / took, 1), median_us=round(1e6 * statistics.median(calls), 1),
            p99_us=round(1e6 * calls[len(calls) * 99 // 100], 1), most_us=round(1e6 * calls[-1], 1),
            share_of_time=round(sum(calls) / took, 4),
            rounds_per_s=round(stats["rounds"] / stats["wall_s"], 2),
            shadow_cpu=round(stats["shadow_cpu_s"] / stats["wall_s"], 3), budget=stats["budget"])


def part_pairs(name, trainers, n, seconds, *plans):
    said = torch_speed.of_trainers(int(trainers), lambda: Loop(name), "none", n, seconds,
                                   ("none", *plans))
    torch_speed.tell_plans(said, plans, part="gpu-pairs", model=name, trainers=int(trainers))


def averaging(rank, millions, size):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    model, took = layers(millions), []
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with descant.attach(model, plan="allreduce", job=f"shm:bench-gpu-{os.getppid()}") as sync:
        for _ in range(8):
            wait()
            start = time.perf_counter()
            sync.mean_gradients()
            wait()
            took.append(time.perf_counter() - start)
            sync.step()
    if rank == 0:
        say(part="gpu-gradients", millions=int(millions), trainers=size,
            median_ms=round(1e3 * statistics.median(took), 1),
            gb_per_s=round(4e-3 * int(millions) / statistics.median(took), 2))


def part_gradients(millions, trainers):
    torch.multiprocessing.start_processes(averaging, (millions, int(trainers)), int(trainers),
                                          start_method="fork")


def pinned():
    stats = getattr(torch.cuda, "host_memory_stats", dict)() if CUDA else {}
    return stats.get("allocated_bytes.current", 0)


def part_memory(millions, *plans):
    model = layers(millions)
    n = 4 * sum(p.numel() for p in model.parameters())
    alone(nn.Linear(4, 4).to(device()), plans[0]).close()
    for plan in plans:
        def held():
            return (torch.cuda.memory_allocated() if CUDA else 0), pinned(), torch_speed.resident()
        before, start = held(), time.perf_counter()
        sync = alone(model, plan)
        took, of_device, of_pinned, of_host = time.perf_counter() - start, *(
            round((after - b) / n, 3) for after, b in zip(held(), before))
        sync.close()
        say(part="gpu-memory", plan=plan, parameters=n, attach_s=round(took, 2),
            device_by_parameters=of_device, pinned_by_parameters=of_pinned,
            host_by_parameters=of_host, kept_by_device=held()[0] - before[0])


if __name__ == "__main__":
    torch.set_num_threads(1)
    words = sys.argv[1:]
    if words[:2] == ["--device", "cpu"]:
        CUDA, words = False, words[2:]
    {"step": part_step, "pairs": part_pairs, "gradients": part_gradients,
     "memory": part_memory}[words[0]](*words[1:])
