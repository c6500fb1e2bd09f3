"""What binds the run: the causes with their evidence, what to change, and what that gains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.diagnose.verdict import evidence_of
from scalewright.report.page import Section
from scalewright.spec.common.formatting import counted, short_time

TITLES = {
    "trace": "Where the time went", "flight_recorder": "Where it hung", "memory": "Where the memory went",
    "nccl": "What NCCL chose", "log": "A log of training", "run": "A run", "kernels": "How good kernels are",
}  # fmt: skip
NOTHING = "No cause above its threshold: nothing here slows or stops the run."


def title(answer: Mapping[str, Any]) -> str:
    return TITLES.get(answer["kind"], "Diagnosis")


def status(answer: Mapping[str, Any]) -> str:
    """The first cause in two words."""
    if not answer["verdicts"]:
        return "no cause found"
    return str(answer["verdicts"][0]["cause"])


def facts(answer: Mapping[str, Any]) -> list[str]:
    """What was read."""
    if answer["kind"] != "trace":
        return []
    ranks = answer["per_rank"]
    words = [short_time(answer["window_s"]), counted(len(ranks), "ranks")]
    words += [answer["device"]] if answer["device"] else []
    return [*words, counted(len(answer["steps"]), "steps")] if answer["steps"] else words


def section(answer: Mapping[str, Any]) -> Section:
    """The causes in the order of their gains."""
    gains = [verdict["gain_pct"]["p90"] for verdict in answer["verdicts"] if verdict.get("gain_pct")]
    largest = max(gains, default=0.0) or 1.0
    data = {
        "causes": [_cause(verdict, largest) for verdict in answer["verdicts"]],
        "nothing": NOTHING,
        "bound_by": answer.get("bound_by", ""),
    }
    return Section("causes", "What binds it", "diagnosis_causes.html", data)


def _cause(verdict: Mapping[str, Any], largest: float) -> dict[str, Any]:
    gain = verdict.get("gain_pct")
    return {
        "cause": verdict["cause"],
        "evidence": evidence_of(verdict),
        "fix": verdict["fix"],
        "saves": f"{gain['p50']:.0f}%" if gain and gain["p90"] else "",
        "span": f"{gain['p10']:.0f} to {gain['p90']:.0f}%" if gain and gain["p90"] else "",
        "start": max(gain["p10"], 0) / largest if gain else 0,
        "width": (gain["p90"] - max(gain["p10"], 0)) / largest if gain else 0,
        "middle": gain["p50"] / largest if gain else 0,
    }
