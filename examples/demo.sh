#!/bin/sh
# SPDX-License-Identifier: MIT
# Generates clicks, trains a DLRM on them with 2 trainers under three plans on an emulated link of
# 1 Gb/s and 1 ms, prints a table and writes a report. BUILD: where the program is; DEMO_ROWS: how
# many clicks (1000000); DEMO_DIR: where data, logs, models and the report go (build/demo), all
# together about 1.3 GB.
set -u
cd "$(dirname "$0")/.." || exit 1
descant=${BUILD:-build/gcc}/descant
rows=${DEMO_ROWS:-1000000}
dir=${DEMO_DIR:-build/demo}
mkdir -p "$dir" || exit 1

echo "generating $rows clicks"
best=$("$descant" gen ctr --rows "$rows" --seed 1 --out "$dir/clicks.tsv" 2>&1) || {
    echo "$best"
    exit 1
}
held=$("$descant" gen ctr --rows $((rows / 10)) --seed 2 --out "$dir/held.tsv" 2>&1) || exit 1
beat=$(echo "$held" | sed -n 's/.*best log loss \([0-9.]*\).*/\1/p')
guess=$(echo "$held" | sed -n 's/.*constant guess \([0-9.]*\).*/\1/p')
logs=''
for plan in none allreduce shadow-easgd; do
    echo "training under $plan"
    rm -f "$dir/$plan.safetensors"
    "$descant" train --data "$dir/clicks.tsv" --eval "$dir/held.tsv" --model dlrm --trainers 2 \
        --batch 512 --optimizer adagrad --table-optimizer adagrad --lr 0.005 --table-lr 0.02 \
        --link 1gbit,1ms --sync "$plan" --log "$dir/$plan.jsonl" \
        --checkpoint "$dir/$plan.safetensors" --eval-every $((rows / 4 + 1)) \
        >"$dir/$plan.txt" || { cat "$dir/$plan.txt"; exit 1; }
    rm -f "$dir/$plan.safetensors.previous"
    logs="$logs $dir/$plan.jsonl"
done
echo
echo "2 trainers over an emulated link of 1 Gb/s and 1 ms; sending takes no CPU there:"
echo
for plan in none allreduce shadow-easgd; do
    sed -n '$s/^/'"$plan"' /p' "$dir/$plan.jsonl"
done | awk -v beat="$beat" -v guess="$guess" '
function field(name) {
    if (!match($0, "\"" name "\":[-0-9.e+]+")) return ""
    return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3)
}
BEGIN {
    printf "%-14s %12s %10s %14s %9s %8s %8s\n", "plan", "examples/s", "loss", "held-out loss",
        "AUC", "stall", "gap"
}
{
    gap = field("gap_mean")             # none merges nothing
    printf "%-14s %12d %10.4f %14.4f %9.4f %6.2f %% %8s\n", $1, field("examples_per_s"),
        field("loss"), field("eval_loss"), field("auc"), 100 * field("stall_share"),
        gap == "" ? "-" : sprintf("%.1f", gap)
}
END {
    printf "%-38s %14.4f\n%-38s %14.4f\n", "a constant guess", guess, "the planted model", beat
}'
echo
echo "loss: while training; stall: the workers' time spent waiting; gap: steps between two merges"
echo "a constant guess: everybody clicks with the same probability"
echo "the planted model: the clicks' own probabilities; over many rows nobody beats it"
# shellcheck disable=SC2086
"$descant" report $logs -o "$dir/report.html" || exit 1
echo
echo "curves: $dir/report.html    models: $dir/*.safetensors"
echo "$dir takes $(du -sh "$dir" | cut -f1) of disk; rm -r $dir gives it back"
