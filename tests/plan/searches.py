"""A search from its arguments alone, for tests: a question of a model, and the goal."""

from __future__ import annotations

from typing import Any

from scalewright.plan.search.choices import Plan
from scalewright.plan.search.objective import Goal
from scalewright.plan.search.search import search as search_question
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.model import ModelSpec
from scalewright.spec.question import DATA, Question
from scalewright.spec.run import RunSpec

TO_SEARCH = ("tell", "stop", "explain")


def search(
    model: ModelSpec,
    cluster: ClusterSpec,
    *,
    seq_len: int | None = None,
    framework: str | None = None,
    run: dict[str, Any] | None = None,
    **keys: Any,
) -> Plan:
    """The plan of a model on a cluster; `run`: further keys of the run; `keys` of Goal, and of `search`."""
    data = {"train": DATA, "seq_len": seq_len or model.context}
    asked_run = RunSpec.parse({"model": model, "data": data, **(run or {})})
    rest = {key: keys.pop(key) for key in TO_SEARCH if key in keys}
    asked = Question(asked_run, cluster, framework)
    return search_question(asked, Goal(**{**keys, "fixed": keys.get("fixed") or {}}), **rest)
