#!/bin/sh
# SPDX-License-Identifier: MIT
# What the plan bsp costs in quality beside synchronous SGD (allreduce): a DLRM on generated clicks, one
# pass, and an MLP on Fashion-MNIST, with 2 trainers of 1 worker, the same examples and batches. Each
# plan has its own step: of a grid, the one with the best held-out figure, the mean over the seeds. Prints
# the table of docs/quality.md.
#
# A run that is done is kept in build/quality-bsp and not run again, so the script may be stopped.
# BUILD: where the program is. QUALITY_SEEDS ("1 2 3"), QUALITY_TUNE (seeds that the step is chosen by; all),
# QUALITY_PLANS, QUALITY_CLICKS (500000), QUALITY_EPOCHS (5), QUALITY_WHAT ("clicks fashion"),
# QUALITY_OPTIMIZERS, QUALITY_FACTORS (of the grid; "0.25 0.5 1 2 4"), FASHION (folder of the images):
# less, or more, to try.
set -u
cd "$(dirname "$0")/.." || exit 1
dir=build/quality-bsp
clicks=${QUALITY_CLICKS:-500000}
epochs=${QUALITY_EPOCHS:-5}
plans=${QUALITY_PLANS:-allreduce bsp,every=2}
factors=${QUALITY_FACTORS:-0.25 0.5 1 2 4}
. bench/quality_data.sh
tune=${QUALITY_TUNE:-$seeds}

# The middle of the grid: what allreduce likes, of tries by factors of two.
middle() {    # what, optimizer
    case $1-$2 in
    clicks-sgd) echo 1 ;;
    fashion-sgd) echo 0.2 ;;
    clicks-momentum | fashion-momentum) echo 0.01 ;;
    clicks-adaptive) echo 0.04 ;;
    fashion-adaptive) echo 0.001 ;;
    esac
}

settings() {    # what, optimizer
    case $1-$2 in
    clicks-sgd) echo "--optimizer sgd --table-lr 5 --schedule cosine" ;;
    clicks-momentum) echo "--optimizer sgd --momentum 0.9 --table-lr 5 --schedule cosine" ;;
    clicks-adaptive) echo "--optimizer adagrad --table-optimizer adagrad --table-lr 0.1" ;;
    fashion-sgd) echo "--optimizer sgd" ;;
    fashion-momentum) echo "--optimizer sgd --momentum 0.9" ;;
    fashion-adaptive) echo "--optimizer adamw" ;;
    esac
    case $1 in
    clicks) echo "--model dlrm --rows 20000 --width 8 --bottom 32 --top 64 --batch 128
        --data $data --eval $held" ;;
    fashion) echo "--model mlp --top 512,256 --batch 32 --epochs $epochs --schedule cosine --warmup 0.2
        --data $fashion/train-images-idx3-ubyte.gz --eval $fashion/t10k-images-idx3-ubyte.gz" ;;
    esac
}

log_of() {    # what, optimizer, plan, lr, seed
    case $1 in
    clicks) echo "$dir/$1-$clicks-$2-$3-$4-$5.jsonl" ;;
    fashion) echo "$dir/$1-$epochs-$2-$3-$4-$5.jsonl" ;;
    esac
}

one() {    # as log_of
    log=$(log_of "$@")
    [ -s "$log" ] && tail -n 1 "$log" | grep -q '"eval_loss":[0-9]' && return 0
    # shellcheck disable=SC2046
    "$descant" train $(settings "$1" "$2") --sync "$3" --lr "$4" --trainers 2 --seed "$5" \
        --quiet --log "$log" --log-every 1000 >/dev/null || { rm -f "$log"; return 1; }
}

field() {    # name: of the last line of the log on stdin; nothing where the run diverged
    tail -n 1 | sed -n "s/.*\"$1\":\([-0-9.e+]*\).*/\1/p"
}

# What is better is larger.
worth() {    # what, log
    case $1 in
    clicks) field eval_loss <"$2" | sed 's/^/-/' ;;
    fashion) field eval_accuracy <"$2" ;;
    esac
}

# Over the seeds that the step is chosen by; nothing where one of them does not train.
mean_worth() {    # what, optimizer, plan, lr
    for seed in $tune; do
        one "$1" "$2" "$3" "$4" "$seed" 2>/dev/null || { echo none; continue; }
        worth "$1" "$(log_of "$1" "$2" "$3" "$4" "$seed")"
    done | awk '$1 == "none" || $1 == "" || $1 == "-" { bad = 1 } { sum += $1 }
        END { if (!bad) printf "%.6f\n", sum / NR }'
}

best_lr() {    # what, optimizer, plan
    for factor in $factors; do
        lr=$(awk -v m="$(middle "$1" "$2")" -v f="$factor" 'BEGIN { printf "%.6g", m * f }')
        echo "$(mean_worth "$1" "$2" "$3" "$lr") $lr"
    done | grep -v '^ ' | sort -g | tail -n 1 | cut -d ' ' -f 2
}

row() {    # what, optimizer, plan: "what optimizer plan lr value" for each seed
    lr=$(best_lr "$1" "$2" "$3")
    [ -n "$lr" ] || { echo "quality: $1 $2 $3: no step trains" >&2; return 1; }
    for seed in $seeds; do
        one "$1" "$2" "$3" "$lr" "$seed" || continue
        echo "$1 $2 $3 $lr $(worth "$1" "$(log_of "$1" "$2" "$3" "$lr" "$seed")" | tr -d -)"
    done
}

for what in ${QUALITY_WHAT:-clicks fashion}; do
    for optimizer in ${QUALITY_OPTIMIZERS:-sgd momentum adaptive}; do
        for plan in $plans; do
            row "$what" "$optimizer" "$plan"
        done
    done
done | awk '
    {
        k = $1 " " $2 " " $3
        if (!(k in n)) { order[++rows] = k; lr[k] = $4; of[k] = $1 " " $2 }
        n[k]++; sum[k] += $5; square[k] += $5 * $5
    }
    END {
        print "| model | optimizer | plan | step | held-out | beside the first |\n|---|---|---|---|---|---|"
        for (i = 1; i <= rows; i++) {
            k = order[i]; split(k, at, " ")
            mean = sum[k] / n[k]; v = square[k] / n[k] - mean * mean
            if (!(of[k] in first)) { first[of[k]] = mean; beside = "–" }
            else if (at[1] == "clicks") beside = sprintf("%+.2f %%", 100 * (mean / first[of[k]] - 1))
            else beside = sprintf("%+.2f points", 100 * (mean - first[of[k]]))
            printf "| %s | %s | `%s` | %s | ", at[1] == "clicks" ? "dlrm, log loss" : "mlp, accuracy",
                at[2], at[3], lr[k]
            printf at[1] == "clicks" ? "%.5f ± %.5f" : "%.4f ± %.4f", mean, sqrt(v > 0 ? v : 0)
            printf " | %s |\n", beside
        }
    }'
