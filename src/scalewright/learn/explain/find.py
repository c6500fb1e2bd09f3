"""Which run an entry's number is about.

--run FILE      a run file, a run's folder, the JSON of `plan` or `predict`, another trainer's script
(none)          the newest folder below ./runs
(none there)    EXAMPLE: Llama 3.1 8B on one DGX H100
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalewright.learn.explain.subject import Subject
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.question import Question
from scalewright.spec.run import RunSpec

EXAMPLE: dict[str, Any] = {
    "name": "example", "model": "llama-3.1-8b", "cluster": "dgx-h100", "data": {"train": "DATA", "seq_len": 8192},
    "layout": {"devices": 8, "zero_stage": 3, "micro_batch": 1, "global_batch": 128, "precision": "bf16"},
}  # fmt: skip


def example() -> Subject:
    """The run that is taken where nobody has one."""
    run = RunSpec.parse(EXAMPLE)
    return Subject(Question(run, load_cluster(EXAMPLE["cluster"])), "example: Llama 3.1 8B on 8 H100, ZeRO-3")


def find_subject(source: str | Path | None = None, runs: Path = Path("runs")) -> Subject:
    """The run of a file or folder, the newest of `runs`, or the example. Raises UserError for a source that is none."""
    if source is not None:
        return _of(Path(source))
    folders = [path.parent for path in runs.glob("*/run.yaml")] if runs.is_dir() else []
    for folder in sorted(folders, key=lambda path: (path / "run.yaml").stat().st_mtime, reverse=True):
        try:
            subject = _of(folder)
            _ = subject.parameters  # a module of the user's own has no shapes
            return subject
        except UserError:
            continue
    return example()


def _of(path: Path) -> Subject:
    from scalewright.spec.run import load_run

    if path.is_dir():
        return _named(load_run(path / "run.yaml"), str(path), path)
    if not path.exists():
        how = "give a run file, a run's folder, or what `plan --json` or `predict --json` printed"
        raise UserError("no such file or folder", str(path), how)
    if path.suffix == ".json":
        return _answer(path)
    from scalewright.emit.question import question

    read = question(str(path))
    return Subject(read if read.cluster else replace(read, cluster=None), f"{path}: {_words(read)}")


def _answer(path: Path) -> Subject:
    """A plan's best layout, or the layout of a prediction."""
    from scalewright.report.document import read_plan

    document = read_plan(path)
    first = document.first
    if first is None:
        raise UserError("this plan has no layout that fits", str(path), "plan with more devices")
    run = document.read.data.get("run")
    if isinstance(run, Mapping):
        return _named(RunSpec.parse(dict(run), str(path)), str(path))
    keys = {key: value for key, value in first.layout.items() if key != "dp"}
    device, length = document.device, document.number("seq_len")
    place = load_cluster({"device": device.text("name"), "devices_per_node": int(device.number("per_node") or 1)})
    run_keys = {"model": document.model, "layout": keys, "data": {"train": "DATA", "seq_len": int(length or 1024)}}
    question = Question(RunSpec.parse(run_keys, str(path)), place)
    return Subject(question, f"{path}: {_words(question)}")


def _named(run: RunSpec, source: str, folder: Path | None = None) -> Subject:
    question = Question(run, source=source)
    return Subject(question, f"{source}: {_words(question)}", folder)


def _words(question: Question) -> str:
    layout = question.layout
    sizes = [f"{axis} {getattr(layout, axis)}" for axis in ("tp", "pp", "cp", "ep") if getattr(layout, axis) > 1]
    model = question.run.model if isinstance(question.run.model, str) else question.model.name
    return ", ".join([f"{model} on {layout.devices} devices", *sizes, f"zero {layout.zero_stage}"])
