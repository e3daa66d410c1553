#!/bin/sh
# SPDX-License-Identifier: MIT
# Descant over shaped links between two hosts made of namespaces, as root: one JSON object a line.
#
#   bench/cluster.sh [PART ...]     all parts where none is named
#
# shadow    the DLRM of `descant bench train` on 2 hosts, one worker each, batch 128, under each
#           shadow plan and under none, in turns
# scaling   2 hosts under shadow-easgd against 1 host under none, in turns; and as its ceiling, which
#           is this machine's, 2 hosts under none
# delayed   dasgd and dasgd-delta with the delay that hides an exchange at that link, delay >= time of
#           an exchange / time of a step, rounds no closer than that: the time within which 99 of 100
#           exchanges end, measured beside a worker, whose core the shadow shares
# mean      a mean of 64 MiB over 1 Gb/s, after a barrier each, and again and again without one; in
#           turns with it MPI_Allreduce of the same library, between buffers after a barrier each, and
#           in place again and again
# mean-tcp  a mean of 64 MiB over TCP, plain and with TLS, after a barrier each, over 1 Gb/s and without
#           a limit, in memory of descant_alloc, and plain in attached memory, which is copied first; in
#           turns with it MPI_Allreduce, and the same bytes over bare TCP. cpu_ms is rank 0's
# long-tcp  means of 64 and 256 MiB over TCP, one round after the other, over 1 Gb/s with a round trip of
#           50 ms; in turns with it the same bytes over bare TCP with 1 and with 4 connections. First
#           with the kernel's own limits of a socket's memory, then with 32 MiB and without a new slow
#           start after each pause
# idle      what an elastic exchange of 4 KiB takes where the owner of half of it is idle, over
#           1 Gb/s, and that owner's shadow's share of a core
# elastic   4 hosts of 4 ranks: MiB that leave a host for an exchange of 1 MiB of all ranks, its time, and
#           the CPU of a rank, by hosts and by messages alone; of elastic exchanges, and of means
# ddp       PyTorch DDP, 2 hosts and 1, where PYTHON has torch
# quality   held-out log loss of the same DLRM after one pass over generated clicks, over 1 Gb/s, each
#           example trained by one of 1, 2 or 4 hosts of one worker, the hosts' tables exchanged:
#           mean and deviation
#
# A host that trains has one core of this machine: else it would take all cores for its own, and its
# shadow would have a whole one. What is compared takes turns, and each round begins with the next one:
# a ratio is the mean, by multiplication, of the medians of each order (four, for three plans and none).
#
# BUILD: where the program is. CLUSTER_JOBS (mpi): how the hosts of shadow, scaling and delayed meet, mpi,
# tcp or tls, or several of them, whose plans take turns. CLUSTER_LINKS (10gbit 1gbit 100mbit), also as
# 1gbit/50ms: with that round trip, for which a program carries each packet (tests/cluster/delay.c), on the
# two cores that train. cable_share is what it takes in a run beyond what it takes under none, ÷ their time of training.
# CLUSTER_PLANS, CLUSTER_PAIRS (12; 5 for mean-tcp, 3 for long-tcp), CLUSTER_RUN_S (8), CLUSTER_DELAY (measured),
# CLUSTER_SYNC_CPU (0: the default), CLUSTER_LIBRARY (openmpi), CLUSTER_CLICKS (2000000), CLUSTER_SEEDS
# (1 2 3), CLUSTER_HOSTS (1 2 4), CLUSTER_OPTIMIZERS (momentum adaptive), PYTHON (python3): other or
# less, to try.
set -u
cd "$(dirname "$0")/.." || exit 1
top=$PWD
descant=$top/${BUILD:-build/gcc}/descant
library=${CLUSTER_LIBRARY:-openmpi}
jobs=${CLUSTER_JOBS:-mpi}
links=${CLUSTER_LINKS:-10gbit 1gbit 100mbit}
plans=${CLUSTER_PLANS:-shadow-easgd shadow-ma shadow-bmuf}
pairs=${CLUSTER_PAIRS:-12}
run_s=${CLUSTER_RUN_S:-8}
sync_cpu=${CLUSTER_SYNC_CPU:-0}
python=${PYTHON:-python3}
clicks=${CLUSTER_CLICKS:-2000000}
seeds=${CLUSTER_SEEDS:-1 2 3}
delay_now=''

