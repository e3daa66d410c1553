# SPDX-License-Identifier: MIT
"""Rounds that do not wait for everybody: which rule for members that miss a round keeps the loss.

    python3 bench/late_members.py [--full]            # numpy; a minute, --full: six

Trainers descend a noisy quadratic of 50 dimensions whose curvatures span a factor of 1,000. A round is
STEPS steps of the fastest trainer. In each round a trainer takes a snapshot at one step, and merges the
round's result at a step of the next one, so every plan is a choice of these two steps:

    wait    every=STEPS, delay=0: snapshot, and merge at once
    delay   every=STEPS, delay=d: steps go on between the two
    shadow  both steps are drawn anew in each round, for each trainer

A member that misses a round learns of its result as all others do, and its next snapshot may be in time;
one that is cut off learns nothing. Rules, for plans with an anchor (the G that a trainer took last):

    G       the mean is over all k members, and an absent one votes for G; who missed carries
            w - anchor on to the newest G (docs/members.md)
    in      the mean is over those who are in; who missed carries the same
    start   the mean is over those who are in; who missed begins at G, and its work is left out

and for plans that pull, which have no anchor:

    in      the mean is over those who are in; who missed pulls towards it as the others do
    G       an absent member votes for the last result
    alone   the mean is over those who are in; who missed pulls towards nothing

A cell is the loss at the end, over the last ten rounds, beside that of everybody on time in the same
time; the largest growth of the loss in one round; and the share of steps that was left out.
"""
import sys

import numpy as np

STEPS, ROUNDS, DIM, SEEDS = 20, 100, 50, 6
CURVES = np.logspace(-3, 0, DIM)
RATE, NOISE = 0.3, 0.3
LATE = 8                # rounds' worth of steps that a late member may bring

PLANS = {               # when, merge, alpha, eta, mu
    "bmuf / diloco, rate 1": ("wait", "anchor", 1, 1, 0),
    "diloco 0.7, 0.9": ("wait", "anchor", 1, 0.7, 0.9),
    "dasgd-delta": ("delay", "anchor", 1, 1, 0),
    "diloco-delta 0.7, 0.9": ("delay", "anchor", 1, 0.7, 0.9),
    "shadow-delta": ("shadow", "anchor", 1, 1, 0),
    "shadow block delta 0.7, 0.9": ("shadow", "anchor", 1, 0.7, 0.9),
    "dasgd, pull 0.75": ("delay", "pull", 0.75, 1, 0),
    "shadow-ma, pull 0.5": ("shadow", "pull", 0.5, 1, 0),
    "shadow-bmuf, pull 0.7": ("shadow", "pull", 0.7, 1, 0),
}
CASES = {
    "10 %": dict(miss=0.1),
    "30 %": dict(miss=0.3),
    "60 %": dict(miss=0.6),
    "1 in 10": dict(always=True),
    "slow": dict(slow=True),
    "cut": dict(cut=(20, 80)),
    "joiner": dict(joins=30),
}


