#!/bin/sh
# SPDX-License-Identifier: MIT
# What each plan costs in quality with PyTorch: examples/torch/resnet.py, ResNet-20 on
# Fashion-MNIST, 2 and 4 trainers under SGD with momentum and AdamW, several seeds, as many examples
# for all; and DaSGD's authors' setting, 32 trainers with batches of 32, beside minibatch SGD
# (allreduce) and local SGD (ma); and examples/torch/gpt.py, a language model, under AdamW, with as
# many bytes in a step of all trainers however many there are. Prints the tables of docs/torch.md:
# test accuracy, or loss in nats a byte, mean and deviation over the seeds; a number in brackets is
# of runs, where some are missing.
#
# A run that is done is kept in build/torch-quality and not run again, so the script may be stopped;
# `tables` as argument only prints them.
# BUILD: where the library is. PYTHON (python3). QUALITY_SEEDS ("1 2 3"), QUALITY_TRAINERS ("2 4"),
# QUALITY_SYNCS, QUALITY_OPTIMIZERS, QUALITY_EXAMPLES (60000), QUALITY_HELD (10000),
# QUALITY_EPOCHS (5), QUALITY_SMALLER (1: images as they are) and DASGD_EXAMPLES, DASGD_EPOCHS,
# DASGD_SYNCS, DASGD_SEEDS, GPT_SYNCS, GPT_EPOCHS (10), GPT_BATCH (32, of all): less, to try.
# QUALITY_WHAT ("dasgd resnet gpt").
set -u
cd "$(dirname "$0")/.." || exit 1
build=$PWD/${BUILD:-build/gcc}
python=${PYTHON:-python3}
seeds=${QUALITY_SEEDS:-1 2 3}
n_seeds=$(echo "$seeds" | wc -w)
trainers=${QUALITY_TRAINERS:-2 4}
optimizers=${QUALITY_OPTIMIZERS:-sgd adamw}
syncs=${QUALITY_SYNCS:-ddp shadow-delta shadow-easgd shadow-ma shadow-bmuf dasgd dasgd-delta \
    dasgd-delta,every=2,delay=1}
examples=${QUALITY_EXAMPLES:-60000}
held=${QUALITY_HELD:-10000}
epochs=${QUALITY_EPOCHS:-5}
smaller=${QUALITY_SMALLER:-1}
dasgd_syncs=${DASGD_SYNCS:-allreduce ma,every=4 dasgd,every=4,delay=1,xi=0.25 \
    dasgd-delta,every=4,delay=1}
dasgd_examples=${DASGD_EXAMPLES:-60000}
dasgd_epochs=${DASGD_EPOCHS:-10}
dasgd_seeds=${DASGD_SEEDS:-1}
gpt_syncs=${GPT_SYNCS:-ddp shadow-delta shadow-ma shadow-easgd dasgd-delta dasgd-delta,every=2,delay=1 \
    diloco,every=20 diloco,every=10 diloco,every=10,rate=0.7,momentum=0.9}
gpt_epochs=${GPT_EPOCHS:-10}
gpt_batch=${GPT_BATCH:-32}
what=${QUALITY_WHAT:-dasgd resnet gpt}
dir=build/torch-quality/$examples-$held-$epochs-$smaller
dasgd_dir=build/torch-quality/dasgd-$dasgd_examples-$held-$dasgd_epochs-$smaller
gpt_dir=build/torch-quality/gpt-$gpt_epochs-$gpt_batch
export DESCANT_LIBRARY="$build/libdescant.so" PYTHONPATH="$PWD/python" OMP_NUM_THREADS=1
unset RANK WORLD_SIZE DESCANT_PLAN
mkdir -p "$dir" "$dasgd_dir" "$gpt_dir" || exit 1

# 1: where its last line is kept, then the example and its settings
one() {
    [ -s "$1" ] && return
    file=$1
    shift
    said=$("$python" "$@" | tail -n 1)
    case $said in
    *'"steps_per_s"'*) echo "$said" >"$file" ;;
    *) echo "quality: $* failed" >&2 ;;
    esac
}

