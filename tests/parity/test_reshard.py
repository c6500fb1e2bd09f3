"""A checkpoint of any layout loads under any other: equal tensors, the same next samples, the same losses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from parity.reshard import LAYERS, name, pairs, save_again
from runs import TOLERANCE, assert_same_bits, merge, rows, run, run_data, weights, worst
from scalewright.checkpoint.convert import convert
from scalewright.checkpoint.read import CheckpointReader, find_checkpoint
from scalewright.launch.local import run_local
from scalewright.spec.run import RunSpec
from scalewright.train.resolve import resolve
from scalewright.train.run import PRELOAD
from scalewright.train.start import Start

SAVED, LAST = 2, 4  # steps
ADAMW = {"name": "adamw", "lr": 3e-3, "weight_decay": 0.1}
MODEL = {"num_hidden_layers": LAYERS, "tie_word_embeddings": True}
MIXTURE = {
    "family": "qwen3_moe",
    "num_hidden_layers": LAYERS,
    "qk_norm": "head",
    "moe": {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 24},
}
ALL = pairs(36) + pairs(40, experts=True)
# few ranks, and what differs most: pipeline and tensor parts, V schedules, ZeRO
FAST = [
    ({"devices": 4, "pp": 2, "tp": 2, "global_batch": 8}, {"devices": 2, "zero_stage": 3, "global_batch": 8}),
    (
        {"devices": 2, "zero_stage": 1, "global_batch": 8},
        {"devices": 4, "pp": 2, "schedule": "zbv", "zero_stage": 2, "global_batch": 8},
    ),
    ({"devices": 2, "pp": 2, "schedule": "interleaved", "global_batch": 8}, {"devices": 1, "global_batch": 8}),
    (
        {"devices": 4, "tp": 2, "ep": 4, "zero_stage": 3, "global_batch": 8},
        {"devices": 4, "cp": 2, "pp": 2, "ep": 2, "etp": 1, "global_batch": 8},
    ),
]


def job(folder: Path, layout: dict[str, Any], out: str, **changes: Any) -> dict[str, Any]:
    """A run of the model that all pairs share."""
    data = run_data(
        folder, model=MIXTURE if "ep" in layout else MODEL, layout=layout, optimizer=ADAMW, train={"steps": LAST}
    )
    return merge(data, {"out_dir": str(folder / out), **changes})


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """The folder of data, control and saved runs."""
    folder: Path = tmp_path_factory.mktemp("reshard")
    run(job(folder, {"devices": 1, "micro_batch": 2}, "control"))
    run(job(folder, {"devices": 1, "micro_batch": 2, "ep": 1}, "control-experts"))
    return folder


@pytest.fixture(scope="module")
def saved(home) -> Callable[[dict[str, Any]], Path]:
    """The checkpoint that a layout wrote after its first steps; trained once."""

    def make(layout: dict[str, Any]) -> Path:
        out = name(layout)
        if not (home / out).exists():
            run(job(home, layout, out, checkpoint={"at_end": True}), steps=SAVED)
        return find_checkpoint(home / out)

    return make


def check(home: Path, folder: Path, source: Path, layout: dict[str, Any]) -> None:
    """Loads `source` under a layout, in one world: saves it again at once, and goes on for two steps."""
    starts = []
    for out in ("again", "further"):
        data = job(home, layout, out, resume=str(source), checkpoint={"at_end": False})
        spec = RunSpec.parse({**data, "out_dir": str(folder / out)})
        starts.append(Start(resolve(spec), "cpu", quiet=True))
    run_local(save_again, (starts,), layout["devices"], preload=PRELOAD, threads=1)

    before, after = CheckpointReader(source), CheckpointReader(find_checkpoint(folder / "again"))
    assert_same_bits(weights(folder / "again", optimizer=True), weights(source, optimizer=True))
    for key in ("step", "samples", "tokens", "optimizer_name", "optimizer"):
        assert after.state[key] == before.state[key], key

    mine = rows(folder / "further")
    control = rows(home / ("control-experts" if "ep" in layout else "control"))[SAVED:]
    assert [r["step"] for r in mine] == list(range(SAVED + 1, LAST + 1))
    for key in ("sample_ids_hash", "samples", "tokens", "loss_tokens"):
        assert [r[key] for r in mine] == [r[key] for r in control], key
    assert worst(mine, control, "loss") < TOLERANCE
    assert worst(mine, control, "grad_norm") < TOLERANCE


def check_export(source: Path, folder: Path) -> None:
    """Hugging Face folders of both checkpoints hold the same tensors."""
    found = []
    for number, checkpoint in enumerate((source, find_checkpoint(folder / "again"))):
        out = folder / f"huggingface-{number}"
        convert(checkpoint, out)
        tensors: dict[str, Any] = {}
        for file in sorted(out.glob("*.safetensors")):
            tensors.update(load_file(file))
        found.append(tensors)
    assert found[0]
    assert_same_bits(found[1], found[0])


FIRST = [pytest.param(*pair, marks=[] if turn % 2 == 0 else [pytest.mark.slow]) for turn, pair in enumerate(FAST)]


@pytest.mark.parametrize(("first", "second"), FIRST, ids=[f"{name(a)}-to-{name(b)}" for a, b in FAST])
def test_a_checkpoint_loads_under_another_layout(home, saved, tmp_path, first, second):
    source = saved(first)
    check(home, tmp_path, source, second)
    check_export(source, tmp_path)


@pytest.mark.parity
@pytest.mark.parametrize(("first", "second"), ALL, ids=[f"{name(a)}-to-{name(b)}" for a, b in ALL])
def test_any_layout_loads_any_other(home, saved, tmp_path, first, second):
    """Random pairs of layouts, always the same ones."""
    source = saved(first)
    check(home, tmp_path, source, second)
    check_export(source, tmp_path)
