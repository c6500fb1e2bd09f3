"""Before any rank starts: can this machine hold the ones that would run on it?

    need of the ranks here  --estimate (0.1 s)-->  surely less than is free     start
                                                   surely more                  refuse
                                                   else: count it by a dry run  start, or refuse

Refused is only what can't fit: tensors alone, and of many CPU processes what each takes itself.
`--no-memory-check` starts it all the same.
"""

from __future__ import annotations

from scalewright.launch.begin import cores
from scalewright.launch.rank import RankContext
from scalewright.machine.processor import read_processor
from scalewright.spec.common.formatting import counted, gib
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec
from scalewright.train.memory.out_of_memory import estimate, helps
from scalewright.train.resolve import Resolved

GIB = float(2**30)
SHARE = 0.5  # of a pipeline's ranks' sum, counted with its fullest one, that is certain
PROCESS_GIB = 0.1  # a CPU worker's own pages beside those of torch that all share (measured)
PER_CORE = 64  # CPU workers: with more a collective takes seconds
OVERRIDE = "--no-memory-check starts it all the same"


def check_memory(resolved: Resolved, kind: str, context: RankContext) -> None:
    """Raises UserError when the ranks that would run here need more memory than is free.

    `kind`: of the device, cpu, cuda or mps. A model of the user's own isn't counted.
    """
    run = resolved.run
    ranks = run.layout.devices if context.alone else context.local_world
    if kind == "cpu" and context.alone:
        _check_processes(ranks)
    need = estimate(run, resolved.seq_len)
    if need is None:
        return
    sharing = 1 if kind == "cuda" else ranks  # ranks that share the memory that is compared
    trains = run.layout.devices == 1 or not context.alone  # this process, and not workers that it starts
    free = free_memory(kind, ranks, trains)
    if need.high * sharing <= free:
        return
    needed = need.low * (1 + (sharing - 1) * (SHARE if run.layout.pp > 1 else 1.0))
    if needed <= free:
        if not context.alone or run.engine != "scalewright":  # every rank would count; nothing to rehearse
            return
        needed = _counted(run, summed=kind != "cuda")
        if needed <= free:
            return
    raise _refusal(resolved, kind, sharing, needed, free)


def _check_processes(ranks: int) -> None:
    """Raises UserError for more CPU processes than this machine bears, whatever the model."""
    free = free_memory("cpu", ranks, False) / GIB
    most = int(min(free / PROCESS_GIB, PER_CORE * cores()))
    if ranks > max(most, cores()):
        here = f"{counted(cores(), 'cores')} and {free:.1f} GiB of free memory"
        what = f"{counted(ranks, 'CPU processes')} are more than {here} bear"
        how = f"use at most {counted(most, 'devices')}, or --dry-run: it plays all ranks in one process; {OVERRIDE}"
        raise UserError(what, "layout.devices", how)


def free_memory(kind: str, ranks: int, trains: bool) -> float:
    """Bytes that are free: of the fullest GPU, or of this machine's memory, a container's limit counted.

    Counted are the GPUs of the `ranks` local ranks (`train/worker.py`), not all that are visible. `trains`:
    this process is one of these ranks, so what its allocator keeps in reserve is free for it.
    """
    if kind == "cuda":
        import torch

        numbers = range(min(ranks, torch.cuda.device_count()))
        return float(min(_free_on_gpu(n) + (_reserve(n) if trains else 0) for n in numbers))
    processor = read_processor()
    return float(min(processor.memory_available_bytes, processor.usable_memory_bytes))


def _free_on_gpu(number: int) -> int:
    """Bytes free on a GPU, by the driver's library, which takes none itself; else all its bytes."""
    import torch

    total = int(torch.cuda.get_device_properties(number).total_memory)
    try:
        return total - int(torch.cuda.device_memory_used(number))
    except (AttributeError, RuntimeError, ImportError):  # no NVML here
        return total


def _reserve(number: int) -> int:
    """Bytes of a GPU that this process's caching allocator holds for nobody, as after an earlier run."""
    import torch

    # reading it must not make a context, which takes memory itself
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    return int(torch.cuda.memory_reserved(number)) - int(torch.cuda.memory_allocated(number))


def _counted(run: RunSpec, *, summed: bool) -> float:
    """Bytes at the peak of a dry run: of all ranks, or of the fullest."""
    from scalewright.dry_run.dry_run import dry_run

    peaks = [(len(group.ranks), group.step.peak) for group in dry_run(run).groups]
    return float(sum(ranks * peak for ranks, peak in peaks) if summed else max(peak for _, peak in peaks))


def _refusal(resolved: Resolved, kind: str, sharing: int, needed: float, free: float) -> UserError:
    """The error: what the run needs, what is free, and what would help."""
    run = resolved.run
    where = "on this machine" if kind != "cuda" else "on a GPU here"
    subject = f"{sharing} processes need" if sharing > 1 else "this run needs"
    what = f"{subject} at least {gib(needed / GIB)} of memory and {gib(free / GIB)} are free {where}"
    change = helps(run, resolved.seq_len, free, sharing)
    if change is None:
        change = "fewer layout.devices, a smaller model or shorter data.seq_len"
        if run.layout.devices > 1:
            change += ", or start it on the devices it was planned for (--dry-run tries it here)"
    return UserError(what, "layout", f"try {change}; {OVERRIDE}")
