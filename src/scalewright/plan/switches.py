"""Settings of a run outside its layout: kernels, overlap, experts, precision, the machine.

    cuda_graphs=attn+router;moe=drop --> Switches(cuda_graphs={"attn", "router"}, moe="drop")

A switch that isn't given has the trainer's default of its date (plan/data/frameworks.yaml). The names are
those of the trainers' documentation; `WORDS` lists the choices of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from scalewright.spec.errors import UserError, unknown
from scalewright.spec.hardware.topology import FABRICS

WORDS: dict[str, tuple[str, ...]] = {
    # parts of a block captured in a graph; `full`: a whole iteration, `layer`: whole blocks
    "cuda_graphs": ("none", "full", "layer", "attn", "mlp", "mamba", "router"),
    "dispatcher": ("alltoall", "allgather", "deepep", "hybridep", "flex"),
    "moe": ("drop", "dropless"),
    "fp8_recipe": ("tensorwise", "rowwise", "blockwise", "mxfp8", "nvfp4"),
    "fp8_parts": ("linear", "experts", "attention"),
    "fabric": FABRICS,
    "recompute_modules": ("core_attn", "layernorm", "moe_act", "act", "mla_up_proj", "shared_experts", "moe", "mlp"),
}
SHORT = {"ib": "infiniband"}
FLAGS = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True)
class Switches:
    """The switches of a run; None or empty: not given."""

    async_tp: bool | None = None
    compile: bool | None = None
    bf16_grads: bool | None = None  # gradients are reduced, and kept, in 2 bytes
    dp_overlap: bool | None = None  # of gradients and parameters with computation
    ep_overlap: bool | None = None  # of dispatch with another micro-batch's computation
    tp_overlap: bool | None = None
    fp8_gather: bool | None = None  # parameters are gathered in 8 bits
    fused_experts: bool | None = None  # grouped products, activation and quantization in one kernel
    grouped_gemm: bool | None = None  # False: one product after the other, expert by expert
    partition_activations: bool | None = None  # what whole recomputation keeps is cut over tp (DeepSpeed)
    permute_fusion: bool | None = None  # token permutation and padding in one kernel
    capacity: float | None = None  # capacity factor that an expert's tokens are padded to
    node_gbps: float | None = None  # Gbit/s between nodes, a whole node, one way
    power_w: float | None = None
    loss_chunks: float | None = None  # parts of a micro-batch whose logits are made one after the other
    offload_layers: float | None = None  # blocks whose activations are kept on the host
    held: tuple[float, ...] | None = None  # bytes a parameter: weights, gradients, optimizer states
    dispatcher: str | None = None
    fabric: str | None = None  # the kind of network between nodes
    fp8_recipe: str | None = None
    moe: str | None = None
    cuda_graphs: frozenset[str] = frozenset()
    fp8_parts: frozenset[str] = frozenset()
    recompute_modules: frozenset[str] = frozenset()


NO_SWITCHES = Switches()
NAMES = tuple(field.name for field in fields(Switches))


@lru_cache(maxsize=4096)
def _switches(given: tuple[tuple[str, str], ...], where: str) -> Switches:
    return Switches(**{key: _READERS[key](key, value, where) for key, value in given})


def read_switches(options: Mapping[str, str], where: str = "row") -> Switches:
    """The switches among `options`; other keys are ignored. Raises UserError for a bad value."""
    return _switches(tuple((key, str(options[key])) for key in NAMES if key in options), where)


def check_names(options: Mapping[str, str] | None) -> None:
    """Raises UserError for a key that is no switch, with the nearest names."""
    for key in options or {}:
        if key not in NAMES:
            raise unknown("option", key, NAMES, "--options")


def _flag(key: str, word: str, where: str) -> bool:
    if word.lower() not in FLAGS:
        raise UserError(f"option {key} is '{word}'", where, f"write {key}=1 or {key}=0")
    return FLAGS[word.lower()]


def _number(key: str, word: str, where: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        raise UserError(f"option {key} is '{word}'", where, "give a number above 0")
    return value


def _numbers(key: str, word: str, where: str) -> tuple[float, ...]:
    """`2+2+0`: three numbers from 0."""
    values = tuple(0.0 if part.strip() == "0" else _number(key, part, where) for part in word.split("+"))
    if len(values) != 3:
        raise UserError(f"option {key} is '{word}'", where, "give bytes of weights, gradients, states: 2+4+12")
    return values


def _word(key: str, word: str, where: str) -> str:
    word = SHORT.get(word.lower(), word)
    if word.lower() not in WORDS[key]:
        raise unknown(key, word, WORDS[key], where)
    return word.lower()


def _parts(key: str, word: str, where: str) -> frozenset[str]:
    """`a+b`; for CUDA graphs also 0 (none) and 1 (layer, the scope of the older flag)."""
    if key == "cuda_graphs" and word.lower() in FLAGS:
        word = "layer" if FLAGS[word.lower()] else "none"
    return frozenset(_word(key, part.strip(), where) for part in word.split("+"))


_OF_TYPE: dict[str, Callable[[str, str, str], Any]]
_OF_TYPE = {"bool": _flag, "float": _number, "str": _word, "frozenset[str]": _parts, "tuple[float, ...]": _numbers}
_READERS = {field.name: _OF_TYPE[str(field.type).removesuffix(" | None")] for field in fields(Switches)}
