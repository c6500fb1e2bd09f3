"""What a save costs: how long training stands still, how long it takes, what memory, and whether damage is found.

    python comparisons/checkpoint_speed.py            1 GiB of fp32 weights and two moments; four minutes
    python comparisons/checkpoint_speed.py --quick    16 MiB, to see that it runs
    --ways "ours, at once" ...                        some of them

Each way saves the same tensors several times, in a process of its own that has measured first what bounds it: a copy of
these bytes into memory that is there already, and one file of them written and flushed (fsync). The first save stands
apart: memory and processes are made in it. Memory: the highest of the process and its children (PSS), without tensors.
Found: whether loading what was saved, with one bit of a tensor flipped in its largest file, raises an error.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from harness.facts import facts, load_average
from harness.result import Result, facts_text, table
from torch import Tensor, nn

KINDS = ("exp_avg", "exp_avg_sq")
ROWS = 2048  # of a tensor of 16 MiB in fp32
Save = Callable[[Path], tuple[float, float]]  # (seconds until training goes on, seconds until it is on the disk)
Way = tuple[Save, Callable[[Path], object], Callable[[], None]]  # saving, loading, ending


def make(total: int) -> dict[str, dict[str, Tensor]]:
    """Tensors of so many bytes in all, by weight and kind."""
    columns = min(ROWS, total // 4 // len(KINDS) // ROWS)
    count = max(total // (4 * ROWS * columns * (1 + len(KINDS))), 1)
    kinds = ("weight", *KINDS)
    return {f"blocks.{n}.weight": {kind: torch.randn(ROWS, columns) for kind in kinds} for n in range(count)}


def flat(tensors: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """By one name."""
    return {f"{kind}.{name}": tensor for name, kinds in tensors.items() for kind, tensor in kinds.items()}


def ours(tensors: dict[str, dict[str, Tensor]], *, beside: bool) -> Way:
    """A save of a run, at once or beside training."""
    from scalewright.checkpoint.asynchronous import AsyncSaver
    from scalewright.checkpoint.format import committed
    from scalewright.checkpoint.read import CheckpointReader
    from scalewright.checkpoint.save import Draft, draft, save
    from scalewright.parallel.mesh import make_mesh
    from scalewright.parallel.weights import Weight, Weights
    from scalewright.spec.grid import make_grid
    from scalewright.spec.layout import Layout
    from scalewright.spec.placement import Placement
    from scalewright.spec.tensors import TensorSpec

    mesh = make_mesh(make_grid(Layout()), 0, torch.device("cpu"))
    items = []
    for name, kinds in tensors.items():
        master = nn.Parameter(kinds["weight"])
        shape = tuple(master.shape)
        place = Placement(TensorSpec(name, shape, "plain", 0), (0,), (), (), ())
        items.append(Weight(place, master, master, ((0,) * len(shape), shape), 1))
    states = {name: {kind: kinds[kind] for kind in KINDS} for name, kinds in tensors.items()}
    saver = AsyncSaver(mesh, apart=True, limit_s=600)

    def drafted(root: Path) -> Draft:
        state: dict[str, object] = {"step": 1, "samples": 1}
        return draft(
            root, Weights(items), states, mesh, step=1, samples=1, run_id="r", model={}, layout={}, state=state
        )

    def at_once(root: Path) -> tuple[float, float]:
        began = time.perf_counter()
        save(drafted(root), mesh)
        return (time.perf_counter() - began,) * 2

    def later(root: Path) -> tuple[float, float]:
        began = time.perf_counter()
        problem = saver.begin(drafted(root))
        stood = time.perf_counter() - began
        saver.settle()
        total = time.perf_counter() - began
        assert not problem
        assert [outcome.problem for outcome in saver.news()] == [""]
        return stood, total

    def load(root: Path) -> object:
        reader = CheckpointReader(committed(root)[0])
        return [reader.read(name) for name in reader.manifest.tensors]

    return later if beside else at_once, load, saver.close


def plain(tensors: dict[str, dict[str, Tensor]]) -> Way:
    """torch.save, flushed."""
    state = flat(tensors)

    def save(root: Path) -> tuple[float, float]:
        began = time.perf_counter()
        with open(root / "state.pt", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        return (time.perf_counter() - began,) * 2

    return save, lambda root: torch.load(root / "state.pt", weights_only=True), lambda: None


def dcp(tensors: dict[str, dict[str, Tensor]], kind: str = "") -> Way:
    """torch's DCP: at once, or with `kind` thread or process. Its buffers are kept, in memory that processes share."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    state = flat(tensors)
    writer = checkpoint.FileSystemWriter
    no_gpu = {"use_pinned_memory": False, "use_async_staging": False, "use_non_blocking_copy": False}
    stager = DefaultStager(StagingOptions(**no_gpu)) if kind else None
    if kind:
        store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)

    def save(root: Path) -> tuple[float, float]:
        began = time.perf_counter()
        if stager is None:
            checkpoint.save(state, storage_writer=writer(root / "dcp", thread_count=2))
            return (time.perf_counter() - began,) * 2
        how = {"async_checkpointer_type": AsyncCheckpointerType(kind), "async_stager": stager}
        future = checkpoint.async_save(state, storage_writer=writer(root / "dcp", thread_count=2), **how)
        stood = time.perf_counter() - began
        getattr(future, "upload_completion", future).result()
        return stood, time.perf_counter() - began

    def load(root: Path) -> object:
        target = {name: torch.empty_like(tensor) for name, tensor in state.items()}
        checkpoint.load(target, checkpoint_id=root / "dcp", no_dist=not kind)
        return target

    return save, load, dist.destroy_process_group if kind else lambda: None


