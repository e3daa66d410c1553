# SPDX-License-Identifier: MIT
"""The figures of bench/README.md: each a ratio or a time, taken in rounds, with its interval.

    bench/figures.py [--rounds N] [NAME ...]        rows of a table in Markdown; all where none is named
    bench/figures.py --list                         their names

A figure runs its commands in turns, and each round begins with the next one, so that what a machine does
meanwhile falls on all of them. Printed is the median of the rounds, and the least and the greatest of
them. BUILD: where the program is (build/gcc). PYTHON: one that has torch, for rows with PyTorch."""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parents[1]
BUILD = TOP / os.environ.get("BUILD", "build/gcc")
PYTHON = os.environ.get("PYTHON", sys.executable)
BENCH = [str(BUILD / "descant"), "bench"]


def mean_of(memory, size):
    return BENCH + f"exchange --what mean --memory {memory} --trainers 2 --bytes {size}".split()


def training(words):
    return BENCH + ["train", *words.split()]


ONE_CORE = ["taskset", "-c", "0"]
ALLREDUCE = ["mpirun.openmpi", "--allow-run-as-root", "--bind-to", "none", "-n", "2",
             str(BUILD / "bench/allreduce"), str(64 << 20)]
TORCH_DLRM = [*ONE_CORE, "env", "OMP_NUM_THREADS=1", PYTHON, str(TOP / "bench/peers/ddp.py")]

# name: (what is claimed, bar, commands, the figure from what each printed, how it is written)
FIGURES = {
    "mean": ("mean of 64 MiB, memory from `descant_alloc`: time of MPI_Allreduce ÷ ours", "≥ 5",
             {"ours": mean_of("shared", "64M"), "mpi": ALLREDUCE},
             lambda said: said["mpi"]["ms"] / said["ours"]["ms"], "{:.1f}"),
    "mean-bandwidth": ("the same: bytes of the vector a second ÷ what memcpy copies on one core",
                       "stated", {"ours": mean_of("shared", "64M")},
                       lambda said: said["ours"]["gb_per_s"] / said["ours"]["memcpy_gb_per_s"],
                       "{:.2f}"),
    "mean-attached": ("the same, attached memory: time of MPI_Allreduce ÷ ours", "≥ 2",
                      {"ours": mean_of("attached", "64M"), "mpi": ALLREDUCE},
                      lambda said: said["mpi"]["ms"] / said["ours"]["ms"], "{:.1f}"),
    "mean-small": ("mean of 64 KiB by `descant_mean`, µs", "≤ 60",
                   {"ours": mean_of("buffer", "64K")},
                   lambda said: 1000 * said["ours"]["ms"], "{:.0f}"),
    "elastic": ("elastic exchange of 64 MiB, ms", "stated",
                {"ours": BENCH + "exchange --what elastic --memory shared --trainers 2 "
                         "--bytes 64M".split()},
                lambda said: said["ours"]["ms"], "{:.1f}"),
    "step": ("`descant_step` under `shadow-easgd`, 1 worker, median in ns", "≤ 50",
             {"ours": BENCH + "step --plan shadow-easgd --workers 1".split()},
             lambda said: said["ours"]["p50_ns"], "{:.0f}"),
    "step-two": ("the same, 2 workers, 99 of 100 in ns", "≤ 200",
                 {"ours": BENCH + "step --plan shadow-easgd --workers 2".split()},
                 lambda said: said["ours"]["p99_ns"], "{:.0f}"),
    "segment": ("adding a gradient of 1 M floats to a segment: time in place ÷ time", "≥ 0.55",
                {"ours": BENCH + ["segment"]},
                lambda said: said["ours"]["of_in_place"], "{:.2f}"),
    "segment-large": ("the same, 16 M floats", "≥ 0.55",
                      {"ours": BENCH + "segment --bytes 64M".split()},
                      lambda said: said["ours"]["of_in_place"], "{:.2f}"),
    "pin": ("pinning a model and letting it go, 99 of 100 in ns", "≤ 1000",
            {"ours": BENCH + ["segment"]}, lambda said: said["ours"]["pin_p99_ns"], "{:.0f}"),
    "take": ("taking a sum, the next one of a read-out, ns", "≤ 1000",
             {"ours": BENCH + ["segment"]}, lambda said: said["ours"]["take_next_ns"], "{:.0f}"),
    "modules": ("gradients/s of an ML module with control beside it ÷ without, 1 M floats", "≥ 0.97",
                {"ours": BENCH + "modules --bytes 4M --pairs 8 --run-s 1".split()},
                lambda said: said["ours"]["ratio"], "{:.3f}"),
    "slow-module": ("one module 10 times slower among 4: the others' gradients/s ÷ before", "≥ 0.97",
                    {"ours": BENCH + "modules --modules 4 --slow 10 --pairs 8 --run-s 1".split()},
                    lambda said: said["ours"]["ratio"], "{:.3f}"),
    "dlrm": ("DLRM of the defaults, batch 128, one worker ÷ what sgemm alone allows", "≥ 0.85",
             {"ours": ONE_CORE + training("--batch 128")},
             lambda said: said["ours"]["examples_per_s"] / said["ours"]["bound_examples_per_s"],
             "{:.3f}"),
    "dlrm-large": ("the same, batch 512", "≥ 0.9",
                   {"ours": ONE_CORE + training("--batch 512")},
                   lambda said: (said["ours"]["examples_per_s"] /
                                 said["ours"]["bound_examples_per_s"]), "{:.3f}"),
    "dlrm-torch": ("the same, batch 128: examples/s ÷ PyTorch's", "≥ 1.4",
                   {"ours": ONE_CORE + training("--batch 128"), "torch": TORCH_DLRM},
                   lambda said: said["ours"]["examples_per_s"] / said["torch"]["examples_per_s"],
                   "{:.2f}"),
    "workers": ("DLRM, 2 workers ÷ 1", "≥ 1.85",
                {"two": training("--workers 2"), "one": training("--workers 1")},
                lambda said: said["two"]["examples_per_s"] / said["one"]["examples_per_s"],
                "{:.2f}"),
    "linear-text": ("logistic regression from text, thousand rows/s", "≥ 400",
                    {"ours": training("--model linear --input text")},
                    lambda said: said["ours"]["examples_per_s"] / 1000, "{:.0f}"),
    "linear-cache": ("the same from the cache, thousand rows/s", "≥ 800",
                     {"ours": training("--model linear")},
                     lambda said: said["ours"]["examples_per_s"] / 1000, "{:.0f}"),
    "parse": ("parsing Criteo's TSV, one thread, MB/s", "≥ 400",
              {"ours": BENCH + "parse --format criteo".split()},
              lambda said: said["ours"]["mb_per_s"], "{:.0f}"),
}
for plan in ("shadow-easgd", "shadow-ma", "shadow-bmuf"):
    FIGURES[plan] = (f"DLRM, 2 trainers, `{plan}` ÷ `none`", "≥ 0.97",
                     {"ours": training(f"--trainers 2 --sync {plan} --rounds 8 --run-s 1")},
                     lambda said: said["ours"]["efficiency"], "{:.3f}")
    FIGURES[plan + "-slow"] = (
        f"the same at 0.1 Gb/s, `{plan}`", "≥ 0.97",
        {"ours": training(f"--trainers 2 --sync {plan} --rounds 8 --run-s 1 --link 100mbit,1ms")},
        lambda said: said["ours"]["efficiency"], "{:.3f}")


