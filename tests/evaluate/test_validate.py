"""Validation: the same number on every layout, whatever is left over for its ranks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from runs import EOD, MODEL, make_data, merge, rows, run, run_data
from scalewright.data.dataset import open_data
from scalewright.evaluate.validate import validate
from scalewright.model.decoder import Decoder
from scalewright.model.init import init_box, initialize
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import fill, parallelize
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import place
from scalewright.spec.run import DataSpec
from worlds import one_rank, run_world

SPEC = ModelSpec.parse(MODEL)


def data(path: str) -> DataSpec:
    source = {"path": path, "eod": EOD}
    return DataSpec.parse({"train": [source], "valid": [source], "seq_len": 16})


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """A little over 25 rows, so that the last is short."""
    return make_data(tmp_path_factory.mktemp("valid"), documents=20)


def by_hand(path: Path, samples: int) -> tuple[float, int]:
    """One row at a time, in fp64 sums."""
    model = Decoder(SPEC)
    initialize(model, SPEC, 3)
    dataset = open_data(data(str(path)), "valid")
    total, tokens = 0.0, 0
    with torch.no_grad():
        for number in range(min(samples, len(dataset))):
            batch = dataset.batch([number])
            logits = model(
                torch.from_numpy(batch.tokens),
                positions=torch.from_numpy(batch.positions),
                documents=torch.from_numpy(batch.documents),
            )
            targets = torch.from_numpy(batch.targets)
            total += F.cross_entropy(logits[0], targets[0], reduction="sum").item()
            tokens += int((targets != -100).sum())
    return total / tokens, tokens


def on_rank(mesh: Mesh, layout: Layout, path: str, samples: int) -> list[float | int]:
    with torch.device("meta"):
        decoder = Decoder(SPEC)
    parallel = parallelize(decoder, place(SPEC, layout), layout, mesh, bf16=False)
    fill(parallel.weights, lambda t, where: init_box(t, SPEC, 3, *where))
    dataset = open_data(data(path), "valid")
    score = validate(parallel.model, dataset, mesh, layout.micro_batch, samples)
    assert parallel.model.training
    return [score.loss, score.tokens]


@pytest.mark.parametrize("samples", [1, 7, 24, 10_000])
@pytest.mark.parametrize("micro", [1, 3, 8])
def test_one_process(path, samples, micro):
    mesh, _ = one_rank()
    loss, tokens = on_rank(mesh, Layout(micro_batch=micro), str(path), samples)
    wanted, count = by_hand(path, samples)
    assert tokens == count
    assert loss == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    ("layout", "samples"),
    [
        ({"devices": 2, "zero_stage": 3, "micro_batch": 2}, 7),  # rank 0 has 4 rows, rank 1 has 3
        ({"devices": 3, "zero_stage": 3, "micro_batch": 4}, 7),  # 4, 3 and none: a rank that only helps
        ({"devices": 3, "zero_stage": 0, "micro_batch": 1}, 10_000),  # all, the last round is uneven
    ],
)
def test_shares_of_ranks_may_be_uneven(path, layout, samples):
    wanted, count = by_hand(path, samples)
    for loss, tokens in run_world(on_rank, layout, str(path), samples):
        assert tokens == count
        assert loss == pytest.approx(wanted, rel=1e-6)


def test_a_run_validates_on_the_same_samples_on_every_layout(tmp_path):
    """And training goes on as if nothing had been: the next losses are those of a run without validation."""
    base = {"train": {"steps": 4, "valid_every": 2, "valid_batches": 2}}
    one = run(run_data(tmp_path, **base, out_dir=str(tmp_path / "one"))).out_dir
    layout = {"devices": 2, "zero_stage": 3, "micro_batch": 4}
    result = run(run_data(tmp_path, **merge(base, {"layout": layout}), out_dir=str(tmp_path / "two")))
    assert [row["step"] for row in rows(one, "valid")] == [2, 4]
    for mine, control in zip(rows(result.out_dir, "valid"), rows(one, "valid"), strict=True):
        assert mine["loss"] == pytest.approx(control["loss"], rel=1e-5)
        assert mine["bits_per_byte"] is None  # a bare stream doesn't know its text
    assert result.valid_loss == rows(result.out_dir, "valid")[-1]["loss"]
    without = run(run_data(tmp_path, train={"steps": 4}, out_dir=str(tmp_path / "without"))).out_dir
    assert [row["loss"] for row in rows(one)] == [row["loss"] for row in rows(without)]


def test_bits_per_byte_by_its_formula(path):
    """Nats per token / ln 2 / bytes per token."""
    mesh, layout = one_rank()
    dataset = open_data(data(str(path)), "valid")
    dataset.bytes_per_token = 3.5
    model = Decoder(SPEC)
    initialize(model, SPEC, 3)
    score = validate(model, dataset, mesh, 2, 8)
    assert score.bits_per_byte == pytest.approx(score.loss / math.log(2) / 3.5)
    assert layout.micro_batch == 1


def test_dropout_is_off(path):
    import parts

    mesh, _ = one_rank()
    model = parts.build(dropout=0.5)
    dataset = open_data(data(str(path)), "valid")
    scores = {validate(model, dataset, mesh, 2, 8).loss for _ in range(3)}
    assert len(scores) == 1
