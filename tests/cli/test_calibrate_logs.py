"""`calibrate --fit`: the logs of a machine that is slower than the planner's, and what they teach."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.logs.test_expected import BLOCK
from tests.diagnose.logs.write import megatron_2021, write

from scalewright.api import predict
from scalewright.plan.constants import constants
from scalewright.spec.base import write_yaml
from scalewright.spec.hardware.cluster import load_cluster

H100 = load_cluster("dgx-h100")
TRUTH = {"matmul.hopper": 0.75 * constants()["matmul.hopper"]}
SHAPES = [(8, 1), (4, 1), (2, 1), (4, 2), (2, 2), (8, 2), (1, 4), (2, 4)]  # tp, pp


def block(tp: int, pp: int) -> str:
    """Megatron's arguments of one layout on 64 devices."""
    text = BLOCK.replace("data-parallel size: 8, tensor", f"data-parallel size: {64 // tp // pp}, tensor")
    text = text.replace("tensor-model-parallel size: 8", f"tensor-model-parallel size: {tp}")
    for name, value in (("tensor", tp), ("pipeline", pp)):
        text = re.sub(rf"({name}_model_parallel_size \.+) \d", rf"\1 {value}", text)
    return text


def seconds(cluster: Any, tp: int, pp: int, batch: int = 64) -> float:
    layout = {"devices": 64, "tp": tp, "pp": pp, "zero_stage": 1, "micro_batch": 1, "global_batch": batch}
    answer = predict("llama-3-8b", cluster, layout, 8192, framework="megatron")
    return float(answer["step_time_s"]["p50"])


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Logs of steps as long as on a cluster whose products run at three quarters of the rate."""
    slower = H100.replace(measured={"constants": TRUTH})
    paths = []
    for number, shape in enumerate(SHAPES):
        folder = tmp_path_factory.mktemp(f"log-{number}")
        took = seconds(slower, *shape)
        paths.append(write(folder, lambda step, _, loss, took=took: megatron_2021(step, took, loss),
                           before=block(*shape)))  # fmt: skip
    return paths


def test_logs_correct_what_they_depend_on(call_cli, logs, tmp_path):
    better = tmp_path / "better.yaml"
    answer = call_cli("calibrate", *logs, "--cluster", "dgx-h100", "--fit", "--out", better, "--json").json()
    assert answer["held_out"]["rows"] == 4
    assert answer["held_out"]["before_median_error_pct"] > 10
    assert answer["held_out"]["median_error_pct"] < answer["held_out"]["before_median_error_pct"] / 3
    assert answer["constants"]["matmul.hopper"] < constants()["matmul.hopper"]
    slower = H100.replace(measured={"constants": TRUTH})
    unseen = (4, 1, 512)
    before, after = (abs(seconds(c, *unseen) / seconds(slower, *unseen) - 1) for c in (H100, str(better)))
    assert after < before / 3


def test_the_table_and_what_was_left_out(call_cli, logs, tmp_path):
    strange = tmp_path / "strange.log"
    strange.write_text("hello\n")
    text = call_cli("calibrate", *logs[:4], strange, "--cluster", "dgx-h100", "--fit").out
    assert "matmul.hopper" in text
    assert "median error of 2 logs left out" in text
    assert f"not used: {strange}: not in the log: model" in text


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--fit"], "1 log to learn from"), ([], "this is a log, not a run's folder")]
)
def test_mistakes(call_cli, logs, arguments, words):
    answer = call_cli("calibrate", logs[0], "--cluster", "dgx-h100", *arguments)
    assert answer.code == 2
    assert words in answer.err


def test_a_constant_that_does_not_exist(call_cli, tmp_path):
    file = tmp_path / "odd.yaml"
    write_yaml(file, H100.replace(measured={"constants": {"matmul.hoper": 0.5}}).dump())
    answer = call_cli("predict", "llama-3-8b", "--cluster", file, "--devices", "8")
    assert answer.code == 2
    assert "matmul.hopper" in answer.err
