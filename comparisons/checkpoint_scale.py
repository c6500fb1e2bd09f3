"""What the metadata of a checkpoint of 70B on 512 ranks take, before and after version 2 of the manifest; and a file.

    python comparisons/checkpoint_scale.py              a few minutes, 6 GB of memory
    python comparisons/checkpoint_scale.py --quick      8 ranks, to see that it runs
    --parts metadata layouts files                      some of it

Every rank's boxes are those of the trainer's placements, and go through its own code, one rank after the other in this
process; only tensors are left out. What a rank sends is counted as the text that travels. CPU seconds, so that other
work on the machine counts little; for files it is wall time, ways in turn.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from harness import checkpoint_before as before
from harness.facts import facts, load_average
from harness.result import Result, facts_text, table
from torch import nn

from scalewright.checkpoint import write
from scalewright.checkpoint.boxes import uncovered
from scalewright.checkpoint.format import StoredFile, parse_manifest, read_manifest, step_folder
from scalewright.checkpoint.pieces import first_damage, write_tensors
from scalewright.checkpoint.read import CheckpointReader
from scalewright.checkpoint.sums import PIECE
from scalewright.checkpoint.write import Chunk, Written, chunks_of, commit, in_files, write_rank
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.weights import Weight, Weights
from scalewright.spec.grid import Grid, make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import Placement, box, holders, place
from scalewright.spec.presets import load_model_spec

KINDS = ("exp_avg", "exp_avg_sq")
CPU = torch.device("cpu")
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "70B on 512: ZeRO-3": ("llama-3.1-70b", {"devices": 512, "zero_stage": 3}),
    "70B on 512: HSDP, 4 replicas": ("llama-3.1-70b", {"devices": 512, "dp_replicate": 4, "zero_stage": 3}),
    "70B on 512: tp 8, pp 8, ZeRO-1": ("llama-3.1-70b", {"devices": 512, "tp": 8, "pp": 8, "zero_stage": 1}),
    "70B on 1,024: ZeRO-3": ("llama-3.1-70b", {"devices": 1024, "zero_stage": 3}),
    "Mixtral 8x7B on 512: ep 8, ZeRO-1": ("mixtral-8x7b", {"devices": 512, "ep": 8, "zero_stage": 1}),
}


class Timer:
    """CPU seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - began


def weights_of(model: ModelSpec, layout: Layout, rank: int) -> tuple[Weights, Mesh]:
    """A rank's weights without numbers."""
    grid, placements = placed(model, layout)
    mesh = Mesh(rank, grid, CPU, {})
    coords, nothing = mesh.coords, nn.Parameter(torch.empty(0))
    mine = [p for p in placements if coords["pp"] in holders(p, layout)]
    return Weights([Weight(p, nothing, nothing, box(p, coords, grid.size_of), 1) for p in mine]), mesh


@lru_cache
def placed(model: ModelSpec, layout: Layout) -> tuple[Grid, tuple[Placement, ...]]:
    """The same for all ranks."""
    return make_grid(layout, model.kv_heads), place(model, layout)


def chunks_on(model: ModelSpec, layout: Layout, rank: int) -> list[Chunk]:
    """What a rank writes: its own code decides which boxes are its."""
    weights, mesh = weights_of(model, layout, rank)
    states = {weight.name: dict.fromkeys(KINDS, weight.master) for weight in weights}
    chunks = chunks_of(weights, states, mesh)
    gc.freeze()  # a rank has its own chunks alone, and its collector no others to look through
    return chunks


