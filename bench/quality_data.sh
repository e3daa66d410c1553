# SPDX-License-Identifier: MIT
# Sourced by quality.sh and quality_bsp.sh, from the folder above this one: what both train on, made
# where it is not there. Wants dir, where they keep it, and clicks, how many; ends the script where
# there are no images.
# shellcheck shell=sh disable=SC2034,SC2154
descant=${BUILD:-build/gcc}/descant
seeds=${QUALITY_SEEDS:-1 2 3}
fashion=${FASHION:-/usr/share/datasets/fashion-mnist}
data="$dir/clicks-$clicks.tsv"
held="$dir/held.tsv"
best="$dir/best.txt"        # what the generator says of its model
mkdir -p "$dir" || exit 1
if [ ! -e "$fashion/train-images-idx3-ubyte.gz" ]; then
    echo "quality: no Fashion-MNIST in $fashion (Debian: apt-get install dataset-fashion-mnist)" >&2
    exit 1
fi
[ -e "$data" ] || "$descant" gen ctr --rows "$clicks" --seed 1 --out "$data" || exit 1
[ -e "$held" ] || "$descant" gen ctr --rows 200000 --seed 2 --out "$held" 2>"$best" || exit 1
