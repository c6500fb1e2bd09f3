"""The model card of an export, README.md: model, data, steps, losses and layout, from the run's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalewright.checkpoint.format import Manifest
from scalewright.spec.common.formatting import count, markdown_text
from scalewright.spec.common.jsonl import scan_jsonl
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import count as count_parameters


def model_card(spec: ModelSpec, manifest: Manifest, state: Mapping[str, Any], root: Path) -> str:
    """The Markdown of a checkpoint in a run's folder `root`; of a run without metrics.jsonl, no losses."""
    run, data = state["run"], state["run"].get("data", {})
    counted = count_parameters(spec)
    parameters = count(counted.total + counted.mtp)
    usual = Layout().dump()
    layout = {key: value for key, value in manifest.layout.items() if usual.get(key) != value}
    rows = {
        "model": f"{spec.family}, {parameters} parameters, vocabulary {spec.vocab_size:,}",
        "began from": run.get("init", "random"),
        "data": _sources(data, "train"),
        "held-out data": _sources(data, "valid"),
        "steps": f"{manifest.step:,}: {manifest.samples:,} samples, {state.get('tokens', 0):,} tokens",
        **_losses(root / "metrics.jsonl", manifest.step),
        "sequence": f"{data.get('seq_len', '?')} tokens",
        "layout": ", ".join(f"{key} {value}" for key, value in layout.items()) or "one device",
    }
    lines = [f"| {key} | {markdown_text(value)} |" for key, value in rows.items() if value]
    title = f"# {markdown_text(spec.name)}"
    return "\n".join([title, "", "Trained with Scalewright.", "", "| | |", "| --- | --- |", *lines, ""])


def _sources(data: Mapping[str, Any], split: str) -> str:
    """The paths of a split's sources, with their weights where they differ; or the user's own function."""
    if "python" in data:
        return str(data["python"])
    sources = data.get(split) or []
    weighted = len({source["weight"] for source in sources}) > 1
    return ", ".join(s["path"] + (f" (weight {s['weight']:g})" if weighted else "") for s in sources)


def _losses(metrics: Path, step: int) -> dict[str, str]:
    """The last losses up to a step."""
    losses = {}
    for _, row in scan_jsonl(metrics):
        kind = {"train": "training loss", "valid": "validation loss"}.get(row.get("kind", ""))
        if kind and isinstance(row.get("loss"), float) and row.get("step", step + 1) <= step:
            losses[kind] = f"{row['loss']:.4f} nats per token at step {row['step']:,}"
    return losses
