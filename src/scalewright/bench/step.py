"""A real training step: the trainer on a run file, or on a preset with random tokens.

    run.yaml | MODEL ──► train, `steps` of it, in a folder that is removed ──► its rows, without the first 3

The same trainer, data pipeline and layout as a run; no validation, no checkpoint. Random tokens cost what
real ones cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.spec.base import write_yaml
from scalewright.spec.common.files import scratch_folder
from scalewright.spec.errors import UserError
from scalewright.spec.presets import load_model_spec
from scalewright.spec.run import RunSpec, load_run

COLD = 3  # steps that set up memory and kernels
SEQ_LEN = 128  # of a preset; overrides change it, and the layout
ROWS = 64


def step(
    train: Callable[..., Any], source: str, overrides: Sequence[str] = (), steps: int = 13
) -> dict[str, object] | None:
    """The usual step and what was predicted for it; `train` is `scalewright.api.train`.

    None on ranks other than 0 of a started world, where no rows are written.
    Raises UserError for a run file or model that can't be read or too few steps, and what `train` raises.
    """
    if steps <= COLD:
        problem = f"of {steps} steps there are none to time: the first {COLD} are left out"
        raise UserError(problem, "--steps", f"take {COLD + 10}")
    rows: list[Mapping[str, Any]] = []
    with scratch_folder("bench") as folder:
        given = Path(source) if Path(source).is_file() else _preset(source, folder)
        run = load_run(given, list(overrides))
        result = train(_short(run, folder, steps), quiet=True, on_step=rows.append)
    if not rows:
        return None
    return {"model": run.name, "layout": run.layout.dump()} | summary(rows[COLD:], result.predicted_step_time_s)


def summary(rows: Sequence[Mapping[str, Any]], predicted: float | None) -> dict[str, object]:
    """Medians of metrics.jsonl's rows; the band of the step's time in seconds."""
    low, middle, high = np.percentile([row["step_time_s"] for row in rows], (10, 50, 90)).tolist()
    parts = [row.get("breakdown_s") or {} for row in rows]
    return {
        "steps": len(rows),
        "step_time_s": {"p10": low, "p50": middle, "p90": high},
        "predicted_step_time_s": predicted,
        "tokens_per_s": _median([row.get("tokens_per_s") for row in rows]),
        "mfu": _median([row.get("mfu") for row in rows]),
        "breakdown_s": {name: _median([part.get(name) for part in parts]) or 0.0 for name in sorted({*chain(*parts)})},
    }


def _preset(model: str, folder: Path) -> Path:
    vocabulary = load_model_spec(model).vocab_size
    tokens = np.random.default_rng(0).integers(0, vocabulary, size=ROWS * (SEQ_LEN + 1))
    np.save(folder / "tokens.npy", tokens.astype(np.uint16 if vocabulary <= 1 << 16 else np.uint32))
    layout = {"devices": 1, "micro_batch": 1, "global_batch": 1}
    data = {"train": str(folder / "tokens.npy"), "seq_len": SEQ_LEN}
    write_yaml(folder / "run.yaml", {"name": "bench", "model": model, "layout": layout, "data": data})
    return folder / "run.yaml"


def _short(run: RunSpec, folder: Path, steps: int) -> dict[str, object]:
    """The run for a few steps in a folder of its own, which neither validates nor saves."""
    data = run.dump()
    if isinstance(data["data"], dict):
        data["data"]["valid"] = None
    return {
        **data,
        "out_dir": str(folder / "run"),
        "train": {**data["train"], "steps": steps},
        "checkpoint": {**data["checkpoint"], "every": 0, "at_end": False, "store": None},
        "track": {},
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
