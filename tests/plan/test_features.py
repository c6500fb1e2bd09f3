"""What no bundled run has widens a prediction's band, and is named."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.api import predict
from scalewright.plan.explain import _measured
from scalewright.plan.features import features
from scalewright.plan.frameworks import DATA
from scalewright.report.document import Reader
from scalewright.report.present.prediction import outside
from scalewright.spec.base import read_yaml

RUN: dict[str, Any] = {"devices": 64, "tp": 4, "zero_stage": 1, "micro_batch": 1, "global_batch": 256}


def asked(framework: str | None = "megatron", **keys: Any) -> dict[str, Any]:
    return dict(predict("llama-3-8b", "dgx-h100", RUN | keys, seq_len=8192, framework=framework))


def width(answer: dict[str, Any]) -> float:
    seconds = answer["step_time_s"]
    return float(seconds["p90"] / seconds["p10"])


def test_the_list_is_that_of_the_bundled_runs() -> None:
    runs = [request for request, _, _ in _measured()]
    listed = read_yaml(DATA / "measured.yaml")
    assert set(listed["features"]) == {name for request in runs for name in features(request)}
    assert listed["devices"] == max(request.devices for request in runs)
    assert listed["sizes"] == {axis: max(getattr(r, axis) for r in runs) for axis in ("tp", "pp", "cp", "ep")}


def test_a_measured_layout_is_not_called_strange() -> None:
    assert asked()["evidence"]["never_measured"] == []


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"zero_stage": 2}, "zero_stage 2 with megatron"),
        ({"offload": "optimizer"}, "offload optimizer"),
        ({"cp": 2, "cp_kind": "allgather"}, "cp_kind allgather"),
        ({"precision": "fp32"}, "precision fp32"),
        ({"schedule": "zb-h1", "pp": 2}, "schedule zb-h1"),
        ({"zero_stage": 3, "pp": 2}, "pipeline parallelism and zero_stage 3"),
        ({"zero_stage": 3, "cp": 2}, "context parallelism and zero_stage 3"),
        ({"devices": 32768, "global_batch": 8192}, "more than 23232 devices"),
    ],
)
def test_what_was_never_measured_is_named(keys: dict[str, Any], named: str) -> None:
    answer = asked(**keys)
    assert named in answer["evidence"]["never_measured"]
    assert width(answer) > width(asked())


def test_of_a_trainer_without_any_run_only_its_name_is_news() -> None:
    assert asked("torchtitan", zero_stage=3)["evidence"]["never_measured"] == ["torchtitan"]


def test_pairs_of_what_was_measured_are_no_news() -> None:
    for keys in (
        {"pp": 2},
        {"pp": 2, "cp": 2},
        {"cp": 2, "precision": "fp8"},
        {"devices": 16384, "global_batch": 4096},
    ):
        assert asked(**keys)["evidence"]["never_measured"] == [], keys


def test_a_feature_without_a_run_is_named_once() -> None:
    keys = {"zero_stage": 3, "offload": "all", "precision": "fp8"}
    assert asked(**keys)["evidence"]["never_measured"] == ["offload all"]


def test_a_pair_needs_a_run_that_has_both() -> None:
    keys = {**RUN, "tp": 1, "ep": 8, "zero_stage": 3}
    answer = dict(predict("mixtral-8x7b", "dgx-h100", keys, seq_len=4096, framework="megatron"))
    assert answer["evidence"]["never_measured"] == ["expert parallelism and zero_stage 3"]


def test_the_answer_has_how_much_wider_the_band_is() -> None:
    ask = {"layout": RUN | {"zero_stage": 2}, "seq_len": 8192, "framework": "megatron", "tokens": 1e12}
    answer = predict("llama-3-8b", "dgx-h100", **ask)
    wider, seconds = answer["evidence"]["band_wider"], answer["step_time_s"]
    assert wider > 1.2
    shown = " ".join(str(answer).split())  # whatever the terminal is wide
    assert "never measured: zero_stage 2 with megatron" in shown
    assert f"so the band is {wider:.1f} times as wide" in outside(Reader(answer["evidence"], "evidence"))
    assert "band_wider" not in asked()["evidence"]
    total = answer["total"]  # its days by the same band
    assert total["band"]["days"]["p90"] / total["days"] == pytest.approx(seconds["p90"] / seconds["p50"])
