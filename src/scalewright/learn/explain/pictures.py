"""Pictures of entries, as plain data that a terminal, a ticket and a page draw, from the numbers' own functions.

    {kind: bars, title, rows: [[name, value, text]], beside}    parts of one, or things beside each other
    {kind: table, title, heads, rows}
    {kind: drawing, title, text}

Each takes quantities of a run by name (subject.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from scalewright.learn import attention, communication, gpu, memory, numerics, roofline, speedup, training
from scalewright.learn.explain.asked_run import Missing
from scalewright.spec.common.formatting import count, decimal, gib, metric, share, short_time
from scalewright.spec.grid import make_grid
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.question import Question
from scalewright.spec.schedule import bubble_fraction, draw, schedule
from scalewright.spec.schedules.build import find_problem

Drawn = dict[str, Any]
FEW, SCREEN = 8, 112  # ranks of a drawing, and columns of its rows


def _bars(title: str, rows: Iterable[tuple[str, float]], text: Callable[[float], str], beside: bool = True) -> Drawn:
    shown = [[name, value, text(value)] for name, value in rows]
    return {"kind": "bars", "title": title, "rows": shown, "beside": beside}


def _bytes(value: float) -> str:
    return metric(value, "B")


def step_parts(asked: Question) -> Drawn:
    """Seconds of a step by part."""
    from scalewright.plan.predict import price
    from scalewright.spec.step_parts import PARTS, together

    prediction = price(asked)
    parts = together(prediction.breakdown)
    return _bars("a step", [(PARTS[key], value) for key, value in parts.items()], short_time, beside=False)


def memory_parts(asked: Question) -> Drawn:
    """GiB of the worst rank by kind."""
    from scalewright.plan.predict import price

    kinds = price(asked).memory_gib
    return _bars("memory of the worst rank", [kind for kind in kinds.items() if kind[0] != "peak"], gib, beside=False)


def states_by_stage(rank_parameters: float, dp: int) -> Drawn:
    """Bytes of weights, gradients and Adam's states on a rank, by ZeRO stage."""
    rows = [
        (name, memory.model_states(rank_parameters, zero_stage=stage, ranks=dp).total)
        for stage, name in enumerate(("replicated", "ZeRO-1", "ZeRO-2", "ZeRO-3"))
    ]
    return _bars(f"states on each of {dp} data-parallel ranks", rows, _bytes)


def states_by_recipe(parameters: float) -> Drawn:
    """Bytes of the states by recipe, not shared out."""
    recipes = {
        "bf16 + fp32 master, Adam": (2, 2, 12), "the same, fp32 gradients": (2, 4, 12), "all fp32, Adam": (4, 4, 8),
        "bf16 + fp32 master, SGD": (2, 2, 8), "8-bit Adam": (2, 2, 6),
    }  # fmt: skip
    rows = [(name, memory.model_states(parameters, *each).total) for name, each in recipes.items()]
    return _bars("weights, gradients, optimizer", rows, _bytes)


def who_holds(layout: Layout) -> Drawn:
    """The first ranks and their places on each axis."""
    grid, names = make_grid(layout), ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
    axes = [axis for axis in names if int(getattr(layout, axis)) > 1]
    rows = [[rank, *(grid.coords(rank)[axis] for axis in axes)] for rank in range(min(layout.devices, 2 * FEW))]
    more = f", the first {len(rows)} of {layout.devices}" if layout.devices > len(rows) else ""
    return {"kind": "table", "title": f"each rank's place{more}", "heads": ["rank", *axes], "rows": rows}


def zero_shares(dp: int) -> Drawn:
    """What a data-parallel rank holds by ZeRO stage."""
    part = f"1/{dp}"
    rows = [
        ["0", "all", "all", "all", "all-reduce gradients"],
        ["1", "all", "all", part, "reduce-scatter gradients, all-gather weights"],
        ["2", "all", part, part, "the same, gradients freed as they are reduced"],
        ["3", part, part, part, "all-gather weights for each forward and backward, reduce-scatter gradients"],
    ]
    heads = ["stage", "weights", "gradients", "optimizer", "what moves in a step"]
    return {"kind": "table", "title": f"what one of {dp} ranks holds", "heads": heads, "rows": rows}