if [ -z "${HOSTS:-}" ]; then
    reason=$("$top/tests/cluster/hosts" missing)
    [ -z "$reason" ] || { echo "bench: $reason" >&2 && exit 1; }
    exec "$top/tests/cluster/hosts" with 4 "$top/bench/cluster.sh" "$@"
fi

hosts() {
    "$top/tests/cluster/hosts" "$@"
}

# RATE or RATE/ROUND_TRIP, which is between host0 and each other one.
set_links() {
    delay=''
    delay_now=''
    case $1 in
    */*ms)
        delay=${1##*/}
        delay=$(calc "${delay%ms} / 2")ms
        delay_now=$delay
        ;;
    esac
    for host in host0 host1 host2 host3; do
        hosts link $host "${1%/*}" "$delay"
        delay=''
    done
}

give_up() {
    echo "bench: $*" >&2
    exit 1
}

# --- figures ---

median() {    # of the numbers of a file
    sort -g "$1" | awk '{ x[NR] = $1 } END {
        print NR % 2 ? x[(NR + 1) / 2] : NR ? (x[NR / 2] + x[NR / 2 + 1]) / 2 : 0 }'
}

of_orders() {    # of a plan's ratios
    for order in "$1".order*; do
        median "$order"
    done | awk '{ sum += log($1) } END { print exp(sum / NR) }'
}

spread() {    # of the numbers of a file: NAME=MEAN NAME_deviation=…
    awk -v name="$2" '{ n++; sum += $1; x[n] = $1 } END {
        for (i = 1; i <= n; i++) rest += (x[i] - sum / n) ^ 2
        print name "=" sum / n, name "_deviation=" sqrt(rest / n) }' "$1"
}

interval() {    # of the ratios of a file: ratio_low=… ratio_high=…, 95 % of their geometric mean
    awk '{ n++; x[n] = log($1); sum += x[n] } END {
        split("12.71 4.303 3.182 2.776 2.571 2.447 2.365 2.306 2.262 2.228 2.201", t)
        for (i = 1; i <= n; i++) rest += (x[i] - sum / n) ^ 2
        wide = n < 2 ? 0 : (n <= 12 ? t[n - 1] : 2.2) * sqrt(rest / (n - 1) / n)
        print "ratio_low=" exp(sum / n - wide), "ratio_high=" exp(sum / n + wide) }' "$1"
}

calc() {    # an expression of awk
    awk "BEGIN { print $1 }"
}

# NAME=VALUE ... as an object; what is no number is a text.
say() {
    printf '%s\n' "$@" | awk '
    {
        at = index($0, "=")
        name = substr($0, 1, at - 1)
        value = substr($0, at + 1)
        if (value !~ /^-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?$/) value = "\"" value "\""
        line = line (NR > 1 ? "," : "") "\"" name "\":" value
    }
    END { print "{" line "}" }'
}

# --- runs of training ---

# COMMAND on the core of this host.
# shellcheck disable=SC2016
on_its_core='host=$(hostname) && exec taskset -c "$((${host#host} % $(nproc --all)))" "$@"'

# COMMAND as one rank on each of the first hosts, of one job.
launch() {    # mpi, tcp or tls; hosts
    by=$1
    ranks=$2
    shift 2
    case $by in
    mpi) hosts mpi --library "$library" --hosts "$ranks" "$@" ;;
    tcp) over_tcp --insecure "$@" ;;
    tls) over_tcp "--secret=$HOSTS/secret" "$@" ;;
    *) give_up "there is no job '$by': mpi, tcp or tls" ;;
    esac
}

