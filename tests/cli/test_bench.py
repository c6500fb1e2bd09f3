"""`bench` and `calibrate` as they are typed: JSON, tables, a profile that predict takes, mistakes."""

from __future__ import annotations

import json

import pytest
from tests.fake_machine import machine
from tests.model.tiny_families import save
from tests.serve.test_generate import make_tokenizer

from scalewright.bench.correct import Factors, correct
from scalewright.plan.predict import price
from scalewright.spec.base import write_yaml
from scalewright.spec.question import Question
from scalewright.spec.run import RunSpec

LAYOUTS = ({"zero_stage": 0}, {"zero_stage": 3}, {"tp": 2}, {"pp": 2})


def test_storage_as_json_and_as_a_table(call_cli, tmp_path):
    answer = call_cli("bench", "storage", "--folder", tmp_path, "--bytes", 5000, "--json")
    assert answer.code == 0, answer.err
    assert answer.json()["rows"][0]["bytes"] == 5000
    assert "write and sync" in call_cli("bench", "storage", "--folder", tmp_path, "--bytes", 5000).out


def test_collectives_as_json(call_cli):
    answer = call_cli(
        "bench", "collectives", "--kinds", "all-reduce,broadcast", "--max-bytes", 4096, "--iterations", 3, "--json"
    )
    assert answer.code == 0, answer.err
    document = answer.json()
    assert [row["bytes"] for row in document["rows"]] == [1024, 2048, 4096] * 2
    assert document["backend"] == "gloo"
    assert {fit["kind"] for fit in document["fits"]} == {"all_reduce", "broadcast"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("collectives", "--kinds", "allreduce"), "did you mean 'all_reduce'"),
        (("collectives", "--processes", 1), "needs two processes"),
        (("storage", "--folder", "/no/such/folder"), "No such file"),
        (("matmul", "--model", "llama-3.1-8c"), "llama-3.1-8b"),
        (("step", "no.yaml"), "no such file (no.yaml)"),
    ],
)
def test_mistakes_are_one_line(call_cli, arguments, text):
    answer = call_cli("bench", *arguments)
    assert answer.code == 2
    assert text in answer.err
    assert answer.err.count("\n") == 1


def test_a_server_is_measured_and_inference_rehearses_it(call_cli, tmp_path):
    save("llama-gqa", tmp_path / "model")
    make_tokenizer(tmp_path / "model")
    file = tmp_path / "served.yaml"
    answer = call_cli("bench", "serve", tmp_path / "model", "--out", file, "--seconds", 3, "--json")
    assert answer.code == 0, answer.err
    assert answer.json()["steps"] > 60
    asked = ("inference", tmp_path / "model", "--cluster", "rtx-4090", "--measured", file, "--input-len", 20)
    found = call_cli(*asked, "--output-len", 10, "--rate", 1, "--json").json()
    assert 0 < found["tpot_s"]["p50"] <= found["ttft_s"]["p50"] < 1
    assert found["rehearsed"]["highest_requests_per_s"] > 1
    assert "played by the server's schedule" in call_cli(*asked, "--output-len", 10, "--rate", 1).out
    assert "asks for another server" in call_cli(*asked, "--engine", "vllm").err


@pytest.fixture
def slow_runs(tmp_path):
    """A profile, and folders of runs on a machine whose kernels take twice what the profile has."""
    write_yaml(tmp_path / "here.yaml", machine().dump())
    truth, folders = correct(machine(), Factors(2.0, 1.0)), []
    for number, layout in enumerate(LAYOUTS):
        run = RunSpec.parse({
            "model": "tiny", "data": {"train": "tokens.npy", "seq_len": 64},
            "layout": {"devices": 2, "global_batch": 8, "precision": "fp32", **layout},
        })  # fmt: skip
        seconds = price(Question(run, truth)).step_time_s
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        write_yaml(folder / "run.yaml", run.dump())
        row = json.dumps({"kind": "train", "step_time_s": seconds})
        (folder / "metrics.jsonl").write_text("\n".join([row] * 8))
        folders.append(folder)
    return folders


def test_calibrate_writes_a_profile_that_predict_takes(call_cli, tmp_path, slow_runs):
    profile, better = tmp_path / "here.yaml", tmp_path / "better.yaml"
    answer = call_cli("calibrate", *slow_runs, "--cluster", profile, "--out", better, "--json")
    assert answer.code == 0, answer.err
    document = answer.json()
    assert document["factors"]["kernels"] == pytest.approx(2.0, rel=0.1)
    assert document["median_error_after"] < 0.1 < document["median_error_before"]
    asked = ("--devices", 2, "--seq-len", 64, "--global-batch", 8, "--precision", "fp32", "--json")
    before, after = (
        call_cli("predict", "tiny", "--cluster", file, *asked).json()["step_time_s"]["p50"]
        for file in (profile, better)
    )
    assert 1.2 < after / before < 2.2


def test_calibrate_shows_errors_and_factors(call_cli, tmp_path, slow_runs):
    out = call_cli("calibrate", *slow_runs, "--cluster", tmp_path / "here.yaml").out
    assert "median error of these, corrected by the other 2" in out
    assert "kernels take" in out


def test_runs_of_other_processes_and_too_few_are_refused(call_cli, tmp_path, slow_runs):
    write_yaml(tmp_path / "four.yaml", machine(4).dump())
    answer = call_cli("calibrate", *slow_runs, "--cluster", tmp_path / "four.yaml")
    assert answer.code == 2
    assert "timed with 4" in answer.err
    answer = call_cli("calibrate", *slow_runs[:3], "--cluster", tmp_path / "here.yaml")
    assert answer.code == 2
    assert "too few" in answer.err
