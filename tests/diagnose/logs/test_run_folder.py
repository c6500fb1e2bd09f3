"""A run's folder: its usual step beside the prediction that the run recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.diagnose.job import Job, write

from scalewright.cli.terminal import show
from scalewright.diagnose.diagnose import diagnose
from scalewright.report.present import show_answer

PREDICTED = {"time": 1.0, "kind": "predicted", "step": 0, "p10": 0.09, "p50": 0.1, "p90": 0.11, "note": ""}


def run(folder: Path, seconds: float = 0.1, *events: dict[str, Any]) -> dict[str, Any]:
    """A run of 20 steps that resumed after step 10; its first step takes a second each time."""
    rows = [
        {"kind": "train", "step": n, "loss": 3.0, "grad_norm": 1.0, "lr": 1e-3, "tokens_per_s": 100.0,
         "step_time_s": 1.0 if n in (1, 11) else seconds, "memory_gib": 0.5} for n in range(1, 21)
    ]  # fmt: skip
    rows.append({"kind": "valid", "step": 20, "loss": 2.0})
    resume = {"time": 2.0, "kind": "resume", "step": 10}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in (resume, *events)))
    text = {"model": {"name": "llama-s"}, "layout": {"devices": 2, "tp": 2}, "data": {"seq_len": 128}}
    (folder / "run.yaml").write_text(yaml.safe_dump(text))
    return diagnose([folder])


def test_a_run_as_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(tmp_path, 0.1, PREDICTED)
    assert answer["kind"] == "run"
    assert (answer["log"]["framework"], answer["log"]["model"], answer["log"]["devices"]) == (
        "scalewright",
        "llama-s",
        2,
    )
    assert (len(answer["log"]["steps"]), answer["log"]["restarts"]) == (20, 1)
    assert answer["expected"]["verdict"] == "as expected"
    assert answer["verdicts"] == []
    show(show_answer(answer), everything=True)
    assert capsys.readouterr().out.startswith("100 tokens/s on 2 devices with scalewright: as expected\n")


def test_a_slow_run_names_how_much(tmp_path: Path) -> None:
    answer = run(tmp_path, 0.22, PREDICTED)
    assert answer["expected"]["verdict"] == "slow: 100% beyond p90"
    assert answer["verdicts"][0]["cause"] == "slower than expected"


def test_a_run_without_a_prediction_tells_why(tmp_path: Path) -> None:
    event = {"time": 1.0, "kind": "predicted", "p10": None, "p50": None, "p90": None, "note": "the model is the user's"}
    answer = run(tmp_path, 0.1, event)
    assert answer["expected"] is None
    assert "the model is the user's" in answer["warnings"][0]


def test_faults_of_a_run(tmp_path: Path) -> None:
    events = [{"kind": "nonfinite", "step": 7, "action": "skipped"}, *({"kind": "overflow", "step": n} for n in (2, 3))]
    causes = [verdict["cause"] for verdict in run(tmp_path, 0.1, PREDICTED, *events)["verdicts"]]
    assert causes == ["loss not finite", "skipped updates"]


def test_broken_files_of_a_run(tmp_path: Path) -> None:
    run(tmp_path, 0.1, PREDICTED)
    (tmp_path / "run.yaml").write_text("a: [")
    (tmp_path / "events.jsonl").write_text('{"kind": "predicted", "p50": "x"}\n{"ki')
    answer = diagnose([tmp_path])
    assert (len(answer["log"]["steps"]), answer["expected"]) == (20, None)
    (tmp_path / "metrics.jsonl").write_text(f'{{"kind": "train", "step": 1{"0" * 400}, "loss": Infinity}}\n')
    assert len(diagnose([tmp_path])["log"]["steps"]) == 1
    (tmp_path / "metrics.jsonl").write_text("")
    assert diagnose([tmp_path])["log"]["steps"] == []


LOAD = {"time": 1.5, "kind": "load", "step": 0, "message": "2 workers of 3 threads on 2 cores: steps will be slow and "
        "uneven; set OMP_NUM_THREADS=1"}  # fmt: skip


def test_a_run_takes_its_own_traces(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    write(Job(compute_of={2: 1.5}), tmp_path / "traces")
    answer = run(tmp_path, 0.22, PREDICTED)
    causes = {verdict["cause"]: verdict for verdict in answer["verdicts"]}
    assert "by the traces" in causes["straggler"]["evidence"]
    assert answer["traces"]["ranks"] == [0, 1, 2, 3]
    assert "record a trace" not in causes["slower than expected"]["fix"]


@pytest.mark.parametrize("broken", [b"", b"{", b'{"traceEvents": []}'])
def test_a_broken_trace_of_a_run_is_left_out(tmp_path: Path, broken: bytes) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "step-00000001-rank00000.json").write_bytes(broken)
    answer = run(tmp_path, 0.22, PREDICTED)
    assert [verdict["cause"] for verdict in answer["verdicts"]] == ["slower than expected"]
    assert "record a trace" in answer["verdicts"][0]["fix"]


@pytest.mark.parametrize("seconds", [0.22, 0.1])
def test_the_load_that_a_run_warned_of_is_weighed(tmp_path: Path, seconds: float) -> None:
    verdicts = run(tmp_path, seconds, PREDICTED, LOAD)["verdicts"]
    assert len(verdicts) == (seconds > 0.2)
    for verdict in verdicts:
        assert verdict["evidence"][-1] == f"the run itself warned at its start: {LOAD['message']}"
        assert verdict["fix"].startswith("first what the run warned of, set OMP_NUM_THREADS=1; then record a trace")


def test_the_dumps_of_a_hang_come_first(tmp_path: Path) -> None:
    (tmp_path / "hangs").mkdir()
    for rank in range(3):
        entries = [
            {"collective_seq_id": number, "process_group": ["0", "default_pg"], "profiling_name": "gloo:all_reduce",
             "input_sizes": [[4]], "input_dtypes": ["Float"], "retired": number < 3, "state": "completed"}
            for number in range(1, 3 if rank == 1 else 4)
        ]  # fmt: skip
        entries[-1]["state"] = "scheduled" if rank != 1 else "completed"
        (tmp_path / "hangs" / f"rank-{rank:05d}.json").write_text(json.dumps(entries))
        (tmp_path / "hangs" / f"rank-{rank:05d}.txt").write_text("Thread 1\n")
    hang = {"time": 3.0, "kind": "hang", "step": 20, "message": "no progress for 300 s: rank 1 is in load()"}
    answer = run(tmp_path, 0.22, PREDICTED, hang)
    assert answer["hang"]["root_ranks"] == [1]
    assert "rank 1 never came" in answer["verdicts"][0]["evidence"][0]
    assert answer["verdicts"][1]["evidence"] == ["no progress for 300 s: rank 1 is in load()"]
    show(show_answer(answer), everything=True)


def test_a_fault_is_the_cause_until_the_run_goes_on(tmp_path: Path) -> None:
    fault = {"time": 3.0, "kind": "fault", "step": 20, "message": "rank 1: disk full"}
    assert run(tmp_path, 0.1, PREDICTED, fault)["verdicts"][0]["evidence"] == ["rank 1: disk full"]
    assert run(tmp_path, 0.1, PREDICTED, fault, {"time": 4.0, "kind": "resume", "step": 20})["verdicts"] == []


def traced(folder: Path, listed: list[int], slow: dict[int, float], steps: int = 40) -> dict[str, Any]:
    """A run of steps of a tenth of a second, but for some, with `profile.steps`."""
    rows = [
        {"kind": "train", "step": n, "loss": 3.0 - 0.01 * n, "step_time_s": slow.get(n, 0.1 + 0.001 * (n % 5))}
        for n in range(1, steps + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "events.jsonl").write_text("")
    (folder / "run.yaml").write_text(yaml.safe_dump({"name": "a", "profile": {"steps": listed}} if listed else {}))
    return diagnose([folder])


@pytest.mark.parametrize(
    ("listed", "slow"),
    [
        ([8, 9], {8: 0.2, 9: 0.2, 10: 2.13}),  # the step after them has the writing of the file
        ([20], {20: 0.3, 21: 5.0}),
        ([8, 18, 28, 38], {9: 2.0, 19: 2.0, 29: 2.0, 39: 2.0}),
        ([*range(10, 26)], dict.fromkeys(range(10, 26), 0.3) | {26: 8.0}),  # long: no shift of the step time either
        ([39, 40], {39: 0.3, 40: 3.0}),
    ],
)
def test_steps_that_a_profiler_slows_are_no_cause(
    tmp_path: Path, listed: list[int], slow: dict[int, float], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = traced(tmp_path, listed, slow)
    assert answer["verdicts"] == []
    measured = answer["log"]["measured"]
    assert measured["step_time_s"] == pytest.approx(0.102, rel=0.01)
    assert (measured["left_out"], measured["traced"]) == (
        2,
        len({n + k for n in listed for k in (0, 1)} & {*range(41)}),
    )
    assert "a profiler recorded" in answer["warnings"][-1]
    show(show_answer(answer), everything=True)
    shown = " ".join(capsys.readouterr().out.split())  # whatever the terminal is wide
    assert f"without the first 2, without {measured['traced']} that a profiler slowed" in shown


def test_a_trace_of_an_earlier_call_and_a_real_stall_beside_it(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "step-00000008-rank00000.json.gz").write_bytes(b"")
    assert traced(tmp_path, [], {9: 2.0})["verdicts"] == []
    (verdict,) = traced(tmp_path, [], {9: 2.0, 30: 3.0})["verdicts"]
    assert (verdict["cause"], "(step 30)" in verdict["evidence"][0]) == ("stalls", True)


def test_a_run_of_traced_steps_alone_has_a_step_time(tmp_path: Path) -> None:
    answer = traced(tmp_path, [*range(1, 7)], {}, steps=6)
    assert (answer["log"]["measured"]["step_time_s"], answer["log"]["measured"]["traced"]) == (pytest.approx(0.102), 0)