over_tcp() {    # --secret=FILE or --insecure, which one host alone does not take
    secrecy=$1
    shift
    [ "$ranks" -gt 1 ] || secrecy=''
    hosts on host0 "$descant" run --ssh "$top/tests/cluster/rsh" ${secrecy:+"$secrecy"} --plain --restarts 0 \
        --hosts "$(seq -s , -f 'host%.0f' 0 $((ranks - 1)))" -- "$@"
}

# Figures of a run: rate (examples/s of all hosts), stall (their mean), shadow and rows a second (the
# first host's), least (the stall of the slowest host, which waits for no other) and exchange_s (99 of
# 100 exchanges took less, on the host whose took longest); cable_s, the CPU of the program that carried
# the packets, from before the start.
train() {    # [JOB:]PLAN, of the first of the jobs where none is named; hosts, examples a host
    work=$HOSTS/work
    cable_s=$(cable)
    rm -rf "$work"
    mkdir "$work"
    case $1 in
    *:*) launch_on=${1%%:*} ;;
    *) launch_on=${jobs%% *} ;;
    esac
    launch "$launch_on" "$2" sh -c "$on_its_core" sh "$descant" train \
        --data "$HOSTS/clicks.tsv" --epochs 1000000 --quiet --log "$work/log" --log-every 1000 \
        --sync "${1#*:}" --sync-cpu "$sync_cpu" --examples $(($2 * $3)) >"$work/said" 2>&1 ||
        give_up "a run of $1 failed: $(cat "$work/said")"
    rate=$(cat "$work"/log* | sum '"kind":"summary"' '"examples_per_s":' 1)
    stall=$(cat "$work"/log* | sum '"kind":"summary"' '"stall_share":' "$2")
    least=$(cat "$work"/log* | extreme '"kind":"summary"' '"stall_share":' -1)
    exchange_s=$(cat "$work"/log* | extreme '"kind":"summary"' '"exchange_p99_s":' 1)
    cable_s=$(calc "$(cable) - $cable_s")
    shadow=$(sum "shadow's share of a core" 'core *' 100 <"$work/said")
    rows=$(sum 'rows sent to other hosts' 'hosts *' "$(sum '  seconds ' 'seconds *' 1 <"$work/said")" \
        <"$work/said")
}

cable() {
    [ -z "$delay_now" ] && echo 0 || hosts spent host0
}

sum() {    # lines with this text, the number after that pattern, divided by
    awk -v text="$1" -v before="$2" -v by="$3" '
    index($0, text) && match($0, before) { sum += substr($0, RSTART + RLENGTH) + 0 }
    END { print sum / by }'
}

extreme() {    # of lines with this text the greatest (1) or least (-1) number after that pattern
    awk -v text="$1" -v before="$2" -v sign="$3" '
    index($0, text) && match($0, before) {
        x = substr($0, RSTART + RLENGTH) + 0
        if (!n++ || sign * x > sign * most) most = x
    }
    END { print most + 0 }'
}

# Examples of one host for a run of about run_s; step_s, the time of a step.
calibrate() {
    train none 2 20000
    examples=$(calc "int($rate / 2 * $run_s)")
    step_s=$(calc "128 / ($rate / 2)")
}

