"""What parts of the engine cost before and after they were rewritten, both of each in one process.

    python comparisons/engine_costs.py            everything; two minutes
    python comparisons/engine_costs.py --quick    smaller, to see that it runs
    --parts groups weights ...                    some of it

A part is a function in PARTS: it returns rows of (what, unit, before, after), and its old form is in
harness/engine_before.py. Counts are exact; seconds are medians of rounds that take turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import packed_rows
import torch
from harness import engine_before as before
from harness.facts import ROOT, facts, load_average
from harness.result import Result, facts_text, table
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from scalewright.dry_run.watch import Watch
from scalewright.model.init import fill_normal
from scalewright.parallel.cross_entropy import CrossEntropy
from scalewright.parallel.mesh import make_mesh
from scalewright.spec.grid import make_grid
from scalewright.spec.groups import cost, plan_groups, used_axes
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec
from scalewright.spec.tensors import count, outer_tensors


class Row(NamedTuple):
    """One number of a part, before and after."""

    what: str
    unit: str
    before: float
    after: float


LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "8B on 8: ZeRO-3": ("llama-3.1-8b", {"devices": 8, "zero_stage": 3}),
    "8B on 64: tp 8, ZeRO-1": ("llama-3.1-8b", {"devices": 64, "tp": 8, "zero_stage": 1}),
    "70B on 512: tp 8, pp 8, ZeRO-1": ("llama-3.1-70b", {"devices": 512, "tp": 8, "pp": 8, "zero_stage": 1}),
    "70B on 1,024: tp 8, pp 8, ZeRO-1": ("llama-3.1-70b", {"devices": 1024, "tp": 8, "pp": 8, "zero_stage": 1}),
    "70B on 1,024: tp 8, pp 8, HSDP": (
        "llama-3.1-70b",
        {"devices": 1024, "tp": 8, "pp": 8, "dp_replicate": 4, "zero_stage": 1},
    ),
    "Mixtral 8x7B on 1,024: tp 4, pp 8, ep 8": (
        "mixtral-8x7b",
        {"devices": 1024, "tp": 4, "pp": 8, "ep": 8, "zero_stage": 1},
    ),
}


def groups(quick: bool) -> list[Row]:
    """How the process groups of a run on GPUs are made: by formula, the one that the mesh follows."""
    rows = []
    for name, (preset, keys) in LAYOUTS.items():
        layout, model = Layout.parse(keys), load_model_spec(preset)
        grid = make_grid(layout, model.kv_heads)
        after = cost(grid, plan_groups(grid, used_axes(layout, model), gpu=True), gpu=True)
        calls, sockets = before.groups_one_by_one(grid, model)
        rows.append(Row(f"{name}: NCCL's splits of the world", "calls of every rank", calls, after.splits))
        rows.append(Row(f"{name}: files of Gloo in a rank", "open files", sockets, after.sockets))
    return rows


def weights(quick: bool) -> list[Row]:
    """First weights of a rank of 8, fp32, one core: a matrix of a block of 8B, cut by rows and by columns."""
    shape, rounds = ((14336, 4096), 5) if not quick else ((1024, 512), 1)
    rows_of = (shape[0] // 8, shape[1])
    columns_of = (shape[0], shape[1] // 8)
    numbers = shape[0] * shape[1]

    def old() -> Any:
        return before.whole_then_box(1, shape, (slice(0, rows_of[0]),))

    def by_index(sizes: tuple[int, int], offsets: tuple[int, int]) -> Any:
        return fill_normal(torch.empty(sizes), 1, shape, offsets, 0.02)

    ways: dict[str, Callable[[], Any]] = {
        "serial, whole": old,
        "whole": lambda: by_index(shape, (0, 0)),
        "rows": lambda: by_index(rows_of, (rows_of[0], 0)),
        "columns": lambda: by_index(columns_of, (0, columns_of[1])),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):  # the first one warms up
        for name, way in ways.items():
            began = time.process_time()
            way()
            seconds[name].append(time.process_time() - began)
    spent = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    per_number = spent["rows"] / (numbers / 8)
    parameters = count(load_model_spec("llama-3.1-8b")).total
    return [
        Row("numbers a CPU second, whole", "million", numbers / spent["serial, whole"] / 1e6,
            numbers / spent["whole"] / 1e6),
        Row("a rank's eighth of a matrix, by rows", "CPU s", spent["serial, whole"], spent["rows"]),
        Row("a rank's eighth, by columns", "CPU s", spent["serial, whole"], spent["columns"]),
        Row("8B on 8 ranks, each rank, at these rates", "CPU s",
            parameters * spent["serial, whole"] / numbers, parameters / 8 * per_number),
    ]  # fmt: skip


def async_tp(quick: bool) -> list[Row]:
    """Collectives of a compiled block with tp and sp that inductor's async-TP pass would fuse."""
    sys.path.insert(0, str(ROOT))
    from tests.parallel.block_graphs import block_graphs, fusable

    def look() -> dict[str, tuple[int, int]]:
        graphs = block_graphs()
        parts = {"forward": graphs.forward, "backward": graphs.backward}
        return {name: fusable(*each) for name, each in parts.items()}

    with before.moved_dims():
        old = look()
    new = look()
    return [
        Row(f"a block's {name}: of {new[name][1]} collectives", "fusable", old[name][0], new[name][0]) for name in new
    ]


