"""The machine, software and source of a run: enough to explain a number, or to get it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scalewright.report.folder import RunFolder
from scalewright.report.page import Section
from scalewright.report.sections.configuration import Card, flat, say


def section(run: RunFolder) -> Section | None:
    filled = [card for card in cards(run.environment) if card.rows]
    if not filled:
        return None
    text = json.dumps(run.environment, indent=2, default=str)
    data = {"cards": filled, "text": text, "summary": summary(run.environment)}
    return Section("environment", "Environment", "environment.html", data)


def summary(environment: Mapping[str, Any]) -> str:
    """The line over the folded cards: `2 × NVIDIA H200, 140.4 GiB · torch 2.13.0 · python 3.11.7 · host`."""
    gpus = _gpus([gpu for gpu in environment.get("gpus") or [] if isinstance(gpu, Mapping)])
    torch = _mapping(environment.get("versions")).get("torch")
    parts = [gpus or _mapping(environment.get("cpu")).get("model"), torch and f"torch {torch}"]
    parts += [environment.get("python") and f"python {environment['python']}", environment.get("host")]
    return " · ".join(str(part) for part in parts if part) or "Machine, software, source and variables"


def cards(environment: Mapping[str, Any]) -> list[Card]:
    cpu, torch = _mapping(environment.get("cpu")), _mapping(environment.get("torch"))
    gpus = [gpu for gpu in environment.get("gpus") or [] if isinstance(gpu, Mapping)]
    machine = {
        "host": environment.get("host"),
        "system": environment.get("system"),
        "processor": cpu.get("model"),
        "cores": cpu.get("cores"),
        "threads": cpu.get("usable_threads"),
        "flags": " ".join(cpu.get("flags") or ()) or None,
        "memory": f"{environment['memory_gib']} GiB" if environment.get("memory_gib") else None,
        "GPUs": _gpus(gpus),
        "driver": gpus[0].get("driver") if gpus else None,
    }
    software = {"python": environment.get("python"), **_mapping(environment.get("versions"))}
    software |= {
        f"torch {key.replace('_', ' ')}": torch.get(key) for key in ("cuda", "hip", "cudnn", "threads")
    }
    source = {"command": environment.get("command"), "time": environment.get("time")}
    source |= {"your code": _git(environment.get("git")), "scalewright": _git(environment.get("source"))}
    return [
        Card("Machine", flat(machine)),
        Card("Software", flat(software)),
        Card("Source", flat(source)),
        Card("Variables", flat(_mapping(environment.get("variables")))),
    ]


def _gpus(gpus: list[Mapping[str, Any]]) -> str | None:
    """`8 × NVIDIA H200, 140.4 GiB`; one line a kind."""
    kinds: dict[str, int] = {}
    for gpu in gpus:
        kind = f"{gpu.get('name')}, {say(gpu.get('memory_gib'))} GiB"
        kinds[kind] = kinds.get(kind, 0) + 1
    return "; ".join(f"{number} × {kind}" for kind, number in kinds.items()) or None


def _git(state: Any) -> str | None:
    if not isinstance(state, Mapping) or not state.get("commit"):
        return None
    dirty = {True: ", with changes that are not committed", False: "", None: ""}[state.get("dirty")]
    return f"{str(state['commit'])[:12]} on {state.get('branch')}{dirty}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