# Runs plans and none in turns, each round beginning with the next one; of each plan, lists of ratio,
# rate, none, stall, least, shadow, rows, exchange and cable.
in_turns() {    # hosts of the plans, those of none, plans
    of_plans=$1
    of_none=$2
    shift 2
    orders=$(($# + 1))
    rm -f "$HOSTS"/list.*
    set -- '' "$@"       # '' is none, on its hosts
    for round in $(seq "$pairs"); do
        for kind in "$@"; do
            if [ -z "$kind" ]; then
                train none "$of_none" "$examples"
                none=$rate
                echo "$cable_s" >>"$HOSTS/list.idle.cable"
                continue
            fi
            train "$kind" "$of_plans" "$examples"
            list=$HOSTS/list.$kind
            echo "$rate" >>"$list.rate"
            echo "$stall" >>"$list.stall"
            echo "$shadow" >>"$list.shadow"
            echo "$rows" >>"$list.rows"
            echo "$least" >>"$list.least"
            echo "$exchange_s" >>"$list.exchange"
            echo "$cable_s" >>"$list.cable"
        done
        for kind in "$@"; do
            [ -n "$kind" ] || continue
            list=$HOSTS/list.$kind
            echo "$none" >>"$list.none"
            calc "$(tail -n 1 "$list.rate") / $none" |
                tee -a "$list.ratio" >>"$list.order$((round % orders))"
        done
        first=$1
        shift
        set -- "$@" "$first"
    done
}

say_pairs() {    # part, link, [JOB:]PLAN
    list=$HOSTS/list.$3
    case $3 in
    *:*) said_job=${3%%:*} ;;
    *) said_job=${jobs%% *} ;;
    esac
    # shellcheck disable=SC2046
    say "bench=cluster" "part=$1" "job=$said_job" "library=$library" "link=$2" "plan=${3#*:}" \
        "pairs=$pairs" \
        "examples_per_s=$(median "$list.rate")" \
        "none_examples_per_s=$(median "$list.none")" \
        "ratio=$(of_orders "$list")" \
        "ratio_least=$(sort -g "$list.ratio" | head -n 1)" \
        "ratio_most=$(sort -g "$list.ratio" | tail -n 1)" $(interval "$list.ratio") \
        "stall_share=$(median "$list.stall")" \
        "stall_least=$(median "$list.least")" \
        "shadow_cpu_share=$(median "$list.shadow")" "rows_per_s=$(median "$list.rows")" \
        "exchange_p99_s=$(median "$list.exchange")" "step_s=$step_s" $(say_cable "$list")
}

say_cable() {    # a plan's lists
    [ -n "$delay_now" ] || return 0
    more_s=$(calc "$(median "$1.cable") - $(median "$HOSTS/list.idle.cable")")
    echo "cable_share=$(calc "$more_s / (2 * 2 * $examples / $(median "$1.rate"))")"
}

# --- the parts ---

