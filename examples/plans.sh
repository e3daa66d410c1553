#!/bin/sh
# SPDX-License-Identifier: MIT
# Two trainers of one logistic regression under six plans, on an emulated link of 1 Gb/s and
# 1 ms: with a progress line on a terminal, and a table at the end. BUILD: where the examples
# are; DEMO_SECONDS: how long each plan trains (5).
set -u
cd "$(dirname "$0")/.." || exit 1
program=${BUILD:-build/gcc}/examples/logistic
seconds=${DEMO_SECONDS:-5}
out=$(mktemp) || exit 1
one=''
trap 'rm -f "$out"' EXIT
trap '[ -z "$one" ] || kill "$one" 2>/dev/null; exit 1' INT TERM
table=''
for plan in none allreduce dasgd shadow-easgd shadow-ma shadow-bmuf; do
    job="shm:demo-$$-$plan,rate=1gbit,rtt=1ms"
    DESCANT_PLAN=$plan RANK=1 WORLD_SIZE=2 "$program" "$job" "$seconds" >"$out" &
    one=$!
    line=$(DESCANT_PLAN=$plan RANK=0 WORLD_SIZE=2 "$program" "$job" "$seconds") || exit 1
    wait "$one" || exit 1
    one=''
    table="$table$plan $line
$plan $(cat "$out")
"
    [ -t 2 ] || echo "$plan done" >&2
done
echo "2 trainers over an emulated link of 1 Gb/s and 1 ms, $seconds s each:"
echo
printf '%s' "$table" | awk '
function field(name) {
    match($0, "\"" name "\":[-0-9.]+")
    return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3)
}
BEGIN { printf "%-14s %12s %8s %9s %8s\n", "plan", "examples/s", "loss", "stall", "gap" }
{
    plan = $1
    if (!(plan in n)) order[++plans] = plan
    n[plan]++
    speed[plan] += field("examples_per_s"); loss[plan] += field("loss")
    stall[plan] += field("stall"); gap[plan] += field("gap")
}
END {
    for (i = 1; i <= plans; i++) {
        p = order[i]
        printf "%-14s %12d %8.4f %7.2f %% %8.1f\n", p, speed[p], loss[p] / n[p],
            100 * stall[p] / n[p], gap[p] / n[p]
    }
}'
