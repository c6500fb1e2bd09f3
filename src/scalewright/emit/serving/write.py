"""`emit vllm served.json`: an answer of `inference` for a serving engine or a serving layer of Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scalewright.emit.emitted import Emitted
from scalewright.emit.serving import lines, manifests
from scalewright.emit.serving.deployment import deployment, is_served
from scalewright.emit.serving.engines import ENGINES, adapted
from scalewright.spec.base import read_yaml
from scalewright.spec.errors import UserError

TARGETS = (*ENGINES, "dynamo", "kserve")
ALIASES = {"tensorrt-llm": "trtllm", "trt-llm": "trtllm", "tensorrt_llm": "trtllm", "llamacpp": "llama.cpp"}


def is_target(name: str) -> bool:
    """Whether it serves, rather than trains."""
    return ALIASES.get(name, name) in TARGETS


def emit_served(name: str, path: str, overrides: Sequence[str] = ()) -> Emitted:
    """The files of an answer that `inference --json` wrote. Raises UserError."""
    answer = read_yaml(path)
    if not is_served(answer):
        how = "give what `scalewright inference MODEL --cluster CLUSTER --json` printed"
        raise UserError(f"{name} serves, and this is no answer of `inference`", str(path), how)
    return write(name, answer, overrides, str(path))


def write(name: str, answer: Mapping[str, Any], overrides: Sequence[str] = (), where: str = "answer") -> Emitted:
    """The files of an answer; see `emit_served`."""
    name = ALIASES.get(name, name)
    d, report = deployment(answer, overrides, where)
    if answer["overloaded"]:
        report.assume("more requests come than this serves: give it more replicas")
    if name == "dynamo":
        return manifests.dynamo(d, report)
    if name == "kserve":
        return manifests.kserve(d, report)
    if d.priced_as not in ENGINES[name].names:
        why = f"what was priced is {d.priced_as}'s speed: price {ENGINES[name].names[0]} (--engine)"
        report.change("engine", d.priced_as, name, why)
    return lines.write(name, adapted(name, d, report), report)
