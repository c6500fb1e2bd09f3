"""A trainer's properties, looked up in data/frameworks.yaml, and its capabilities (spec/capabilities.py).

    "Megatron-Bridge 25.11" -> modern kernels, gradients and parameters overlap with computation, ...
                               and what Megatron Core 0.15 has (releases.py): tokens permuted in one kernel, DeepEP, ...

An unknown trainer is priced as the usual one of its date and its device's kind (`habits`); `known` is false then, and
the band is wider. One that is priced as another may have capabilities of its own (`of_framework`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.plan.releases import date_of, release_facts, table, without
from scalewright.spec.capabilities import ABOVE_ONE, Capabilities, Rule, find_capabilities, trainers_on
from scalewright.spec.errors import UserError, nearest, unknown
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.trains import why_not_trained

DATA = Path(__file__).parent / "data"
KERNELS = ("eager", "fused", "modern", "compiled", "xla")
HOSTS = (*KERNELS, "deepspeed", "nanotron")
ATTENTION = ("unfused", "softmax", "flash1", "flash", "best")
FUSED_ATTENTION = ATTENTION[2:]
OURS = "scalewright"  # this project's own trainer
TYPO = 0.8  # similarity of two names above which one counts as a typo of the other
RULES = (
    "match",
    "habits",
    "engine",
    "numbers",
    "device",
    "narrow",
    "before",
)  # keys of an entry or its habits that are no facts
# Kernels that a name states, such as "llm-foundry (FlashAttention 1 in Triton)", over those of its release
STATED = {"flash1": r"flash.?att\w*[ -]?1\b", "flash": r"flash.?att\w*[ -]?2\b", "best": r"flash.?att\w*[ -]?[34]\b"}
OTHER = "unknown"  # the name of a trainer that isn't in the table


@dataclass(frozen=True)
class Framework:
    """Facts about a trainer, in the data file's words."""

    name: str
    asked: str  # the name that it was asked for by, in lower case
    version: str | None  # the release that it was asked for by
    kernels: str
    host: str
    attention: str
    overlap_grads: bool
    overlap_zero1: bool
    overlap_params: bool
    overlap_tp: bool
    overlap_p2p: bool
    buckets: str
    split: str
    fsdp_copies: bool  # shards by FSDP2, which copies parameters out of its buffers
    pipe_engine: bool  # DeepSpeed's: tp ranks gather each message's parts; gradients go after the last backward
    grads: float  # bytes of a gradient on the wire
    held: tuple[float, float, float]  # bytes of a parameter: weights, gradients, optimizer states
    cast_grads: float  # of these, while an update runs
    gathers: str  # what ZeRO-3 gathers at once: a block, or a product's weight
    grads_follow: bool  # to the host, where optimizer states are there
    p2p: str
    logits: float
    gathered: str  # inputs of tensor-parallel products, as they were gathered: freed, kept, or freed late
    selective: str
    zero_stage: int
    known: bool
    dropout: bool
    year: float
    lineage: str  # trainers of one engine, forks included, have the same
    release: str | None  # of its engine, where the file lists these
    sequence_parallel: bool  # with tensor parallelism, where a row doesn't say
    tightest: str  # what is rebuilt where nothing less fits, if a row doesn't say: full, modules or policy
    dispatcher: str  # moves tokens to experts
    permute_fusion: bool  # tokens are sorted by expert in one kernel
    router_fusion: bool  # and scored in one
    fp8_kept: str  # what 8-bit products keep in 8 bits: none, inputs, or inputs+gates (of SwiGLU)
    buffers_gib: float
    context_gib: float
    eager_kept: float
    modules: tuple[str, ...]  # what its recipes recompute where `selective` means modules
    shared: float
    usable: float
    memory_spread: float
    measured: bool  # whether step times of it are in data/measured_runs.csv


