# SPDX-License-Identifier: MIT
"""Descant: training loops that run on while their replicas are kept together.

    import descant
    with descant.attach(model, plan="shadow-delta") as sync:      # after the optimizer is made
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
            sync.step()

Each process is a trainer. Started by descant run, torchrun, mpirun, srun, or with RANK, WORLD_SIZE
and MASTER_PORT set, they find each other; a process without a launcher is a job of its own. Data is
sharded by the caller's sampler. What the library says goes to the logger "descant".

Kept in step are floating parameters that are trained (frozen=True: all of them), a module's of
float32 on the CPU in the library's own memory, without a copy; others, as of bfloat16 or on a
device, through a copy in float32, in whose precision they are then trained. A parameter must stay
where it is: values are written in place. What else looks into its memory, as p.detach().numpy()
does, is to be made after attach; parameters and buffers of the module that do are moved with it.

A forked child has no job, but sees the parameters in the same memory: what it writes there, its
parent trains on. Let it copy.deepcopy(model) first."""

import glob
import importlib.metadata
import os
import platform
import types
from typing import Any, Dict, NamedTuple, Optional

from . import _library
from ._library import Error
from ._moments import Moments
from ._optimizers import calls_hooks, unwrapped
from ._rendezvous import torchrun_address
from ._sync import Event, Sync

__all__ = ["Embedding", "EmbeddingBag", "Error", "Event", "Hook", "Plan", "Sync", "attach", "hook", "info",
           "plans"]
__version__ = _library.library.descant_version().decode()


def __getattr__(name: str) -> Any:
    """Embedding and EmbeddingBag are modules of PyTorch, which is imported for them alone."""
    if name in ("Embedding", "EmbeddingBag"):
        from . import _embedding
        return getattr(_embedding, name)
    raise AttributeError(f"module 'descant' has no attribute '{name}'")


class Plan(NamedTuple):
    """A preset: the changes it makes to the defaults, and what it was published as."""

    changes: str
    published: str


def attach(model: Any, plan: Optional[str] = None, job: Optional[str] = None, *, workers: int = 1,
           rank: int = -1, size: int = 0, sync_cpu: float = 0.0, sync_rate: float = 0.0,
           start_s: float = 300.0, optimizer: Any = None, frozen: bool = False,
           buffers: Optional[str] = None, final: Optional[str] = None,
           rows_move: bool = False, rows_replica: float = 0.0) -> Sync:
    """Joins the job with the parameters of model, and waits for the other trainers: afterwards all
    have the first one's values (rank 0's).

    model is a torch.nn.Module, or tensors or NumPy arrays: a dict of them, pairs of name and
    tensor, a list, or one. A module's frozen parameters and integers are left alone. Tensors and
    arrays that are no module's parameters stay in the caller's memory.

    plan: a preset and changes to it, "dasgd,every=8,delay=2"; without it the variable DESCANT_PLAN,
    else "shadow-delta", or "shadow-easgd" with optimizer=; descant.plans() has them all. job: "self",
    "shm:NAME" for trainers of one machine, "mpi", "tcp:HOST:PORT"; without it the variable DESCANT_JOB,
    else the launcher's; under torchrun on several hosts that is over TCP, with what the variable
    DESCANT_TCP has (secret=FILE). rank, and size, the
    trainers to wait for: without them the launcher's; where there is none, the lowest rank that is
    free, and nobody is waited for. start_s: seconds that attach waits for the others. workers:
    threads that will call step. Under shadow plans, sync_cpu is the share of a core that the exchange
    may use (0: a core, if one is spare, else 0.02), and as much again for each GPU's copies, and
    sync_rate the bytes a second (0: no limit).
    optimizer: what it keeps in tensors of floats, as momentum, moments and counts of steps, is kept in
    step with the parameters, too; without it, each trainer's is its own. Under plans whose merges
    extrapolate (what=block, merge=delta) what may have to stay above zero, as Adam's sums of
    squares, is refused.
    buffers: "mean", a module's default: floating buffers, such as batch-norm statistics, are averaged
    at finish (the first trainer's, with final="local"); or "leave". final: what finish gives all: the
    "mean" of the trainers' parameters, the first one's ("local"), or the plan's "central" copy or
    global version; without it "mean", and "local" under the plans none and allreduce.
    rows_move: over TCP, rows of descant.Embedding go to ranks that come late, and from those that part.
    rows_replica: with it, seconds: another rank has a copy of each row, at most so old, and takes the
    rows of a rank that dies; 0: such a death ends the job."""
    if job is None:
        job = torchrun_address(rank, size, start_s)
    options = _library.library.descant_options_default()
    options.job, options.plan = _library.text("job", job), _library.text("plan", plan)
    options.workers, options.rank, options.size = workers, rank, size
    options.sync_cpu, options.sync_rate, options.start_s = sync_cpu, sync_rate, start_s
    options.owned_moves, options.owned_replica_s = rows_move, rows_replica
    options.log = _library.say
    return Sync(model, options, optimizer=optimizer, frozen=frozen, buffers=buffers, final=final)