# The same for any number of trainers (docs/torch.md).
rate() {
    case $1 in
    sgd) echo 0.05 ;;
    adamw) echo 0.002 ;;
    esac
}

resnet() {      # as one
    file_of=$1
    shift
    one "$file_of" examples/torch/resnet.py --held "$held" --smaller "$smaller" "$@"
}

# A batch of 64 for all trainers together.
run_resnet() {
    for seed in $seeds; do
        for n in $trainers; do
            for optimizer in $optimizers; do
                for sync in $syncs; do
                    resnet "$dir/$optimizer-$sync-$n-$seed" --trainers "$n" --batch $((64 / n)) \
                        --optimizer "$optimizer" --rate "$(rate "$optimizer")" \
                        --sync "$sync" --seed "$seed" \
                        --examples "$examples" --epochs "$epochs"
                done
            done
        done
    done
}

run_dasgd() {
    for seed in $dasgd_seeds; do
        for sync in $dasgd_syncs; do
            resnet "$dasgd_dir/$sync-$seed" --trainers 32 --batch 32 --sync "$sync" --seed "$seed" \
                --examples "$dasgd_examples" --epochs "$dasgd_epochs" --rate 0.1
        done
    done
}

# The example's own rate (examples/torch/keeping.py).
run_gpt() {
    for seed in $seeds; do
        for n in $trainers; do
            for sync in $gpt_syncs; do
                one "$gpt_dir/$sync-$n-$seed" examples/torch/gpt.py --trainers "$n" \
                    --batch $((gpt_batch / n)) --optimizer adamw --sync "$sync" --seed "$seed" \
                    --epochs "$gpt_epochs"
            done
        done
    done
}

mean() {    # the figure's name, wanted number of files, these
    figure=$1
    want=$2
    shift 2
    cat "$@" 2>/dev/null | sed -n 's/.*"'"$figure"'": \([0-9.]*\).*/\1/p' | awk -v want="$want" '
    { n++; sum += $1; square += $1 * $1 }
    END {
        if (n == 0) exit
        v = square / n - (sum / n) ^ 2
        printf "%.4f ± %.4f%s", sum / n, sqrt(v > 0 ? v : 0), n < want ? " (" n ")" : ""
    }'
}

head() {        # its first columns, and the line below them
    row=$1
    rule=$2
    for n in $trainers; do
        row="$row $n trainers |"
        rule="$rule---|"
    done
    printf '%s\n%s\n' "$row" "$rule"
}

table_resnet() {
    echo "## ResNet-20: accuracy on $held images, $examples examples, $epochs epochs"
    [ "$smaller" = 1 ] || printf '\nImages are smaller by %s in both directions.\n' "$smaller"
    echo
    head '| optimizer | plan |' '|---|---|'
    for optimizer in $optimizers; do
        for sync in $syncs; do
            printf '| %s | `%s` |' "$optimizer" "$sync"
            for n in $trainers; do
                printf ' %s |' "$(mean accuracy "$n_seeds" "$dir/$optimizer-$sync-$n"-*)"
            done
            echo
        done
    done
    echo
}

table_dasgd() {
    echo "## 32 trainers, batches of 32, $dasgd_examples examples, $dasgd_epochs epochs"
    echo
    printf '| plan | accuracy |\n|---|---|\n'
    for sync in $dasgd_syncs; do
        echo "| \`$sync\` | $(mean accuracy "$(echo "$dasgd_seeds" | wc -w)" "$dasgd_dir/$sync"-*) |"
    done
    echo
}

table_gpt() {
    echo "## GPT: loss in nats a byte, AdamW, $gpt_epochs epochs, $gpt_batch windows in a step of all"
    echo
    head '| plan |' '|---|'
    for sync in $gpt_syncs; do
        printf '| `%s` |' "$sync"
        for n in $trainers; do
            printf ' %s |' "$(mean loss "$n_seeds" "$gpt_dir/$sync-$n"-*)"
        done
        echo
    done
    echo
}

if [ "${1:-}" != tables ]; then
    "$python" -c 'import torch' 2>/dev/null || { echo "quality: $python has no torch" >&2; exit 1; }
    for each in $what; do
        "run_$each"
    done
fi
for each in $what; do
    "table_$each"
done