@lru_cache(maxsize=4096)
def find_framework(name: str, version: str | None = None, device: str = "gpu", narrow: bool = False) -> Framework:
    """The entry that a trainer's name and version match; the last one, of unknown ones, by date, `device`'s kind, and
    whether the run's products are `narrow`er than 16 bits."""
    defaults, entries = table()["defaults"], table()["entries"]
    text = f"{name} {version or ''}".strip().lower()
    for key, entry in entries.items():
        patterns = () if text in entries else entry["match"]
        if text == key or any(re.search(pattern, text) for pattern in patterns):
            latest = {"year": None} if "engine" in entry else {}
            facts = _facts(
                {"lineage": key, "release": None, **defaults, **latest, **entry},
                text,
                {"device": device, "narrow": narrow},
            )
            return Framework(name=key, asked=name.strip().lower(), version=version, **facts)
    raise AssertionError("the last entry matches everything")


def _facts(entry: dict[str, Any], text: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """An entry's facts for a name: with the habits of its date, what its release has, and what the name states."""
    date = date_of(text)
    year = date or entry["year"] or inf
    for line in entry.get("habits", ()):  # the first whose conditions this date and run meet
        if year < line.get("before", inf) and all(line.get(key, value) == value for key, value in run.items()):
            entry |= line
            break
    if "engine" in entry:
        entry |= release_facts(entry["engine"], text, entry.get("numbers", "version"), date or entry["year"])
    elif date is not None:
        entry["year"] = date
    if entry["attention"] == "flash":  # of the release that there was then
        entry["attention"] = release_facts("flash-attention", "", "version", entry["year"])["attention"]
    entry |= next(({"attention": kind} for kind, pattern in STATED.items() if re.search(pattern, text)), {})
    entry["held"], entry["modules"] = tuple(entry["held"]), tuple(entry["modules"])
    return without(entry, RULES)


def framework_names() -> list[str]:
    """The known trainers."""
    return [name for name in table()["entries"] if name != "unknown"]


def check_name(name: str) -> None:
    """Raises UserError for a trainer that isn't in the table, with the nearest names; `unknown` stands for any such."""
    word, names = name.strip().lower(), [*framework_names(), *table()["aliases"], OTHER]
    if word in names:
        return
    near = nearest(word, names, 1)
    typo = bool(near) and SequenceMatcher(None, word, near[0]).ratio() > TYPO and not word.startswith(near[0])
    if typo or not find_framework(name).known:
        other = f"'{OTHER}' stands for a trainer that isn't listed."
        how = f"use one of {', '.join(framework_names())}. {other}"
        unlike = UserError(f"unknown framework '{name}'", "--framework", how)
        raise unknown("framework", name, names, "--framework", other) if typo else unlike


def forbidden(rules: Iterable[Rule], columns: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
    """A mask of the rows that a rule forbids; rules with an axis that isn't a column are skipped."""
    mask = np.zeros(rows, dtype=bool)
    for rule in (rule for rule in rules if rule.keys() <= columns.keys()):
        match = np.ones(rows, dtype=bool)
        for axis, values in rule.items():
            match &= columns[axis] > 1 if values == ABOVE_ONE else np.isin(columns[axis], list(values))
        mask |= match
    return mask


def of_framework(framework: Framework) -> Capabilities:
    """A trainer's capabilities in its release; where it is priced as another, those of its own entry, if it has one."""
    named = framework.name if framework.asked in framework_names() else framework.asked
    asked = find_capabilities(named, framework.version)
    return asked if asked.known else find_capabilities(framework.name, framework.version)


def why_untrainable(model: ModelSpec, layout: Layout, seq_len: int, kind: str) -> str | None:
    """Why `train` can't run this on devices of this kind, in one line; None when it can."""
    ours = find_capabilities(OURS)
    if ours.runs_on(kind):
        return why_not_trained(model, layout, seq_len)
    others = " or ".join(trainers_on(kind))
    instead = f": plan with --framework {others}" if others else ""
    return f"it runs on {', '.join(ours.devices)} alone, not on a {kind}{instead}"
