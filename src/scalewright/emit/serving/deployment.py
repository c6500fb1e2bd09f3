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

NAMES = ("checkpoint", "draft")
OVERRIDES = (*NAMES, "max_len")
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
    longest: int  # that the priced cache holds
    max_seqs: int  # of a step of one group of attention's ranks
    batched_tokens: int | None  # of a step; None: the engine's own
    memory_share: float  # of a device's memory: weights, caches and working memory
    capacity: float  # GiB of a device, of which the next two are taken
    weights: float
    working: float  # activations, graphs, the engine itself
    params: float
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
    def pool(self) -> float:
        """GiB of a device for caches."""
        return self.capacity * self.memory_share - self.weights - self.working

    @property
    def static_share(self) -> float:
        """SGLang's measure: weights and caches alone, as a share of the device."""
        return _below((self.weights + self.pool) / self.capacity)

    @property
    def free_share(self) -> float:
        """TensorRT-LLM's measure of the same cache: its share of what is free once the model is loaded."""
        return _below(self.pool / (self.capacity - self.weights - self.working))

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
    held = answer["memory_gib"]
    return Deployment(
        name=re.sub(r"[^a-z0-9]+", "-", answer["model"]["name"].lower()).strip("-") or "model",
        checkpoint=_checkpoint(answer, given, report), priced_as=answer["engine"],
        **{key: int(shape[key]) for key in ("tp", "pp", "ep", "attention_dp", "replicas", "prefill")},
        precision=answer["precision"], stored=None if "checkpoint" in given else server["stored"],
        kv=answer["kv_precision"], max_len=_max_len(answer, given, report),
        longest=int(server["longest_that_fits"]), max_seqs=int(server["max_seqs"]),
        batched_tokens=int(server["max_batched_tokens"]), memory_share=server["memory_share"],
        capacity=held["usable"] / server["memory_share"], weights=held["weights"],
        working=held["activations"] + held["other"], params=answer["model"]["params"],
        prefix_hit=server["prefix_hit"], guesses=int(guesses.get("guessed", 0)),
        guess_cost=float(guesses.get("cost", 0)), draft=given.get("draft"), mtp=server["mtp"],
        experts=server["experts"], per_node=int(server["devices_per_node"]), vendor=server["vendor"],
    ), report  # fmt: skip


def _given(overrides: Sequence[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for text in overrides:
        key, separator, name = text.partition("=")
        if separator and key in NAMES:
            given[key] = _name(key, name.strip())
        else:
            apply_override(given, text)
    for key in given:
        if key not in OVERRIDES:
            problem = unknown("key", key, OVERRIDES, "emit")
            how = f"{problem.how}. The rest was priced: ask `scalewright inference` again for another layout"
            raise UserError(problem.what, "emit", how)
    return given


def _name(key: str, text: str) -> str:
    """A hub's name or a folder as it was typed: YAML would make 1e5 a number, and yes a truth."""
    if text in ("", "null") or text.startswith(("-", "~")):
        how = f"give a hub name or a folder, {key}=org/name or {key}=/models/name; no program expands a ~ in a script"
        raise UserError(f"{key} is '{text}'", "emit", how)
    return text


def _checkpoint(answer: Mapping[str, Any], given: Mapping[str, Any], report: Report) -> str:
    name = given.get("checkpoint") or answer["server"]["checkpoint"]
    if name is None:
        name = answer["model"]["name"]
        report.assume(f"the checkpoint is a folder {name}: set it with checkpoint=FOLDER or a hub name")
    return str(name)


def _max_len(answer: Mapping[str, Any], given: Mapping[str, Any], report: Report) -> int:
    """The longest request: the model's context, or what the cache holds of one sequence."""
    context, held = int(answer["server"]["context"]), int(answer["server"]["longest_that_fits"])
    longest = _asked_len(given, context, held, report)
    if (priced := int(answer["input_len"] + answer["output_len"])) > longest:
        report.change("input_len + output_len", priced, f"max_len {longest}", "the server refuses what is longer")
    return longest


def _asked_len(given: Mapping[str, Any], context: int, held: int, report: Report) -> int:
    if "max_len" in given:
        value = given["max_len"]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"max_len is {value}", "emit", "give tokens, such as max_len=8192")
        if value > context:
            raise UserError(f"max_len is {value}, beyond the model's context", "emit", f"give at most {context}")
        if value > held:
            report.change("max_len", value, str(held), "what the cache holds of one sequence")
        return min(value, held)
    why = "the model's context" if context <= held else "what the cache holds of one sequence"
    report.assume(f"max_len {min(context, held)}: {why}")
    return min(context, held)


def _below(share: float) -> float:
    """To three digits, and never more than was priced."""
    return max(0.01, int(1000 * share) / 1000)