def rows(quick: bool) -> list[Row]:
    """A row of 2,048 tokens in several documents, Llama of four layers on one core, fp32: attention with a
    mask of all pairs, and by tiles (packed_rows.py has all cases)."""
    seq_len, rounds = (256, 1) if quick else (2048, 5)
    measured = []
    for name in ("llama", "capped scores"):
        model = ModelSpec.parse({"name": "small", "context": seq_len, **packed_rows.MODEL, **packed_rows.MODELS[name]})
        answer = packed_rows.compare(model, seq_len, rounds, packed=True)
        masks, tiles = answer["masks"], answer["tiles"]
        measured.append(Row(f"{name}: kept for the backward", "MB", masks["kept"] / 1e6, tiles["kept"] / 1e6))
        seconds = [statistics.median(way["seconds"]) for way in (masks, tiles)]
        measured.append(Row(f"{name}: forward and backward", "s", *seconds))
    return measured


def loss(quick: bool) -> list[Row]:
    """Head and loss of 8B in bf16 on one device: the highest bytes beside the head's input and weight, their
    gradients among them, as a dry run counts. Up to 20,568 tokens whole logits stay, in bf16, with the
    gradient in their place; more are in chunks."""
    model, columns = load_model_spec("llama-3.1-8b"), []
    numbers = (8192, 16384, 32768, 65536)
    for way in (before.head_of_whole_logits, head_by_chunks):
        columns.append([_highest(way, tokens, model) / 2**30 for tokens in numbers])
    return [
        Row(f"{tokens:,} tokens of 128,256 words", "GiB", *pair)
        for tokens, *pair in zip(numbers, *columns, strict=True)
    ]


def _highest(way: Callable[[Tensor, Tensor, Tensor], Tensor], tokens: int, model: ModelSpec) -> int:
    """Bytes of a forward and backward, at their highest; nothing is computed."""
    mesh = make_mesh(make_grid(Layout()), 0, torch.device("cpu"))
    with FakeTensorMode(), Watch(mesh, None) as watch:
        sizes = (tokens, model.vocab_size)
        leaves = [torch.empty(n, model.hidden_size, dtype=torch.bfloat16) for n in sizes]
        targets = torch.zeros(tokens, dtype=torch.int64)
        for tensor in (*leaves, targets):
            watch.live.tag(tensor, "parameters")
        start, window = watch.live.total, watch.live.open()
        way(*(leaf.requires_grad_() for leaf in leaves), targets).backward()
        watch.live.close(window)
    return window.peak - start


def head_by_chunks(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The engine's own."""
    return CrossEntropy().of_head(targets)(hidden, weight, None)[0]


def roots(quick: bool) -> list[Row]:
    """What FSDP gathers (bf16) and reduces (fp32) of 8B with nothing beside it, a micro-batch: the tensors
    outside of blocks in one group, and the embedding apart from norm and head."""
    outer = outer_tensors(load_model_spec("llama-3.1-8b"))
    sizes = {tensor.name: prod(tensor.shape) for tensor in outer}
    embedding, everything = sizes["embed.weight"], sum(sizes.values())
    return [
        Row(f"{what}, exposed", "GB", width * everything / 1e9, width * embedding / 1e9)
        for what, width in (("gathered", 2), ("reduced", 4))
    ]


PARTS: dict[str, Callable[[bool], list[Row]]] = {
    "rows": rows,
    "loss": loss,
    "roots": roots,
    "groups": groups,
    "async-tp": async_tp,
    "weights": weights,
}


def main() -> None:
    """Runs the parts and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller, to see that it runs")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="some of it")
    parser.add_argument("--out", type=Path, default=None, help="folder of the result")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = Result("engine-costs", "What parts of the engine cost, before and after", facts(), options.out)
    result.say(facts_text(result.data["facts"]))
    cells = []
    for name in options.parts:
        measured = PARTS[name](options.quick)
        result.put(name, {"rows": [row._asdict() for row in measured], "load_average": load_average()})
        cells += [(name, row.what, row.unit, _number(row.before), _number(row.after)) for row in measured]
    result.say(table(["part", "", "unit", "before", "after"], cells))
    result.say("", *(f"- *{name}*: {' '.join((PARTS[name].__doc__ or '').split())}" for name in options.parts))
    result.close()


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