def not_written(path: Path, items: Any) -> StoredFile:
    """The entry of a file that isn't written: its size, and as many checksums."""
    size = sum(prod(shape) * dtype.itemsize for _, dtype, shape, _ in items) + 4096
    return StoredFile(size, f"crc32/{PIECE}:" + "89abcdef" * -(-size // PIECE))


def after(
    model: ModelSpec, layout: Layout, all_chunks: list[list[Chunk]], folder: Path, then: Layout
) -> dict[str, Any]:
    """Bytes and CPU seconds of today's code, and of a resume on the same layout and on another."""
    timer, texts = Timer(), []
    with mock.patch.object(write, "write_tensors", not_written):
        for rank, chunks in enumerate(all_chunks):
            with timer("all ranks describe"):
                texts.append(json.dumps(vars(write_rank(folder, chunks, rank))))
    with timer("a rank decodes"):
        written = [Written(**json.loads(text)) for text in texts]
    final = step_folder(folder, 8)
    partial = final.with_name("partial")
    partial.mkdir()
    head = {"step": 8, "samples": 8, "run_id": "r", "model": model.dump(), "layout": layout.dump()}
    with timer("rank 0 merges and writes"):
        commit(partial, final, written, {"step": 8, "samples": 8, "tokens": 8, "optimizer": {}}, **head)
    answer = {
        "boxes": sum(len(chunks) for chunks in all_chunks),
        "bytes a rank": max(map(len, texts)),
        "bytes to rank 0": sum(map(len, texts)),
        "manifest": (final / "manifest.json").stat().st_size,
    }
    for name, other in (("the same layout", layout), ("another layout", then)):
        parse_manifest.cache_clear()
        weights, _ = weights_of(model, other, other.devices // 2)
        with timer(f"a rank reads, {name}"):
            assert uncovered(read_manifest(final).tensors) == []  # as `verify` does
            reader, files = CheckpointReader(final), set()
            for weight in weights:
                for prefix in ("", *(f"optimizer/{kind}/" for kind in KINDS)):
                    copies = reader.copies(reader.manifest.tensors[prefix + weight.name], weight.box)
                    assert sum(prod(lengths) for *_, lengths in copies) == prod(weight.box[1])
                    files |= {part.file for part, _, _ in copies}
        answer[f"files, {name}"] = len(files)
    timer.seconds["a rank describes"] = timer.seconds.pop("all ranks describe") / len(all_chunks)
    parts = ("a rank describes", "a rank decodes", "rank 0 merges and writes")
    timer.seconds["a save in all"] = sum(timer.seconds[part] for part in parts)
    return {**answer, **{f"{name}, CPU s": value for name, value in timer.seconds.items()}}


def before_it(all_chunks: list[list[Chunk]]) -> dict[str, Any]:
    """The same of version 1; a reader of today stands for the one of then, and took three turns."""
    timer, texts = Timer(), []
    for rank, chunks in enumerate(all_chunks):
        with timer("all ranks describe"):
            texts.append(json.dumps(before.describe(in_files(chunks, rank))))
    sizes = list(map(len, texts))
    with timer("a rank decodes"):
        parts = [part for text in texts for part in json.loads(text)]
    del texts
    with timer("rank 0 merges and writes"):
        head = {"step": 8, "samples": 8, "run_id": "r", "model": {}, "layout": {}}
        content = json.dumps({**head, **before.merge(parts)}, indent=1).encode()
    del parts
    with timer("a rank parses once"):
        parse_manifest.__wrapped__(content)
    timer.seconds["a rank describes"] = timer.seconds.pop("all ranks describe") / len(all_chunks)
    names = ("a rank describes", "a rank decodes", "rank 0 merges and writes")
    timer.seconds["a save in all"] = sum(timer.seconds[name] for name in names)
    timer.seconds["a rank reads, the same layout"] = 3 * timer.seconds["a rank parses once"]
    figures = {"bytes a rank": max(sizes), "bytes to rank 0": sum(sizes), "manifest": len(content)}
    return {**figures, **{f"{name}, CPU s": value for name, value in timer.seconds.items()}}


def metadata(quick: bool) -> dict[str, Any]:
    """70B under ZeRO-3: before and after."""
    model, devices = load_model_spec("llama-3.1-70b"), 8 if quick else 512
    layout, then = (Layout.parse({"devices": n, "zero_stage": 3}) for n in (devices, devices // 2))
    chunks = [chunks_on(model, layout, rank) for rank in range(devices)]
    with tempfile.TemporaryDirectory() as folder:
        new = after(model, layout, chunks, Path(folder), then)
    return {"devices": devices, "before": before_it(chunks), "after": new}


def layouts(quick: bool) -> dict[str, Any]:
    """Other layouts: after."""
    rows = {}
    for name, (preset, keys) in LAYOUTS.items():
        model, devices = load_model_spec(preset), 16 if quick else keys["devices"]
        if quick and keys.get("pp"):
            keys = {**keys, "tp": 2, "pp": 2}
        layout = Layout.parse({**keys, "devices": devices})
        chunks = [chunks_on(model, layout, rank) for rank in range(devices)]
        with tempfile.TemporaryDirectory() as folder:
            then = Layout.parse({"devices": devices // 2, "zero_stage": 3})
            rows[name] = after(model, layout, chunks, Path(folder), then)
    return rows


def files(quick: bool) -> dict[str, Any]:
    """A file of 1 GiB in 64 tensors of fp32: written and counted, and compared; each way after the others, in turn."""
    count, rounds = (4, 1) if quick else (64, 5)
    tensors = {f"layers.{number}.weight": torch.randn(1 << 22) for number in range(count)}
    size, seconds = count << 24, {"before": [], "after": [], "torch.save": [], "verify": []}
    items = [(name, value.dtype, tuple(value.shape), value.detach) for name, value in tensors.items()]
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        path = Path(folder, "file")

        def timed(name: str, way: Any) -> Any:
            path.unlink(missing_ok=True)
            os.sync()
            began = time.perf_counter()
            answer = way()
            seconds[name].append(time.perf_counter() - began)
            return answer

        def plain() -> None:
            torch.save(tensors, path)
            with open(path, "rb") as file:
                os.fsync(file.fileno())

        for _ in range(rounds + 1):  # the first one warms up
            timed("torch.save", plain)
            timed("before", lambda: before.write_file(path, tensors))
            stored = timed("after", lambda: write_tensors(path, items))
            began = time.perf_counter()
            assert first_damage(path, stored) is None
            seconds["verify"].append(time.perf_counter() - began)
    spent = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    return {"GB": size / 1e9, "seconds": spent, "GB/s": {name: size / 1e9 / value for name, value in spent.items()}}


def main() -> None:
    """Runs the parts and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few ranks, to see that it runs")
    parts = {"metadata": metadata, "layouts": layouts, "files": files}
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts), help="some of it")
    parser.add_argument("--out", type=Path, default=None, help="folder of the result")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = Result("checkpoint-scale", "Metadata of a checkpoint at scale, and a file", facts(), options.out)
    result.say(facts_text(result.data["facts"]))
    for name in options.parts:
        measured = parts[name](options.quick)
        result.put(name, {**measured, "load_average": load_average()})
        result.say(*say(name, measured))
    result.close()


def say(name: str, measured: dict[str, Any]) -> list[str]:
    """A part as text."""
    if name == "metadata":
        rows = [
            [what, _number(measured["before"].get(what)), _number(value)] for what, value in measured["after"].items()
        ]
        text = f'Llama 3.1 70B, AdamW, ZeRO-3 on {measured["devices"]} ranks; "another layout" is half as many.'
        return [f"## Metadata\n\n{text}\n", table(["", "version 1", "version 2"], rows)]
    if name == "layouts":
        keys = list(next(iter(measured.values())))
        rows = [[key, *(_number(row[key]) for row in measured.values())] for key in keys]
        return ["## Other layouts\n", table(["", *measured], rows)]
    rows = [[way, f"{measured['seconds'][way]:.2f}", f"{measured['GB/s'][way]:.2f}"] for way in measured["seconds"]]
    ratio = measured["seconds"]["before"] / measured["seconds"]["after"]
    text = f"{measured['GB']:.2f} GB to this disk, with fsync, medians. A save takes 1/{ratio:.2f} of what it took."
    return [f"## A file\n\n{text}\n", table(["way", "s", "GB/s"], rows)]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


if __name__ == "__main__":
    main()
