#!/bin/sh
# SPDX-License-Identifier: MIT
# What each preset costs in quality: generated clicks (one pass) and Fashion-MNIST (5 epochs), with
# 1, 2 and 4 trainers of 2 workers, two kinds of optimizer, several seeds. The same number of
# examples everywhere. Prints the tables of docs/quality.md: mean and deviation over the seeds; a
# number in brackets is of runs, where some are missing.
#
# A run that is done is kept in build/quality and not run again, so the script may be stopped.
# BUILD: where the program is. QUALITY_SEEDS ("1 2 3"), QUALITY_TRAINERS ("1 2 4"), QUALITY_PRESETS,
# QUALITY_CLICKS (2000000), FASHION (folder of the images): less, to try.
set -u
cd "$(dirname "$0")/.." || exit 1
dir=build/quality
clicks=${QUALITY_CLICKS:-2000000}
trainers=${QUALITY_TRAINERS:-1 2 4}
presets=${QUALITY_PRESETS:-none allreduce shadow-easgd shadow-ma shadow-bmuf easgd ma bmuf dasgd \
    dasgd-delta diloco diloco-delta}
. bench/quality_data.sh

# Images: as many of them in a step of all trainers however many there are, as a user would set it
# for five epochs; clicks are enough for any number.
settings() {    # what, optimizer, trainers
    case $1-$2 in
    clicks-momentum) echo "--optimizer sgd --momentum 0.9 --lr 0.01 --table-lr 5 --schedule cosine" ;;
    clicks-adaptive) echo "--optimizer adagrad --table-optimizer adagrad --lr 0.04 --table-lr 0.1" ;;
    fashion-momentum) echo "--optimizer sgd --momentum 0.9 --lr 0.01" ;;
    fashion-adaptive) echo "--optimizer adamw --lr 0.001" ;;
    esac
    case $1 in
    clicks) echo "--model dlrm --rows 20000 --width 8 --bottom 32 --top 64 --batch 128
        --data $data --eval $held" ;;
    fashion) echo "--model mlp --top 512,256 --batch $((32 / $3)) --epochs 5 --schedule cosine --warmup 0.05
        --data $fashion/train-images-idx3-ubyte.gz --eval $fashion/t10k-images-idx3-ubyte.gz" ;;
    esac
}

# 1: what, 2: optimizer, 3: preset, 4: trainers, 5: seed
one() {
    log="$dir/$1-$2-$3-$4-$5.jsonl"
    [ -s "$log" ] && tail -n 1 "$log" | grep -q '"kind":"summary"' && return 0
    # shellcheck disable=SC2046
    "$descant" train $(settings "$1" "$2" "$4") --sync "$3" --trainers "$4" --workers 2 --seed "$5" \
        --quiet --log "$log" --log-every 1000 >/dev/null || { rm -f "$log"; return 1; }
}

for what in ${QUALITY_WHAT:-clicks fashion}; do
    for seed in $seeds; do
        for n in $trainers; do
            for preset in $presets; do
                for optimizer in momentum adaptive; do
                    one "$what" "$optimizer" "$preset" "$n" "$seed" ||
                        echo "quality: $what $optimizer $preset $n $seed failed" >&2
                done
            done
        done
    done
done

# 1: what, 2: the field, 3: how to print the mean
table() {
    for optimizer in momentum adaptive; do
        for preset in $presets; do
            for n in $trainers; do
                for seed in $seeds; do
                    log="$dir/$1-$optimizer-$preset-$n-$seed.jsonl"
                    [ -s "$log" ] && tail -n 1 "$log" | sed "s/^/$optimizer $preset $n /"
                done
            done
        done
    done | awk -v name="$2" -v format="$3" -v counts="$trainers" \
        -v want="$(echo "$seeds" | wc -w)" '
    function field(of) {
        if (!match($0, "\"" of "\":[-0-9.e+]+")) return ""
        return substr($0, RSTART + length(of) + 3, RLENGTH - length(of) - 3)
    }
    {
        row = $1 " | `" $2 "`"
        if (!(row in seen)) { seen[row] = 1; order[++rows] = row }
        x = field(name)
        if (x == "") next
        k = row SUBSEP $3
        n[k]++; sum[k] += x; square[k] += x * x
    }
    END {
        m = split(counts, count, " ")
        printf "| optimizer | preset |"
        for (j = 1; j <= m; j++) printf " %s trainer%s |", count[j], (count[j] > 1 ? "s" : "")
        printf "\n|---|---|"
        for (j = 1; j <= m; j++) printf "---|"
        print ""
        for (i = 1; i <= rows; i++) {
            printf "| %s |", order[i]
            for (j = 1; j <= m; j++) {
                k = order[i] SUBSEP count[j]
                if (!n[k]) { printf " |"; continue }
                mean = sum[k] / n[k]; v = square[k] / n[k] - mean * mean
                printf " " format " ± " format "%s |", mean, sqrt(v > 0 ? v : 0),
                    n[k] < want ? " (" n[k] ")" : ""
            }
            print ""
        }
    }'
}

echo "## Clicks: held-out log loss, $clicks examples, one pass"
echo
sed -n 's/.*\(best log loss [0-9.]*\).*/The planted model itself: \1./p' "$best"
echo
table clicks eval_loss '%.5f'
echo
echo "## Fashion-MNIST: test accuracy, 5 epochs"
echo
table fashion eval_accuracy '%.4f'
