"""What wasn't said, filled, and each filling named: the `assumed` of an answer.

    said: {nodes: 64, tp: 8}                    full: {devices: 512, tp: 8, zero_stage: 3, ...}
    not said, and it matters: zero_stage --->   assumed: ["zero_stage 3", "micro_batch 1", ...]

A blank of the layout is what `train` would make of it, except ZeRO with another trainer: its own usual.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd, isfinite
from typing import Any

from scalewright.plan.chips import WIDTHS
from scalewright.plan.frameworks import OURS, Framework, check_name, find_framework
from scalewright.plan.request import Request
from scalewright.plan.rows.cells import MOST
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import ADAMW, Optimizer, find_optimizer

LIMITS = {
    "devices": MOST["n_devices"], "nodes": MOST["n_devices"], "seq_len": MOST["seq"],
    "micro_batch": MOST["mbs"], "global_batch": MOST["gbs"], "tp": MOST["tp"], "pp": MOST["pp"],
    "cp": MOST["cp"], "ep": MOST["ep"], "etp": MOST["ep"], "virtual_stages": MOST["vpp"],
    "dp_replicate": MOST["n_devices"],
}  # fmt: skip


def check_whole(name: str, value: Any, least: int = 1) -> int:
    """A size as a whole number within reason; raises UserError for NaN, fractions, and slips of the pen."""
    most = LIMITS.get(name, 10**15)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not isfinite(value) or value != int(value) or not least <= value <= most:
        raise UserError(
            f"{name} is {value!r}", "layout" if name in Layout.model_fields else name,
            f"give a whole number from {least} to {most}",
        )  # fmt: skip
    return int(value)


def resolve_length(model: ModelSpec, seq_len: Any) -> tuple[int, list[str]]:
    """The sequence length: as said, or the model's context."""
    if seq_len is not None:
        return check_whole("seq_len", seq_len), []
    return model.context, [f"seq_len {model.context} (the model's context)"]


def resolve_sizes(given: Mapping[str, Any], cluster: ClusterSpec, length: int) -> dict[str, Any]:
    """Keys of a layout from what was said: `nodes` and `global_batch_tokens` turned into the layout's own."""
    keys = {key: value for key, value in given.items() if value is not None}
    for name in LIMITS:
        if name in keys:
            keys[name] = check_whole(name, keys[name])
    if (nodes := keys.pop("nodes", None)) is not None:
        _agree(keys, "devices", nodes * cluster.devices_per_node, f"nodes {nodes}")
    if (tokens := keys.pop("global_batch_tokens", None)) is not None:
        whole = check_whole("global_batch_tokens", tokens)
        if whole % length:
            near = max(1, round(whole / length)) * length
            raise UserError(
                f"global_batch_tokens {whole} is not divisible by seq_len {length}",
                "layout",
                f"use {near} ({near // length} sequences)",
            )
        _agree(keys, "global_batch", whole // length, f"global_batch_tokens {whole}")
    return keys


def _agree(keys: dict[str, Any], name: str, value: int, source: str) -> None:
    """Sets a key that may have been said in two ways."""
    if keys.setdefault(name, value) != value:
        raise UserError(
            f"{name} {keys[name]} and {source}, which is {name} {value}", "layout", "give one of them"
        )


def fill_devices(keys: dict[str, Any]) -> list[str]:
    """Sets the devices that nobody said: the fewest that these axes need."""
    if "devices" in keys:
        return []
    ranks = keys.get("tp", 1) * keys.get("cp", 1)
    experts = keys.get("ep", 1) * keys.get("etp", 1)
    shard = experts // gcd(experts, ranks)
    keys["devices"] = ranks * keys.get("pp", 1) * keys.get("dp_replicate", 1) * shard
    return [f"devices {keys['devices']}"]


def usual_zero(keys: dict[str, Any], trainer: Framework, cluster: ClusterSpec) -> list[str]:
    """Sets the ZeRO stage that another trainer runs with when nobody says; ours has its own rule."""
    if trainer.name == OURS or "zero_stage" in keys or keys["devices"] == 1:
        return []
    sharded = cluster.device.kind == "tpu" or trainer.zero_stage >= 3
    keys["zero_stage"] = 3 if sharded else min(1, trainer.zero_stage)
    return [f"zero_stage {keys['zero_stage']} (usual with {trainer.name})"]


def assumptions(given: Iterable[str], layout: Layout, request: Request) -> list[str]:
    """The keys that matter here, that nobody said, as they were filled."""
    said = set(given)
    found = {
        "sp": layout.tp > 1, "schedule": layout.pp > 1, "micro_batch": True,
        "global_batch": True, "zero_stage": layout.devices > 1, "recompute": True,
    }  # fmt: skip
    words = {"sp": str(request.sp).lower(), "global_batch": f"{layout.global_batch} (micro_batch x dp)"}
    lines = [
        f"{key} {words.get(key, getattr(layout, key))}"
        for key, matters in found.items()
        if matters and key not in said
    ]
    if layout.precision == "auto":
        lines.append(f"precision {request.precision} (auto)")
    rate = request.chip.peak(request.precision)[0]
    if WIDTHS[rate] != WIDTHS[request.precision]:
        lines.append(f"rates of {rate}: {request.chip.name} has none in {request.precision}")
    return lines


def resolve_trainer(name: str | None, version: str | None) -> tuple[Framework, list[str]]:
    """Whose step time is asked for, and what must be said about that."""
    if name is None:
        return find_framework(OURS), [f"framework {OURS}"]
    check_name(name)
    if version is not None and not any(letter.isdigit() for letter in version):
        how = "give the release's number, such as 25.11"
        raise UserError(f"software-version is '{version}'", "--software-version", how)
    found = find_framework(name, version)
    year = int(found.year)
    if found.known:
        dated = version is not None or str(year) in found.name or found.name == OURS
        return found, [] if dated else [f"{found.name} of {year} (--software-version says another)"]
    return found, [f"framework {name}: priced as the usual trainer of {year}"]


def resolve_optimizer(name: str | None, framework: str | None) -> tuple[Optimizer, list[str]]:
    """The optimizer, a run file's default where none is named; other trainers are priced with AdamW alone."""
    ours = framework in (None, OURS)
    if name is None:
        return ADAMW, [f"optimizer {ADAMW.name}"] if ours else []
    record = find_optimizer(name, "--optimizer")
    if not ours and record is not ADAMW:
        raise UserError(
            f"{framework} is priced with {ADAMW.name}, not with {name}",
            "--optimizer",
            f"leave --framework out: {OURS}'s own trainer is planned with each of its optimizers",
        )
    return record, []