part_shadow() {
    kinds=$(for job in $jobs; do printf "$job:%s " $plans; done)
    for link in $links; do
        set_links "$link"
        began=$(date +%s.%N)
        # shellcheck disable=SC2086
        in_turns 2 2 $kinds
        for kind in $kinds; do
            say_pairs shadow "$link" "$kind"
        done
        case $link in
        */*) say "bench=cluster" "part=delay" "link=$link" \
            "core_share=$(calc "$(hosts spent host0) / ($(date +%s.%N) - $began)")" ;;
        esac
    done
}

part_scaling() {
    for link in $links; do
        set_links "$link"
        in_turns 2 1 none shadow-easgd
        say_pairs ceiling "$link" none
        say_pairs scaling "$link" shadow-easgd
    done
}

delay_for_link() {
    train dasgd-delta,every=32,delay=32 2 "$examples"
    calc "int($exchange_s / $step_s) + 1"
}

part_delayed() {
    for link in $links; do
        set_links "$link"
        delay=${CLUSTER_DELAY:-$(delay_for_link)}
        every=$((delay > 4 ? delay : 4))
        for plan in dasgd dasgd-delta; do
            in_turns 2 2 "$plan,every=$every,delay=$delay"
            say_pairs delayed "$link" "$plan,every=$every,delay=$delay"
        done
    done
}

milliseconds() {    # the number of that name
    sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p"
}

exchange() {
    hosts mpi --library "$library" --hosts 2 "$descant" bench exchange --what mean \
        --memory attached --bytes 64M --sync-cpu 0.15 --json "$@"
}

part_mean() {
    set_links 1gbit
    mpicc."$library" -O2 -o "$HOSTS/allreduce" "$top/bench/peers/allreduce.c" ||
        give_up "mpicc.$library failed"
    rm -f "$HOSTS"/list.*
    for turn in $(seq 3); do
        exchange >"$HOSTS/apart" && exchange --again >"$HOSTS/again" &&
            hosts mpi --library "$library" --hosts 2 "$HOSTS/allreduce" 67108864 >"$HOSTS/peer" ||
            give_up "turn $turn: $(cat "$HOSTS/apart" "$HOSTS/again" "$HOSTS/peer")"
        milliseconds ms <"$HOSTS/apart" >>"$HOSTS/list.apart"
        milliseconds ms <"$HOSTS/again" >>"$HOSTS/list.again"
        milliseconds ms <"$HOSTS/peer" >>"$HOSTS/list.peer_apart"
        milliseconds again_ms <"$HOSTS/peer" >>"$HOSTS/list.peer_again"
    done
    apart=$(median "$HOSTS/list.apart")
    again=$(median "$HOSTS/list.again")
    peer_apart=$(median "$HOSTS/list.peer_apart")
    peer_again=$(median "$HOSTS/list.peer_again")
    bound=$(calc '67108864 * 8 / 1e9 * 1e3')
    say "bench=cluster" "part=mean" "library=$library" "link=1gbit" "bytes=67108864" \
        "ms=$apart" "allreduce_ms=$peer_apart" "ratio=$(calc "$peer_apart / $apart")" \
        "again_ms=$again" "allreduce_again_ms=$peer_again" \
        "ratio_again=$(calc "$peer_again / $again")" \
        "bound_ms=$bound" "share_of_bound=$(calc "$bound / $apart")"
}

# So many bytes each way at once, over so many connections of bare TCP.
bare() {
    hosts on host1 timeout 200 "$HOSTS/duplex" 1 host0 7100 "$1" 5 "$2" &
    hosts on host0 timeout 200 "$HOSTS/duplex" 0 host0 7100 "$1" 5 "$2"
    wait $!
}

part_mean_tcp() {
    mpicc."$library" -O2 -o "$HOSTS/allreduce" "$top/bench/peers/allreduce.c" ||
        give_up "mpicc.$library failed"
    cc -O2 -pthread -o "$HOSTS/duplex" "$top/bench/peers/duplex.c" || give_up "duplex.c does not compile"
    # shellcheck disable=SC2016
    ours='exec "$0" bench exchange --what mean --memory "$1" --bytes 64M --runs 15 --sync-cpu 0.9 --json \
        --job "$DESCANT_JOB"'
    kinds='tcp tls attached MPI_Allreduce bare'
    for link in 1gbit none; do
        set_links $link
        rm -f "$HOSTS"/list.*
        for turn in $(seq "${CLUSTER_PAIRS:-5}"); do
            for what in $kinds; do
                case $what in
                tcp | tls) launch $what 2 sh -c "$ours" "$descant" shared ;;
                attached) launch tcp 2 sh -c "$ours" "$descant" attached ;;
                MPI_Allreduce) launch mpi 2 "$HOSTS/allreduce" 67108864 ;;
                bare) bare 67108864 1 ;;
                esac >"$HOSTS/said" 2>&1 || give_up "turn $turn of $what: $(cat "$HOSTS/said")"
                milliseconds ms <"$HOSTS/said" >>"$HOSTS/list.$what"
                milliseconds cpu_ms <"$HOSTS/said" >>"$HOSTS/list.$what.cpu"
            done
        done
        for what in $kinds; do
            ms=$(median "$HOSTS/list.$what")
            set -- "ms=$ms" "ms_least=$(sort -g "$HOSTS/list.$what" | head -n 1)" \
                "ms_most=$(sort -g "$HOSTS/list.$what" | tail -n 1)"
            [ $what = MPI_Allreduce ] || set -- "$@" "cpu_ms=$(median "$HOSTS/list.$what.cpu")"
            [ $link = none ] || set -- "$@" "share_of_bound=$(calc "67108864 * 8e-6 / $ms")"
            say "bench=cluster" "part=mean-tcp" "link=$link" "what=$what" "bytes=67108864" "$@"
        done
    done
}

part_long_tcp() {
    cc -O2 -pthread -o "$HOSTS/duplex" "$top/bench/peers/duplex.c" || give_up "duplex.c does not compile"
    # shellcheck disable=SC2016
    ours='exec "$0" bench exchange --what mean --memory shared --bytes "$1" --runs 15 --again --sync-cpu 0.9 \
        --json --job "$DESCANT_JOB"'
    set_links 1gbit/50ms
    for limits in kernel large; do
        for host in host0 host1; do
            [ $limits = kernel ] ||
                hosts on $host sysctl -qw net.ipv4.tcp_rmem='4096 131072 33554432' \
                    net.ipv4.tcp_wmem='4096 16384 33554432' net.ipv4.tcp_slow_start_after_idle=0
        done
        for bytes in 67108864 268435456; do
            rm -f "$HOSTS"/list.*
            for turn in $(seq "${CLUSTER_PAIRS:-3}"); do
                for what in tcp bare-1 bare-4; do
                    case $what in
                    tcp) launch tcp 2 sh -c "$ours" "$descant" $bytes ;;
                    *) bare $bytes ${what#bare-} ;;
                    esac >"$HOSTS/said" 2>&1 || give_up "turn $turn of $what: $(cat "$HOSTS/said")"
                    milliseconds ms <"$HOSTS/said" >>"$HOSTS/list.$what"
                    milliseconds cpu_ms <"$HOSTS/said" >>"$HOSTS/list.$what.cpu"
                done
            done
            for what in tcp bare-1 bare-4; do
                ms=$(median "$HOSTS/list.$what")
                say "bench=cluster" "part=long-tcp" "link=1gbit/50ms" "limits=$limits" "what=$what" \
                    "bytes=$bytes" "ms=$ms" "ms_least=$(sort -g "$HOSTS/list.$what" | head -n 1)" \
                    "ms_most=$(sort -g "$HOSTS/list.$what" | tail -n 1)" \
                    "cpu_ms=$(median "$HOSTS/list.$what.cpu")" "share_of_bound=$(calc "$bytes * 8e-6 / $ms")"
            done
        done
    done
}

part_idle() {
    set_links 1gbit
    cc -O2 -I "$top/include" "$top/bench/cluster/idle_owner.c" "${descant%/*}/libdescant.a" \
        -o "$HOSTS/idle_owner" -pthread -ldl -lm || give_up "idle_owner does not compile"
    hosts mpi --library "$library" --hosts 2 env "DESCANT_MPI_MODULE=${descant%/*}" \
        "$HOSTS/idle_owner"
}

# One more exchange of all ranks costs what 100 more do.
part_elastic() {
    set_links none
    cc -O2 -I "$top/include" "$top/bench/cluster/elastic.c" "${descant%/*}/libdescant.a" \
        -o "$HOSTS/elastic" -pthread -ldl -lm || give_up "elastic.c does not compile"
    for plan in easgd,every=1 ma,every=1; do
        for job in mpi mpi:messages; do
            for n in 20 120; do
                few=${sent:-0}
                before=$(hosts sent host0)
                hosts mpi --library "$library" --hosts 4 --ranks-per-host 4 \
                    env "DESCANT_MPI_MODULE=${descant%/*}" "$HOSTS/elastic" $job $plan 1048576 $n \
                    >"$HOSTS/said" 2>&1 || give_up "$plan over $job: $(cat "$HOSTS/said")"
                sent=$(($(hosts sent host0) - before))
            done
            milliseconds ms <"$HOSTS/said" >"$HOSTS/list.ms"
            milliseconds cpu_us <"$HOSTS/said" >"$HOSTS/list.cpu"
            say "bench=cluster" "part=elastic" "library=$library" "plan=$plan" "job=$job" \
                "mib_out=$(calc "($sent - $few) / 100 / 1048576")" \
                "ms=$(median "$HOSTS/list.ms")" "cpu_us=$(median "$HOSTS/list.cpu")"
        done
    done
}

ddp() {    # ranks: the mean over them of examples/s
    rm -f "$HOSTS"/ddp.*
    for rank in $(seq 0 $(($1 - 1))); do
        hosts on "host$rank" taskset -c "$((rank % $(nproc --all)))" env RANK="$rank" \
            WORLD_SIZE="$1" MASTER_ADDR=10.78.0.1 MASTER_PORT=29500 GLOO_SOCKET_IFNAME=eth0 \
            OMP_NUM_THREADS=1 "$python" "$top/bench/peers/ddp.py" 128 "$2" >"$HOSTS/ddp.$rank" &
    done
    wait
    cat "$HOSTS"/ddp.* | sum examples_per_s '"examples_per_s": ' "$1"
}

part_ddp() {
    if ! "$python" -c 'import torch' 2>/dev/null; then
        echo "bench: ddp is left out: $python has no torch" >&2
        return
    fi
    for link in $links; do
        set_links "$link"
        alone=$(ddp 1 500)
        each=$(ddp 2 100)
        say "bench=cluster" "part=ddp" "link=$link" "examples_per_s=$(calc "2 * $each")" \
            "alone_examples_per_s=$alone" "ratio=$(calc "$each / $alone")"
    done
}

# As bench/quality.sh sets them.
optimizer() {
    case $1 in
    momentum) echo "--optimizer sgd --momentum 0.9 --lr 0.01 --table-lr 5 --schedule cosine" ;;
    adaptive) echo "--optimizer adagrad --table-optimizer adagrad --lr 0.04 --table-lr 0.1" ;;
    esac
}

held_out_loss() {    # optimizer, plan, hosts, seed
    # shellcheck disable=SC2046
    hosts mpi --library "$library" --hosts "$3" sh -c "$on_its_core" sh "$descant" train \
        $(optimizer "$1") --model dlrm --batch 128 --data "$HOSTS/pass.tsv" \
        --eval "$HOSTS/held.tsv" --sync "$2" --seed "$4" --sync-cpu "$sync_cpu" --quiet \
        --log "$HOSTS/quality.jsonl" >"$HOSTS/said" 2>&1 ||
        give_up "$1 $2: $(cat "$HOSTS/said")"
    sed -n 's/.*"kind":"summary".*"eval_loss":\([0-9.]*\).*/\1/p' "$HOSTS/quality.jsonl"
}

