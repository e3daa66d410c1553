# SPDX-License-Identifier: MIT
"""What a plan keeps of the workers' steps: one JSON object a plan.

    python3 bench/kept.py PLAN ...

KEPT_TRAINERS trainers of this machine, over TCP on loopback, add 1 to each of KEPT_FLOATS floats every
KEPT_STEP_MS, KEPT_STEPS times. A plan that loses nothing ends at KEPT_STEPS; `kept` is what it ends at,
as a part of that. With merge=pull a trainer loses the steps that its workers make between what it gives
to a round and what it takes, so the shorter a round is beside the gap between two, the more is kept.
`gap` is in steps, `used` the first shadow's CPU, as a share of a core, and the model the mean of all
trainers'.

BUILD: where the library is (build/gcc). KEPT_TRAINERS (2), KEPT_FLOATS (500000), KEPT_STEPS (1500),
KEPT_STEP_MS (5), KEPT_CPU (0.02: the shadow's share of a core; 0.02,0.04: of each trainer's). With a
share that is given the shadow pays for its CPU alone; by default half as much again, for its cost to
workers."""

import json
import multiprocessing
import os
import random
import sys
import time

import numpy as np

from hosts import BUILD, TOP, setting

os.environ["DESCANT_LIBRARY"] = str(BUILD / "libdescant.so")
sys.path.insert(0, str(TOP / "python"))

import descant          # noqa: E402

SHARES = setting("KEPT_CPU", "0.02").split(",")
STEPS, STEP_S = setting("KEPT_STEPS", 1500), setting("KEPT_STEP_MS", 5.0) / 1000


def train(rank, ranks, plan, address):
    w = np.zeros(setting("KEPT_FLOATS", 500000), np.float32)
    with descant.attach(w, plan, address, rank=rank, size=ranks,
                        sync_cpu=float(SHARES[rank % len(SHARES)])) as sync:
        due = time.monotonic()
        for _ in range(STEPS):
            w += 1
            sync.step()
            due += STEP_S
            time.sleep(max(0, due - time.monotonic()))
        sync.finish()
        stats = sync.stats()
    if rank == 0:
        print(json.dumps({"bench": "kept", "plan": plan, "trainers": ranks, "cpu": SHARES,
                          "used": round(stats["shadow_cpu_s"] / STEPS / STEP_S, 4), "rounds": stats["rounds"],
                          "gap": round(stats["gap_mean"], 1), "kept": round(float(w.mean()) / STEPS, 4)}),
              flush=True)


def main():
    if not sys.argv[1:]:
        sys.exit(__doc__)
    ranks = setting("KEPT_TRAINERS", 2)
    for plan in sys.argv[1:]:
        address = f"tcp:127.0.0.1:{random.randrange(20000, 30000)},insecure=1"
        trainers = [multiprocessing.Process(target=train, args=(rank, ranks, plan, address))
                    for rank in range(ranks)]
        for trainer in trainers:
            trainer.start()
        for trainer in trainers:
            trainer.join()
        if any(trainer.exitcode for trainer in trainers):
            sys.exit(f"{plan}: a trainer failed")


if __name__ == "__main__":
    main()
