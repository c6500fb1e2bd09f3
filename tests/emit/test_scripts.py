"""Emitted training scripts: clean Python, learning rates that are ours, and parts that a run needs alone."""

from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalewright.emit.emitted import Emitted
from scalewright.emit.settings import settings_of
from scalewright.emit.write import emit
from scalewright.spec.run import RunSpec, ScheduleSpec
from scalewright.train.learning_rate import learning_rate

STEPS = 40
SCHEDULES: list[dict[str, Any]] = [
    {"kind": "constant", "warmup_steps": 5},
    {"kind": "linear", "warmup_steps": 5, "min_ratio": 0.2},
    {"kind": "linear", "warmup_steps": 0, "min_ratio": 0.0},
    {"kind": "cosine", "warmup_steps": 5, "min_ratio": 0.1},
    {"kind": "cosine", "warmup_steps": 3, "min_ratio": 0.1, "decay_steps": 20},
    {"kind": "cosine", "warmup_steps": 40, "min_ratio": 0.1},
    {"kind": "wsd", "warmup_steps": 5, "min_ratio": 0.05},
    {"kind": "wsd", "warmup_steps": 35, "min_ratio": 0.05, "decay_steps": 10},
]
EVERYTHING: dict[str, Any] = {
    "data": {"train": [{"path": "a", "weight": 0.3}, {"path": 'b"c', "weight": 0.7, "eod": 2}], "valid": "d"},
    "train": {"z_loss": 1e-4, "valid_every": 10},
    "deterministic": True,
    "checkpoint": {"every": 5},
}
LAYOUTS: dict[str, list[dict[str, Any]]] = {
    "accelerate": [
        {"zero_stage": 0},
        {"zero_stage": 1},
        {"zero_stage": 2, "recompute": "selective"},
        {"zero_stage": 3, "tp": 2, "recompute": {"every": 2}},
        {"zero_stage": 3, "cp": 2, "cp_kind": "allgather"},
    ],
    "transformers": [
        {"zero_stage": 0, "recompute": {"every": 2}},
        {"zero_stage": 1},
        {"zero_stage": 3, "tp": 2},
        {"zero_stage": 3, "recompute": "selective"},
    ],
    "deepspeed": [
        {"zero_stage": 3, "recompute": "full"},
        {"zero_stage": 1, "tp": 2},
        {"zero_stage": 2, "cp": 2, "cp_kind": "ulysses"},
        {"zero_stage": 1, "pp": 2, "recompute": {"every": 2}},
    ],
    "axolotl": [{"zero_stage": 3}],
    "llama-factory": [{"zero_stage": 3}],
}


def run(trainer: str, **keys: Any) -> Emitted:
    layout = {"devices": 8, "global_batch": 64, "precision": "bf16", **keys.pop("layout", {})}
    base = {"model": "llama-3.2-1b", "data": "corpus", "train": {"steps": STEPS}}
    return emit(trainer, settings_of(RunSpec.parse({**base, "layout": layout, **keys})))


def rates(trainer: str, schedule: dict[str, Any]) -> list[float]:
    """What the script's own function gives, its constants with it."""
    tree = ast.parse(run(trainer, lr_schedule=schedule, optimizer={"lr": 3e-4}).files["train.py"])
    wanted = [
        node
        for node in tree.body
        if (isinstance(node, ast.FunctionDef) and node.name == "learning_rate")
        or (isinstance(node, ast.Assign) and "DECAY_STEPS" in ast.unparse(node.targets[0]))
    ]
    names: dict[str, Any] = {"cos": math.cos, "pi": math.pi}
    exec(compile(ast.Module(wanted, []), "train.py", "exec"), names)
    if trainer != "transformers":
        return [names["learning_rate"](step) for step in range(1, STEPS + 1)]
    arguments = json.loads(run(trainer, lr_schedule=schedule, optimizer={"lr": 3e-4}).files["training_args.json"])
    args = SimpleNamespace(
        max_steps=STEPS,
        learning_rate=arguments["learning_rate"],
        lr_scheduler_kwargs=arguments.get("lr_scheduler_kwargs"),
        get_warmup_steps=lambda _: arguments["warmup_steps"],
    )
    return [names["learning_rate"](step, args) for step in range(1, STEPS + 1)]


@pytest.mark.parametrize("trainer", ["accelerate", "deepspeed", "transformers"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_rates_are_those_of_train(trainer: str, schedule: dict[str, Any]) -> None:
    ours = [learning_rate(ScheduleSpec(**schedule), 1.0, step, STEPS) for step in range(1, STEPS + 1)]
    assert rates(trainer, schedule) == pytest.approx(ours, rel=1e-9)  # 12 digits of lr_end are written


def test_scripts_have_no_unused_or_missing_names(tmp_path: Path) -> None:
    for trainer, layouts in LAYOUTS.items():
        for number, layout in enumerate(layouts):
            for size, keys in (("plain", {}), ("all", EVERYTHING)):
                for name, text in run(trainer, layout=layout, **keys).files.items():
                    if name.endswith(".py"):
                        path = tmp_path / f"{trainer}-{number}-{size}-{name}"
                        path.write_text(text, encoding="utf-8")
    rules = ["--isolated", "--select", "E4,E7,E9,E501,F,W,B006,B008", "--line-length", "130"]
    found = subprocess.run(
        [sys.executable, "-m", "ruff", "check", *rules, "--output-format", "concise", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 0, found.stdout


def test_the_same_run_gives_the_same_text() -> None:
    for trainer, layouts in LAYOUTS.items():
        assert run(trainer, layout=layouts[0]).files == run(trainer, layout=layouts[0]).files


def test_texts_of_the_run_can_only_be_texts_in_the_script() -> None:
    wrong = '"); import os; os.system("ls") #'
    for trainer in LAYOUTS:
        script = run(trainer, data={"train": wrong}).files
        for name, text in script.items():
            if name.endswith(".py"):
                called = [ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import)]
                assert "import os" not in called, name


def test_a_checkpoint_of_ours_is_no_start_for_theirs(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    emitted = run("accelerate", init=str(tmp_path))
    assert [item.key for item in emitted.dropped] == ["init"]
    assert "from_pretrained(" in run("accelerate", init="weights").files["train.py"]
