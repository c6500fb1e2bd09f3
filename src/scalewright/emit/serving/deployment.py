"""What is deployed: the layout, formats and limits that `inference` priced, as plain facts.

served.json (`inference --json`) + checkpoint=NAME, draft=NAME, max_len=N ──► Deployment
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalewright.emit.emitted import Changed, Dropped
from scalewright.spec.errors import UserError, unknown
from scalewright.spec.run import apply_override

OVERRIDES = ("checkpoint", "draft", "max_len")
ROLES = ("prefill", "decode")


@dataclass(frozen=True)
class Deployment:
    """One model on its devices, as it was priced."""

    name: str
    checkpoint: str  # what the engine loads: a hub name or a folder
    priced_as: str  # the engine of the prediction
    tp: int
    pp: int
    ep: int
    attention_dp: int
    replicas: int
    prefill: int  # replicas that only prefill, beside `replicas` that then only decode
    precision: str
    stored: str | None  # the format in which the checkpoint is stored; None: the user's own, which says so itself
    kv: str
    max_len: int  # tokens of a request with its answer
    max_seqs: int  # of a step of one group of attention's ranks
    batched_tokens: int  # of a step
    memory_share: float  # of a device's memory: weights, caches and working memory
    free_share: float  # caches, as a share of what is free beside weights and working memory
    prefix_hit: float
    guesses: int
    guess_cost: float
    draft: str | None
    mtp: bool
    experts: bool
    per_node: int
    vendor: str

    @property
    def devices(self) -> int:
        """Of one replica."""
        return self.tp * self.pp

    @property
    def roles(self) -> tuple[tuple[str, int], ...]:
        """(role, replicas), where "" both prefills and decodes."""
        return (("prefill", self.prefill), ("decode", self.replicas)) if self.prefill else (("", self.replicas),)

    @property
    def nodes_each(self) -> int:
        """Nodes of one replica."""
        return -(-self.devices // self.per_node)


class Report:
    """What an engine has no word for, or only a near one."""

    def __init__(self) -> None:
        self.dropped: dict[str, Dropped] = {}
        self.changed: dict[str, Changed] = {}
        self.assumed: list[str] = []

    def drop(self, key: str, value: Any, why: str) -> None:
        """No word for it."""
        self.dropped[key] = Dropped(key, value, why)

    def change(self, key: str, value: Any, written: str, why: str) -> None:
        """Only a near one."""
        self.changed[key] = Changed(key, value, written, why)

    def assume(self, text: str) -> None:
        """Filled in; said once."""
        if text not in self.assumed:
            self.assumed.append(text)


def is_served(data: Any) -> bool:
    """Whether it is an answer of `inference`."""
    return isinstance(data, Mapping) and "kv_bytes_per_token" in data


def deployment(answer: Mapping[str, Any], overrides: Sequence[str], where: str) -> tuple[Deployment, Report]:
    """The facts of an answer, with the user's own checkpoint, draft model or longest request. Raises UserError."""
    report, given = Report(), _given(overrides)
    server = answer.get("server")
    if server is None:
        raise UserError("it is of a release that kept no launch facts", where, "ask `scalewright inference` again")
    if not answer["fits"]:
        raise UserError("this layout doesn't fit: nothing would start", where, "give more devices, or fewer bits")
    shape, guesses = answer["layout"], answer.get("speculation") or {}
    return Deployment(
        name=re.sub(r"[^a-z0-9]+", "-", answer["model"]["name"].lower()).strip("-") or "model",
        checkpoint=_checkpoint(answer, given, report), priced_as=answer["engine"],
        **{key: int(shape[key]) for key in ("tp", "pp", "ep", "attention_dp", "replicas", "prefill")},
        precision=answer["precision"], stored=None if "checkpoint" in given else server["stored"],
        kv=answer["kv_precision"], max_len=_max_len(answer, given, report), max_seqs=int(server["max_seqs"]),
        batched_tokens=int(server["max_batched_tokens"]), memory_share=server["memory_share"],
        free_share=_free_share(answer), prefix_hit=server["prefix_hit"], guesses=int(guesses.get("guessed", 0)),
        guess_cost=float(guesses.get("cost", 0)), draft=given.get("draft"), mtp=server["mtp"],
        experts=server["experts"], per_node=int(server["devices_per_node"]), vendor=server["vendor"],
    ), report  # fmt: skip


def _given(overrides: Sequence[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for text in overrides:
        apply_override(given, text)
    for key in given:
        if key not in OVERRIDES:
            problem = unknown("key", key, OVERRIDES, "emit")
            how = f"{problem.how}. The rest was priced: ask `scalewright inference` again for another layout"
            raise UserError(problem.what, "emit", how)
    return given


def _checkpoint(answer: Mapping[str, Any], given: Mapping[str, Any], report: Report) -> str:
    name = given.get("checkpoint") or answer["server"]["checkpoint"]
    if name is None:
        name = answer["model"]["name"]
        report.assume(f"the checkpoint is a folder {name}: set it with checkpoint=FOLDER or a hub name")
    return str(name)


def _max_len(answer: Mapping[str, Any], given: Mapping[str, Any], report: Report) -> int:
    """The longest request: the model's context, or what the cache holds of one sequence."""
    if "max_len" in given:
        value = given["max_len"]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"max_len is {value}", "emit", "give tokens, such as max_len=8192")
        return value
    context, held = int(answer["server"]["context"]), int(answer["server"]["longest_that_fits"])
    why = "the model's context" if context <= held else "what the cache holds of one sequence"
    report.assume(f"max_len {min(context, held)}: {why}")
    return min(context, held)


def _free_share(answer: Mapping[str, Any]) -> float:
    """TensorRT-LLM's measure of the same cache: its share of what is free once the model is loaded."""
    held, share = answer["memory_gib"], answer["server"]["memory_share"]
    free = held["usable"] / share - held["weights"] - held["activations"] - held["other"]
    return max(0.01, int(1000 * held["kv_pool"] / free) / 1000)
