#!/bin/sh
# SPDX-License-Identifier: MIT
# What keeping PyTorch models in step costs, by bench/torch_speed.py: one JSON object a line.
#
#   bench/torch.sh [PART ...]       all parts where none is named
#
# pairs     ResNet-20 and the DLRM of examples/torch, two trainers of one thread each on this
#           machine, under each shadow plan and none in turns, with links as fast as memory
#           and emulated ones
# ranks     the same over MPI (Open MPI), on two hosts made of namespaces (as root), a core each, over
#           links that the kernel shapes
# step      the median of sync.step(), by itself and in training
# memory    what attach takes beside the parameters, for 256 MiB of them
# ddp       PyTorch's DDP on Gloo against the same models alone, on two hosts made of namespaces
#           as for ranks, over the same links
# local     PyTorch's local SGD, a mean of the parameters every 8 steps, in the same way
# chart     ranks, local and ddp of the DLRM over five links: the figures of docs/speed.svg
#
# BUILD: where the library is. PYTHON (python3). TORCH_MODELS (resnet dlrm), TORCH_PLANS,
# TORCH_LINKS (none 1gbit 100mbit), TORCH_PAIRS (12), TORCH_RUN_S (8): other or less, to try.
set -u
cd "$(dirname "$0")/.." || exit 1
top=$PWD
build=$top/${BUILD:-build/gcc}
python=${PYTHON:-python3}
models=${TORCH_MODELS:-resnet dlrm}
plans=${TORCH_PLANS:-shadow-easgd shadow-ma shadow-bmuf}
links=${TORCH_LINKS:-none 1gbit 100mbit}
pairs=${TORCH_PAIRS:-12}
run_s=${TORCH_RUN_S:-8}
export DESCANT_LIBRARY="$build/libdescant.so" PYTHONPATH="$top/python" OMP_NUM_THREADS=1
unset RANK WORLD_SIZE DESCANT_PLAN

give_up() {
    echo "bench: $*" >&2
    exit 1
}

speed() {
    "$python" "$top/bench/torch_speed.py" "$@" || give_up "torch_speed.py $* failed"
}

part_pairs() {
    for link in $links; do
        address=none
        [ "$link" = none ] || address="rate=$link,rtt=1ms"
        for model in $models; do
            # shellcheck disable=SC2086
            speed pairs "$model" "$address" "$pairs" "$run_s" $plans
        done
    done
}

part_step() {
    for plan in $plans; do
        speed step "$plan" "$run_s"
    done
}

part_memory() {
    for plan in none $plans; do
        speed memory "$plan"
    done
}

on_hosts() {    # part: again, with two hosts
    reason=$("$top/tests/cluster/hosts" missing)
    if [ -n "$reason" ]; then
        echo "bench: $1 is left out: $reason" >&2
        return
    fi
    PYTHON=$python "$top/tests/cluster/hosts" with 2 "$top/bench/torch.sh" "$1-on-hosts"
}

set_links() {
    "$top/tests/cluster/hosts" link host0 "$1"
    "$top/tests/cluster/hosts" link host1 "$1"
}

# shellcheck disable=SC2016
on_its_core='host=$(hostname) && exec taskset -c "$((${host#host} % $(nproc --all)))" "$@"'

part_ranks_on_hosts() {
    for link in $links; do
        set_links "$link"
        for model in $models; do
            rm -rf "$HOSTS/rates"
            mkdir "$HOSTS/rates"
            # shellcheck disable=SC2086
            "$top/tests/cluster/hosts" mpi --library openmpi --hosts 2 \
                env DESCANT_LIBRARY="$DESCANT_LIBRARY" DESCANT_MPI_MODULE="$build" \
                PYTHONPATH="$PYTHONPATH" OMP_NUM_THREADS=1 BENCH_FOLDER="$HOSTS/rates" \
                BENCH_LINK="$link" sh -c "$on_its_core" sh "$python" \
                "$top/bench/torch_speed.py" ranks "$model" "$pairs" "$run_s" $plans ||
                give_up "ranks $model $link failed"
        done
    done
}

peer_on() {    # part, rank, model, link
    "$top/tests/cluster/hosts" on "host$2" taskset -c "$(($2 % $(nproc --all)))" env RANK="$2" \
        WORLD_SIZE=2 MASTER_ADDR=10.78.0.1 MASTER_PORT=29500 GLOO_SOCKET_IFNAME=eth0 \
        BENCH_LINK="$4" "$python" "$top/bench/torch_speed.py" "$1" "$3" "$pairs" "$run_s"
}

peer_on_hosts() {    # part
    for link in $links; do
        set_links "$link"
        for model in $models; do
            peer_on "$1" 1 "$model" "$link" &
            peer_on "$1" 0 "$model" "$link" || give_up "$1 $model $link failed"
            wait
        done
    done
}

part_chart_on_hosts() {
    models=dlrm
    links=${TORCH_LINKS:-10gbit 1gbit 300mbit 100mbit 30mbit}
    plans=shadow-easgd
    part_ranks_on_hosts
    peer_on_hosts local
    peer_on_hosts ddp
}

"$python" -c 'import torch' 2>/dev/null || give_up "$python has no torch"
[ -e "$DESCANT_LIBRARY" ] || give_up "there is no $DESCANT_LIBRARY: make"
[ $# -gt 0 ] || set -- pairs ranks step memory ddp local
for part in "$@"; do
    case $part in
    pairs | step | memory) part_"$part" ;;
    ranks | ddp | local | chart) on_hosts "$part" ;;
    ranks-on-hosts) part_ranks_on_hosts ;;
    ddp-on-hosts | local-on-hosts) peer_on_hosts "${part%-on-hosts}" ;;
    chart-on-hosts) part_chart_on_hosts ;;
    *) give_up "there is no part '$part'" ;;
    esac
done
