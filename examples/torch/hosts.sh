#!/bin/sh
# SPDX-License-Identifier: MIT
# One of these examples on several hosts, without torchrun: descant run starts its trainers over ssh,
# and one that dies again, alone.
#
#   examples/torch/hosts.sh alpha,beta 2 gpt.py --sync shadow-delta
#
# starts two trainers on each of the hosts alpha and beta. PYTHON: another one than python3. Each host
# has the source at the same place. What PYTHONPATH and DESCANT_LIBRARY say is handed on.
set -eu
hosts=$1
each=$2
example=$3
shift 3
cd "$(dirname "$0")"
# shellcheck disable=SC2086
exec "${DESCANT:-descant}" run --hosts "$hosts" -n "$each" --env PYTHONPATH,PATH \
    ${DESCANT_RUN_OPTIONS:-} -- "${PYTHON:-python3}" "$example" "$@"