def run(command):
    if command[0] != ALLREDUCE[0] and "bench" in command:
        command = [*command, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"figures: {' '.join(command)}: status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def peer_built():
    peer = pathlib.Path(ALLREDUCE[-2])
    peer.parent.mkdir(exist_ok=True)
    subprocess.run(["mpicc.openmpi", "-O2", "-o", peer, TOP / "bench/peers/allreduce.c"], check=True)


def lacks(commands):
    if ALLREDUCE in commands.values() and not shutil.which("mpicc.openmpi"):
        return "Open MPI"
    if TORCH_DLRM in commands.values() and subprocess.run(
            [PYTHON, "-c", "import torch"], stderr=subprocess.DEVNULL, check=False).returncode:
        return f"a PYTHON with torch ({PYTHON} has none)"
    return None


def row(name, rounds):
    claim, bar, commands, figure, shape = FIGURES[name]
    if lacks(commands):
        return f"| {claim} | `{name}` | {bar} | not measured: there is no {lacks(commands)} |"
    if ALLREDUCE in commands.values():
        peer_built()
    figures, names = [], list(commands)
    for k in range(rounds):
        turned = names[k % len(names):] + names[:k % len(names)]
        figures.append(figure({each: run(commands[each]) for each in turned}))
    middle, least, most = (shape.format(f(figures)) for f in (statistics.median, min, max))
    return f"| {claim} | `{name}` | {bar} | {middle} ({least} to {most}) |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in FIGURES]
    if unknown or options.rounds < 1:
        parser.error(f"no figure {', '.join(unknown)}: --list has them" if unknown
                     else "--rounds: 1 or more")
    if options.list:
        print("\n".join(FIGURES))
        return
    print("| claim | name | bar | measured |\n|---|---|---|---|")
    for name in options.names or FIGURES:
        print(row(name, options.rounds), flush=True)


if __name__ == "__main__":
    main()