def _free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


WAYS: dict[str, Callable[[dict[str, dict[str, Tensor]]], Way]] = {
    "ours, at once": lambda tensors: ours(tensors, beside=False),
    "ours, beside training": lambda tensors: ours(tensors, beside=True),
    "torch.save": plain,
    "DCP": dcp,
    "DCP, async (thread)": lambda tensors: dcp(tensors, "thread"),
    "DCP, async (process)": lambda tensors: dcp(tensors, "process"),
}


def memory_copy(tensors: dict[str, dict[str, Tensor]]) -> float:
    """Seconds of a copy into memory that has been written before; the best of three."""
    sources = list(flat(tensors).values())
    targets = [torch.zeros_like(tensor) for tensor in sources]
    times = []
    for _ in range(3):
        began = time.perf_counter()
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)
        times.append(time.perf_counter() - began)
    return min(times)


def one_file(tensors: dict[str, dict[str, Tensor]], folder: Path) -> float:
    """Seconds of writing the bytes into one file and flushing it."""
    views = [memoryview(tensor.view(torch.uint8).view(-1).numpy().data) for tensor in flat(tensors).values()]
    os.sync()
    began = time.perf_counter()
    with open(folder / "floor", "wb", buffering=0) as file:
        for view in views:
            for start in range(0, len(view), 4 << 20):
                file.write(view[start : start + (4 << 20)])
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    (folder / "floor").unlink()
    return seconds


@contextmanager
def peak() -> Iterator[list[int]]:
    """The highest bytes meanwhile, of this process and its children."""
    held, done = [_held()], threading.Event()
    first = held[0]
    highest = [0]

    def look() -> None:
        while not done.wait(0.05):
            highest[0] = max(highest[0], _held() - first)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield highest
    finally:
        done.set()
        thread.join()


def _held() -> int:
    total = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


def is_found(load: Callable[[Path], object], root: Path) -> bool:
    """Whether a load of what lies there, one bit of it flipped, raises."""
    load(root)
    largest = max((path for path in root.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    with open(largest, "r+b") as file:
        file.seek(int(largest.stat().st_size * 0.41))  # amid a tensor, also where each has a header of its own
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 4]))
    try:
        load(root)
    except BaseException:  # DCP's CheckpointException is no Exception
        return True
    return False


def one(way: str, total: int, rounds: int, folder: Path) -> dict[str, Any]:
    """A way's numbers, measured in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tensors = make(total)
    size = sum(tensor.nbytes for tensor in flat(tensors).values())
    copy, disk = memory_copy(tensors), list[float]()
    stalls, totals = [], []
    save, load, end = WAYS[way](tensors)
    with peak() as highest:
        for number in range(1 + rounds):
            root = folder / str(number)
            root.mkdir()
            disk.append(one_file(tensors, folder))  # right before: a disk's rate changes from minute to minute
            os.sync()
            stood, whole = save(root)
            stalls.append(stood)
            totals.append(whole)
            if number < rounds:
                shutil.rmtree(root)
    found = is_found(load, root)
    end()
    return {"bytes": size, "copy_s": copy, "disk_s": disk, "stalls_s": stalls, "totals_s": totals, "memory": highest[0],
            "found": found}  # fmt: skip


HEADS = ["way", "stands still, first", "then", "of a memory copy", "written after", "of the disk's rate", "memory",
         "a flipped bit"]  # fmt: skip


def row(way: str, measured: dict[str, Any]) -> list[str]:
    """Of the table."""
    stood, whole = (statistics.median(measured[key][1:]) for key in ("stalls_s", "totals_s"))
    disk = statistics.median(measured["disk_s"])
    cells = [way, f"{measured['stalls_s'][0]:.2f} s", f"{stood:.2f} s", f"{stood / measured['copy_s']:.2f}"]
    cells += [f"{whole:.2f} s", f"{disk / whole:.0%}", f"{measured['memory'] / 2**20:,.0f} MiB"]
    return [*cells, "found" if measured["found"] else "loaded"]


def main() -> None:
    """Runs each way in a process of its own and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="16 MiB, one round")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="some of them")
    parser.add_argument("--disk", type=Path, default=None, help="folder to write to (default: the temporary one)")
    parser.add_argument("--out", type=Path, default=None, help="folder of the result")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    total, rounds = (16 << 20, 1) if options.quick else (1 << 30, 4)
    if options.one:
        print(json.dumps(one(options.one, total, rounds, options.disk)))
        return
    result = Result("checkpoint-speed", "What a save costs", facts(), options.out)
    result.say(facts_text(result.data["facts"]))
    rows = []
    for way in options.ways:
        with tempfile.TemporaryDirectory(dir=options.disk, prefix="saves-") as folder:
            command = [sys.executable, __file__, "--one", way, "--disk", folder]
            command += ["--quick"] if options.quick else []
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
        measured = json.loads(done.stdout.splitlines()[-1])
        result.put(way, {**measured, "load_average": load_average()})
        rows.append(row(way, measured))
    every = [result.data[way] for way in options.ways]
    size = every[0]["bytes"] / 2**20
    floors = statistics.median(m["copy_s"] for m in every), statistics.median(s for m in every for s in m["disk_s"])
    bounds = f"a memory copy of them takes {floors[0]:.2f} s, one flushed file {floors[1]:.2f} s"
    result.say(f"{size:,.0f} MiB in fp32; {bounds}, in the median of all processes.")
    result.say(table(HEADS, rows))
    result.close()


if __name__ == "__main__":
    main()