part_quality() {
    "$descant" gen ctr --rows "$clicks" --seed 1 --out "$HOSTS/pass.tsv" 2>/dev/null &&
        "$descant" gen ctr --rows 200000 --seed 2 --out "$HOSTS/held.tsv" 2>/dev/null ||
        give_up "no clicks"
    set_links 1gbit
    for optimizer in ${CLUSTER_OPTIMIZERS:-momentum adaptive}; do
        for plan in $plans; do
            for n in ${CLUSTER_HOSTS:-1 2 4}; do
                rm -f "$HOSTS/list.loss"
                for seed in $seeds; do
                    held_out_loss "$optimizer" "$plan" "$n" "$seed" >>"$HOSTS/list.loss"
                done
                # shellcheck disable=SC2046
                say "bench=cluster" "part=quality" "library=$library" "link=1gbit" "plan=$plan" \
                    "sync_cpu=$sync_cpu" "optimizer=$optimizer" "hosts=$n" \
                    $(spread "$HOSTS/list.loss" eval_loss)
            done
        done
    done
}

[ $# -gt 0 ] || set -- shadow scaling delayed mean mean-tcp long-tcp idle elastic ddp quality
case "$jobs $*" in
*tls* | *mean-tcp*) (umask 077 && "$descant" secret >"$HOSTS/secret") || give_up "no secret" ;;
esac
"$descant" gen ctr --rows 200000 --seed 1 --out "$HOSTS/clicks.tsv" >/dev/null 2>&1 ||
    give_up "no clicks"
case "$*" in
*shadow* | *scaling* | *delayed*) calibrate ;;
esac
for part in "$@"; do
    case $part in
    shadow | scaling | delayed | mean | idle | elastic | ddp | quality) part_"$part" ;;
    mean-tcp) part_mean_tcp ;;
    long-tcp) part_long_tcp ;;
    *) give_up "there is no part '$part'" ;;
    esac
done