def moments(when, k, rng):
    """Steps of a round at which trainers merge the last result, and take the snapshot."""
    if when == "wait":
        return np.zeros(k, int), np.full(k, STEPS)
    if when == "delay":
        return np.full(k, STEPS // 2), np.full(k, STEPS)
    return rng.integers(1, STEPS // 2, k), rng.integers(STEPS // 2, STEPS + 1, k)


class Job:
    def __init__(self, plan, rule, k, seed, miss=0, always=False, slow=False, cut=None, joins=0):
        self.when, self.merges, self.alpha, self.eta, self.mu = PLANS[plan]
        self.rule, self.k, self.miss, self.always, self.slow = rule, k, miss, always, slow
        self.cut, self.joins, self.rng = cut, joins, np.random.default_rng(seed)
        self.G = np.random.default_rng(99).normal(size=DIM) * 3
        self.s = np.zeros(DIM)
        self.w = np.tile(self.G, (k, 1))
        self.anchor, self.snap = self.w.copy(), self.w.copy()
        self.steps = np.zeros(k)            # since the anchor,
        self.snap_steps = np.zeros(k)       # and in the snapshot
        self.given = self.merged = self.left_out = 0.0
        self.owed = np.zeros(k, bool)       # a result is to be merged
        self.was_in = np.zeros(k, bool)     # its snapshot is in a result that it has not merged
        self.result = self.G.copy()

    def there(self, r):
        there = np.ones(self.k, bool)
        if self.joins and r < self.joins:
            there[-1] = False
        return there

    def lost(self, r):
        lost = np.zeros(self.k, bool)
        lost[-1] = self.cut is not None and self.cut[0] <= r < self.cut[1]
        return lost

    def step(self, i):
        noise = self.rng.normal(size=DIM) * NOISE
        self.w[i] -= RATE * (CURVES * self.w[i] + noise)
        self.steps[i] += 1
        self.given += 1

    def merge(self, i):
        self.owed[i] = False
        if self.merges == "pull":
            if self.was_in[i] or self.rule != "alone":
                self.w[i] += self.alpha * (self.result - self.w[i])
            self.was_in[i] = False
            return
        if self.was_in[i]:
            self.w[i] += self.G - self.snap[i]
            self.steps[i] -= self.snap_steps[i]
            self.was_in[i] = False
        elif self.rule == "start":
            self.left_out += self.steps[i]
            self.w[i], self.steps[i] = self.G.copy(), 0
        else:
            self.w[i] += self.G - self.anchor[i]
        self.anchor[i] = self.G.copy()

    def close(self, arrived):
        """A round of those who have arrived."""
        absent = int(self.there_now.sum()) - int(arrived.sum())
        if self.merges == "pull":
            total = self.snap[arrived].sum(0)
            n = arrived.sum()
            if self.rule == "G":
                total, n = total + absent * self.result, n + absent
            self.result = total / n
            self.G = self.result
            return
        share = np.minimum(1, LATE * STEPS / np.maximum(self.snap_steps, 1))
        delta = (self.snap - self.anchor) * share[:, None]
        n = arrived.sum() + (absent if self.rule == "G" else 0)
        b = delta[arrived].sum(0) / n
        self.merged += (share * self.snap_steps)[arrived].sum()
        self.left_out += ((1 - share) * self.snap_steps)[arrived].sum()
        self.s = self.mu * self.s + b
        self.G = self.G + self.eta * (b + self.mu * self.s if self.mu else self.s)

    def round(self, r):
        self.there_now = self.there(r)
        if self.joins == r and r:
            self.w[-1] = self.anchor[-1] = self.G.copy()
        lost = self.lost(r)
        merge_at, snap_at = moments(self.when, self.k, self.rng)
        for t in range(STEPS + 1):
            for i in np.flatnonzero(self.there_now):
                if t == merge_at[i] and self.owed[i] and not lost[i]:
                    self.merge(i)
                if t == snap_at[i] and not self.was_in[i]:      # it knows its last one's fate
                    self.snap[i], self.snap_steps[i] = self.w[i], self.steps[i]
                if t < STEPS and not (self.slow and i == 0 and t % 10):
                    self.step(i)
        arrived = self.there_now & (self.rng.random(self.k) >= self.miss) & ~lost
        if self.always:
            arrived[0] = r % 10 == 9
        if self.slow and self.when != "shadow":
            arrived[0] = r % 10 == 9
        if not arrived.any():
            return
        self.close(arrived)
        self.was_in |= arrived
        self.owed |= self.there_now

    def run(self):
        losses = []
        for r in range(ROUNDS):
            self.round(r)
            at = self.G if self.merges == "anchor" else self.w[self.there_now].mean(0)
            losses.append(0.5 * (CURVES * at * at).sum())
        if self.merges == "anchor":         # Σ merged + Σ shortened = Σ given
            held = np.where(self.was_in, self.steps - self.snap_steps, self.steps).sum()
            assert abs(self.merged + self.left_out + held - self.given) < 1e-6 * self.given
        return losses


def cell(plan, rule, k, base, case):
    losses, out = [], 0
    for seed in range(SEEDS):
        job = Job(plan, rule, k, seed, **case)
        losses.append(job.run())
        out += job.left_out / job.given / SEEDS
    losses = np.array(losses)
    growth = (losses[:, 21:] / losses[:, 20:-1]).max()
    return losses[:, -10:].mean() / base, growth, 100 * out


def main():
    full = "--full" in sys.argv[1:]
    for plan, (when, merges, *_) in PLANS.items():
        rules = ("G", "in", "start") if merges == "anchor" else ("in", "G", "alone")
        for k in (2, 4, 16) if full else (4,):
            on_time = [Job(plan, rules[0], k, seed).run() for seed in range(SEEDS)]
            base = np.array(on_time)[:, -10:].mean()
            worst = (np.array(on_time)[:, 21:] / np.array(on_time)[:, 20:-1]).max()
            print(f"{plan}, {k} trainers: on time 1, growth {worst:.2f}")
            for name, case in CASES.items():
                cells = [f"{rule:>6} " + "{:6.2f} x{:5.2f} {:3.0f} %".format(
                    *cell(plan, rule, k, base, case)) for rule in rules]
                print(f"    {name:8}" + "   ".join(cells), flush=True)


if __name__ == "__main__":
    main()
