"""Cores against threads, what a container leaves of them, and whether something holds the clock down."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scalewright.machine.load import fair_threads, loaded, too_many_threads
from scalewright.machine.processor import Processor
from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import Finding

GROUP = "processor"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def cores(processor: Processor) -> Finding:
    """The cores that there are, and those that this process may use."""
    flags = ", ".join(processor.flags) or "no wide instruction sets seen"
    usable, all_of_them = processor.usable_cores, processor.logical_cores
    keys = ("model", "logical_cores", "physical_cores", "usable_cores", "quota_cores", "flags", "numa_nodes")
    data = {key: getattr(processor, key) for key in keys} | {"flags": list(processor.flags)}
    what = f"{processor.model}: {usable} of {counted(all_of_them, 'cores')} usable; {flags}"
    if usable == all_of_them:
        return Finding(GROUP, "cores", "ok", what, data=data)
    cut = "a container's CPU quota" if processor.quota_cores is not None else "an affinity mask"
    if processor.quota_cores is not None and processor.quota_cores != int(processor.quota_cores):
        cut += f" of {processor.quota_cores:.2f}"
    fix = "raise it if the machine is yours alone; libraries that count all cores start too many threads"
    return Finding(GROUP, "cores", "note", f"{what} ({cut} takes the rest)", fix, data)


def threads(
    processor: Processor, environ: Mapping[str, str], torch_threads: int | None, others: float | None = None
) -> list[Finding]:
    """Threads of all local workers against cores: too many are far worse than too few. `others`: cores others take."""
    usable = processor.usable_cores
    findings: list[Finding] = []
    wanted: dict[str, int] = {}
    for name in THREAD_VARIABLES:
        text = environ.get(name, "").split(",")[0].strip()
        if text.isdigit() and int(text) > 0:
            wanted[name] = int(text)
        elif text:
            what = f"{name}={environ[name]!r} is not a number of threads, and is ignored"
            findings.append(Finding(GROUP, "threads", "warn", what, f"export {name}={usable}"))
    text = environ.get("LOCAL_WORLD_SIZE", "1")
    workers = int(text) if text.isdigit() and int(text) > 0 else 1
    each = max(wanted.values(), default=torch_threads or usable)
    source = next((name for name, count in wanted.items() if count == each), "the library's default")
    data = {"threads": each, "workers": workers, "usable_cores": usable, "source": source}
    fair = fair_threads(processor, workers, others)
    per = f"{workers} workers x {each} threads" if workers > 1 else counted(each, "threads")
    on = counted(usable, "usable cores")
    if (remark := too_many_threads(processor, each, workers, others)) is not None:  # as `train` says it
        what, _, fix = remark.partition("; ")
        findings.append(Finding(GROUP, "threads", "warn", f"{what} ({source})", fix, data))
    elif each < fair:
        what = f"{per} on {on} ({source}): {workers * (fair - each)} idle"
        # A number for one process would be each rank's of a run with several.
        unset = f"unset {source}: `train` gives every rank its share; or " if workers == 1 and wanted else ""
        fix = f"{unset}export OMP_NUM_THREADS={fair}{' for one process' if unset else ''}"
        findings.append(Finding(GROUP, "threads", "note", what, fix, data))
    else:
        findings.append(Finding(GROUP, "threads", "ok", f"{per} on {on} ({source})", data=data))
    return findings


def numa(processor: Processor) -> Finding | None:
    """Memory of another NUMA node is slower to reach."""
    if processor.numa_nodes is None:
        return Finding(GROUP, "numa", "note", "cannot tell here how many NUMA nodes there are")
    if processor.numa_nodes == 1:
        return Finding(GROUP, "numa", "ok", "one NUMA node")
    what = f"{processor.numa_nodes} NUMA nodes: a worker whose memory is on another node is slower"
    return Finding(GROUP, "numa", "note", what, "bind each worker: numactl --cpunodebind=N --membind=N")


def clocks(root: Path = Path("/")) -> Finding:
    """The frequency governor and the clock, where they are readable."""
    import psutil  # late: what it imports differs from system to system

    files = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"))[:256]
    governors = {path.read_text().strip() for path in files}
    frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    speed = f", {frequency.current / 1000:.2f} GHz now" if frequency and frequency.current else ""
    if frequency and frequency.current and frequency.max and frequency.max > frequency.current:
        speed += f" of {frequency.max / 1000:.2f}"
    if not governors:
        what = f"no frequency governor to read{speed}: a virtual machine, or not Linux"
        return Finding(GROUP, "clocks", "note", what)
    name = ", ".join(sorted(governors))
    if governors & {"powersave", "conservative"}:
        what = f"frequency governor {name}{speed}: the clock may lag behind bursts"
        return Finding(GROUP, "clocks", "note", what, "sudo cpupower frequency-set -g performance")
    return Finding(GROUP, "clocks", "ok", f"frequency governor {name}{speed}")


def load(processor: Processor, others: float | None = None) -> Finding | None:
    """Whether others are at work here: timings are then not to be trusted."""
    import psutil  # late: what it imports differs from system to system

    average = psutil.getloadavg()[0]
    cores, what = processor.logical_cores, f"load {average:.1f} on {counted(processor.logical_cores, 'cores')}"
    data = {"load_1_minute": round(average, 2), "others_busy_cores": others and round(others, 2)}
    if not (busy := loaded(processor, others)) and (others is not None or average <= 0.5 * cores):
        return Finding(GROUP, "load", "ok", what, data=data)
    what = f"{busy}: timings vary" if busy else f"{what}: others are at work, and timings vary"
    return Finding(GROUP, "load", "note", what, "stop what else runs before you measure", data)


def steal() -> Finding | None:
    """Time that the hypervisor gave to other machines."""
    import psutil  # late: what it imports differs from system to system

    stolen = getattr(psutil.cpu_times_percent(interval=0.1), "steal", None)
    if stolen is None:
        return None
    if stolen > 5:
        what = f"the hypervisor takes {stolen:.0f}% of this machine's time for others"
        return Finding(GROUP, "steal", "warn", what, "use dedicated cores where speed matters")
    return Finding(GROUP, "steal", "ok", "no time stolen by the hypervisor")