def timeline(schedule_name: str, ranks: int, virtual_stages: int, micro_batches: int) -> Drawn:
    """A pipeline's schedule, at the largest size up to the run's that a screen has room for, with its bubble."""
    sizes = [
        (p, m)
        for p in range(min(ranks, FEW), 1, -1)
        for m in range(min(micro_batches, 2 * p), min(micro_batches, p) - 1, -1)
    ]
    drawn = {}
    for p, m in sizes or [(ranks, 1)]:
        if find_problem(schedule_name, p, virtual_stages, m) is None:
            drawn[p, m] = draw(schedule(schedule_name, p, virtual_stages, m))
            if len(drawn[p, m].partition("\n")[0]) <= SCREEN:
                break
    if not drawn:
        raise Missing("micro batches")  # as many as this schedule needs
    (p, m), text = list(drawn.items())[-1]
    bubble = share(bubble_fraction(schedule_name, p, virtual_stages, m))
    title = f"{schedule_name}, {p} ranks, {m} micro-batches: {bubble} bubble (F forward, B backward, . idle)"
    return {"kind": "drawing", "title": title, "text": text}


def bubble_by_micro_batches(schedule_name: str, ranks: int, virtual_stages: int) -> Drawn:
    """The bubble's share of a step over micro-batches."""
    rows = [
        (f"{m} micro-batches", bubble_fraction(schedule_name, ranks, virtual_stages, m))
        for m in (ranks * times for times in (1, 2, 4, 8, 16))
    ]
    return _bars(f"bubble of {schedule_name} with {ranks} stages", rows, share)


def bubble_by_schedule(ranks: int, micro_batches: int) -> Drawn:
    """The bubble of each schedule at one size."""
    m = -(-micro_batches // ranks) * ranks
    sizes = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 1, "zbv": 2}
    rows = [(kind, bubble_fraction(kind, ranks, v, m)) for kind, v in sizes.items()]
    return _bars(f"bubble of a step, {ranks} stages, {m} micro-batches", rows, share)


def cache_by_heads(layers: int, heads: int, kv_heads: int, head_dim: int) -> Drawn:
    """Bytes of a token's KV cache if it had as many KV heads as query heads, its own number, or one."""
    kinds = {f"MHA, {heads} KV heads": heads, f"this model, {kv_heads}": kv_heads, "MQA, 1": 1}
    rows = [(name, attention.kv_bytes_of_heads(layers, each, head_dim)) for name, each in kinds.items()]
    return _bars("KV cache of a token", rows, _bytes)


def attention_by_length(model: ModelSpec) -> Drawn:
    """Attention's share of a model's FLOPs over the sequence's length."""
    lengths = [2**power for power in range(11, 19, 1)]
    rows = [(f"{count(length)} tokens", training.attention_share(model, length, causal=True)) for length in lengths]
    return _bars("attention's share of the FLOPs, causal", rows, share)


def bits(names: list[str]) -> Drawn:
    """Formats as their bits: sign, exponent, mantissa."""
    rows = []
    for name in names:
        form = numerics.number_format(name)
        drawn = "s" + "e" * form.exponent + "m" * form.mantissa
        rows.append([name, drawn, f"{form.largest:.3g}", f"{form.smallest:.2g}", f"{form.epsilon:.2g}"])
    heads = ["format", "bits", "largest", "smallest", "epsilon"]
    return {"kind": "table", "title": "number formats", "heads": heads, "rows": rows}


def levels(cluster: ClusterSpec, weight_bytes: float) -> Drawn:
    """The cluster's links from the inside out, and how long the model's weights take over one device's."""
    rows = [
        [level.name, level.kind, "any" if level.size is None else level.size, metric(level.bytes_per_s, "B/s"),
         short_time(weight_bytes / level.bytes_per_s)]
        for level in cluster.levels
    ]  # fmt: skip
    heads = ["level", "kind", "joins", "one way, a device", "the weights take"]
    return {"kind": "table", "title": cluster.name, "heads": heads, "rows": rows}


def amdahl_bars(serial: float) -> Drawn:
    """The speed-up over workers for a serial share."""
    rows = [(f"{n} workers", speedup.amdahl(serial, n)) for n in (1, 2, 4, 8, 16, 64, 256, 1024)]
    return _bars(f"speed-up with {share(serial)} serial", rows, lambda value: f"{decimal(value, 3)}x")


