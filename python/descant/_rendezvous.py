# SPDX-License-Identifier: MIT
"""Where trainers of several hosts meet under torchrun.

torchrun tells each process MASTER_ADDR and MASTER_PORT, where its own store listens. So rank 0 takes
a port that is free and writes it into that store, where the others find it. Without such a store (a
program's rank 0 is to have one itself) it is MASTER_PORT + 1, as in programs in C: the library
decides, as it does on one host, where trainers meet in memory."""

import datetime
import itertools
import os
import socket
from typing import Optional

from ._library import Error

_jobs = itertools.count()       # those that this process has started so, by number


def _number(name: str) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return 0


def _free_port() -> int:
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as taken:
        taken.bind(("", 0))
        return taken.getsockname()[1]


def torchrun_address(rank: int, size: int, start_s: float) -> Optional[str]:
    """The job's address; None: this process is not torchrun's, or not one of several hosts, or
    DESCANT_JOB has it. rank below 0, size 0: torchrun's. All trainers make their jobs in the same
    order."""
    size = size or _number("WORLD_SIZE")
    if (not 0 < _number("LOCAL_WORLD_SIZE") < size or os.environ.get("DESCANT_JOB")
            or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"):
        return None
    import torch.distributed
    host, port = os.environ["MASTER_ADDR"], _number("MASTER_PORT")
    key = "/".join(("descant", os.environ.get("TORCHELASTIC_RUN_ID", ""),
                    os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), str(next(_jobs)), "port"))
    try:
        store = torch.distributed.TCPStore(host, port, is_master=False, wait_for_workers=False,
                                           timeout=datetime.timedelta(seconds=max(start_s, 1)))
        if (rank if rank >= 0 else _number("RANK")) == 0:
            store.set(key, str(_free_port()))
        found = int(store.get(key))
    except RuntimeError as error:
        raise Error(f"rank 0 has not said in torchrun's store at {host}:{port} where it listens: "
                    f"{error}", "TIMEOUT") from error
    more = os.environ.get("DESCANT_TCP", "")
    return f"tcp:{f'[{host}]' if ':' in host else host}:{found},ranks={size}" + (more and "," + more)