class Hook:
    """What hook has put into an optimizer; remove takes it out."""

    def __init__(self, *handles: Any):
        self._handles = handles

    def remove(self) -> None:
        for handle in self._handles:
            if handle is not None:
                handle.remove()
        self._handles = ()


class _Around:
    """For optimizers without hooks, as PyTorch's before 2.0: a step of the instance's own. Others,
    as schedulers, may have wrapped that in turn, so it stays, and does nothing more."""

    def __init__(self, optimizer: Any, before: Any, after: Any):
        step = optimizer.step
        self._on = True

        def around(_optimizer: Any, *args: Any, **more: Any) -> Any:
            if self._on:
                args, more = before(args, more)
            result = step(*args, **more)
            if self._on:
                after()
            return result
        optimizer.step = types.MethodType(around, optimizer)

    def remove(self) -> None:
        self._on = False


def hook(optimizer: Any, sync: Sync, *, moments: str = "mean") -> Hook:
    """For loops that cannot be edited: each optimizer.step() is followed by sync.step(). The loop's
    own sync.step(), or a second hook of this optimizer, would count each step twice, and is an error.

    moments: what Adam, AdamW, NAdam and RAdam divide their steps by, under plans that keep
    parameters together. "mean": the second moments of the mean of all trainers' gradients, estimated
    from this trainer's, so that a rate means what it means under DDP, however many trainers there
    are; not with AMSGrad, nor with decay that is a part of the gradient. "own": those of this
    trainer's gradients, as the optimizer has them.

    Under the plan allreduce each backward ends with the mean of all gradients over the trainers, as
    under DDP, so that they may be clipped, and unscaled by a GradScaler; inside sync.no_sync() they
    are added up. A closure's loss is averaged, too. After finish or close the hook does nothing
    more. Where one optimizer wraps another, as Lookahead does, optimizer is the outer one."""
    optimizer = unwrapped(optimizer)
    if not isinstance(sync, Sync):
        raise TypeError(f"hook(optimizer, sync): sync is what attach has returned, not {sync!r}")
    if moments not in ("mean", "own"):
        raise ValueError(f"moments is 'mean' or 'own', not {moments!r}")
    handles = sync.counts(optimizer), sync.averages_at_backward()
    of_mean = Moments(optimizer) if moments == "mean" and sync.merges_parameters else None

    def before(args: Any, more: Any) -> Any:
        closure = args[0] if args else more.get("closure")
        if not sync.means_gradients or sync.ended:
            return args, more
        if not callable(closure):
            sync.before_optimizer()
            return args, more
        averaged = sync.averaged_closure(closure)
        return ((averaged, *args[1:]), more) if args else (args, {**more, "closure": averaged})

    def after() -> None:
        if of_mean and not sync.ended:
            of_mean.correct(sync.members()["size"])
        sync.hooked_step()

    def before_hook(itself: Any, args: Any, more: Any) -> Any:
        args, more = before(args[1:], more)
        return (itself, *args), more
    if not calls_hooks(optimizer):
        return Hook(_Around(optimizer, before, after), *handles)
    return Hook(optimizer.register_step_pre_hook(before_hook),
                optimizer.register_step_post_hook(lambda *_: after()), *handles)


def plans() -> Dict[str, Plan]:
    """The presets, by name."""
    return {name: Plan(*row) for name, row in _library.presets().items()}


def info() -> Dict[str, Any]:
    """What one needs to know about this installation before asking for help. None: is not
    installed. mpi: the MPI libraries that this one can use; others need their module beside it.
    tls: whether jobs between hosts can have a secret or certificates; else that needs its module."""
    versions: Dict[str, Optional[str]] = {}
    for name in ("torch", "numpy"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    library = os.path.realpath(_library.loaded())
    folder = glob.escape(os.path.dirname(library))
    modules = {os.path.basename(name)[len("descant-"):-len(".so")] for where in ("", "descant/")
               for name in glob.glob(f"{folder}/{where}descant-*.so")}
    return {"version": __version__, "library": library, "tls": "tls" in modules,
            "mpi": sorted(name[len("mpi-"):] for name in modules if name.startswith("mpi-")),
            "python": platform.python_version(), "machine": platform.platform(), **versions}