def ring_or_tree(ranks: int, delay: float, bytes_per_s: float) -> Drawn:
    """Milliseconds of an all-reduce by size: a ring beside a tree that isn't pipelined."""
    rows = []
    for size in (1e3, 1e5, 1e6, 1e7, 1e8, 1e9):
        ring = communication.ring_seconds("all_reduce", size, ranks, bytes_per_s, delay)
        tree = communication.tree_all_reduce_seconds(size, ranks, delay, bytes_per_s)
        rows.append([metric(size, "B"), short_time(ring), short_time(tree), "ring" if ring < tree else "tree"])
    heads = ["size", "ring", "tree", "faster"]
    return {"kind": "table", "title": f"all-reduce over {ranks} ranks", "heads": heads, "rows": rows}


def ring_steps(ranks: int) -> Drawn:
    """Which chunk each rank sends in each step of a ring's reduce-scatter and all-gather."""
    p = min(max(2, ranks), 4)
    steps = [f"reduce {step + 1}" for step in range(p - 1)] + [f"gather {step + 1}" for step in range(p - 1)]
    rows = [[f"rank {rank}", *(f"chunk {(rank - step) % p}" for step in range(2 * (p - 1)))] for rank in range(p)]
    title = f"what each of {p} ranks sends to the next: after `reduce` it has one whole sum, after `gather` all"
    return {"kind": "table", "title": title, "heads": ["", *steps], "rows": rows}


def roofline_bars(peak: float, memory_bytes_per_s: float, hidden: int) -> Drawn:
    """The share of the peak that a square product of this width can reach, by its rows."""
    rows = []
    for tokens in (1, 8, 64, 256, 1024, 8192):
        floor = roofline.matmul_floor(tokens, hidden, hidden, peak, memory_bytes_per_s)
        rows.append((f"{tokens:,} tokens, {floor.bound}", floor.compute / floor.seconds))
    return _bars(f"share of the peak within reach, [tokens, {hidden:,}] x [{hidden:,}, {hidden:,}]", rows, share)


def attention_bytes(seq_len: int, head_dim: int, chip_bytes: float) -> Drawn:
    """Bytes that one head moves, materialised and tiled."""
    rows = [
        ("scores through memory", attention.materialised_bytes(seq_len, head_dim)),
        (f"tiles of {_bytes(chip_bytes)}", attention.tiled_bytes(seq_len, head_dim, chip_bytes)),
    ]
    return _bars(f"bytes that a head's forward moves, {seq_len:,} tokens", rows, _bytes)


def parameters_by_part(model: ModelSpec) -> Drawn:
    """A model's parameters by part."""
    parts = training.parameter_parts(model)
    names = ("attention", "mlp", "vocabulary", "norms")
    return _bars("parameters", [(name, float(getattr(parts, name))) for name in names], count, beside=False)


def rope_turns(head_dim: int, theta: float) -> Drawn:
    """Wavelengths of some pairs of a head."""
    pairs = sorted({0, head_dim // 8, head_dim // 4, 3 * head_dim // 8, head_dim // 2 - 1})
    rows = [[pair, f"{attention.rope_wavelength(pair, head_dim, theta):,.1f}"] for pair in pairs]
    return {"kind": "table", "title": "tokens of a turn", "heads": ["pair", "tokens"], "rows": rows}


def data_parallel_traffic(parameters: float, micro_batches: int) -> Drawn:
    """Bytes that a rank's data parallelism sends in a step, by ZeRO stage, in 16 bits."""
    rows = [(f"ZeRO-{s}", 2 * communication.zero_volume(parameters, s, micro_batches)) for s in range(4)]
    return _bars(f"bytes a rank and step, {micro_batches} micro-batches", rows, _bytes)


def occupancy_by_registers(multiprocessors: int) -> Drawn:
    """Warps that an SM holds over those it could, by registers of a thread in blocks of 256 threads."""
    rows = [(f"{r} registers a thread", gpu.occupancy(256, r)) for r in (32, 64, 96, 128, 168, 255)]
    return _bars(f"occupancy of blocks of 256 threads, each of {multiprocessors} SMs", rows, share)


def recompute_choices(asked: Question) -> Drawn:
    """Activations' GiB of the worst rank by what is recomputed."""
    from scalewright.plan.predict import price

    rows = []
    for kind in ("none", "selective", "full"):
        layout = asked.layout.model_copy(update={"recompute": kind})
        rows.append((kind, price(asked, layout).memory_gib["activations"]))
    return _bars("activations by recomputation", rows, gib)
