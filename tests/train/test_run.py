"""The whole of a run from outside: what it answers, what it leaves, and that it can be done again."""

from __future__ import annotations

import sys

import pytest
import torch

import parts
from runs import assert_same_bits, bits, events, merge, rows, run, run_data, weights
from scalewright.machine.processor import Processor
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec, load_run
from scalewright.train import run as door
from scalewright.train import worker
from scalewright.train.session import seed_step
from scalewright.train.state.claim import claim_folder

KEYS = {
    "kind", "step", "samples", "tokens", "loss_tokens", "loss", "aux_loss", "grad_norm", "lr", "step_time_s",
    "tokens_per_s", "mfu", "memory_gib", "sample_ids_hash", "breakdown_s",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    data = run_data(folder, train={"steps": 6, "valid_every": 3, "valid_batches": 1})
    return data, run(merge(data, {"checkpoint": {"every": 3, "at_end": True}}))


def test_rows_have_the_promised_keys(finished):
    _, result = finished
    found = rows(result.out_dir)
    assert all(set(row) == KEYS for row in found)
    assert [row["step"] for row in found] == [1, 2, 3, 4, 5, 6]
    assert [row["samples"] for row in found] == [8, 16, 24, 32, 40, 48]
    assert all(row["tokens"] == 16 * row["samples"] for row in found)
    assert all(0 < row["memory_gib"] < 64 and 0 < row["mfu"] < 1 for row in found)
    for row in found:
        assert row["tokens_per_s"] == pytest.approx(128 / row["step_time_s"])
    assert [set(row) for row in rows(result.out_dir, "valid")] == [{"kind", "step", "loss", "bits_per_byte"}] * 2


def test_a_run_is_validated_once(tmp_path, monkeypatch):
    """A resume validates it once more: what it takes over was read from a checkpoint."""
    validated, parse = [], RunSpec.parse.__func__

    def counted(cls, data, where=""):
        validated.append(cls)
        return parse(cls, data, where)

    monkeypatch.setattr(RunSpec, "parse", classmethod(counted))
    data = run_data(tmp_path, checkpoint={"at_end": True})
    run(merge(data, {"train": {"steps": 1}}))
    assert len(validated) == 1
    run(merge(data, {"train": {"steps": 2}}))
    assert len(validated) == 3


def test_the_answer_is_that_of_the_rows(finished):
    _, result = finished
    last = rows(result.out_dir)[-1]
    assert (result.step, result.loss, result.resumed_from) == (6, last["loss"], None)
    assert result.valid_loss == rows(result.out_dir, "valid")[-1]["loss"]


def test_what_happened_is_told(finished):
    _, result = finished
    kinds = [event["kind"] for event in events(result.out_dir)]
    assert kinds == ["start", "predicted", *["evaluate", "save"] * 2, "measured", "finish"]
    assert events(result.out_dir, "save")[0]["path"] == "checkpoints/step-00000003"
    (start,) = events(result.out_dir, "start")
    assert start["parameters"] == sum(t.numel() for t in weights(result.out_dir).values())
    assert start["peak_source"] == "measured"


def test_a_run_warns_of_more_threads_than_idle_cores(tmp_path, monkeypatch, capfd):
    """What is measured of the machine is given; the line comes once, before the first step."""
    four = Processor("a CPU", 4, 4, 4, None, (), 1, 1 << 34, 1 << 33, None)
    monkeypatch.setattr(worker, "read_processor", lambda: four)
    monkeypatch.setattr(worker, "others_busy", lambda *_, **__: 3.6)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    door.train(run_data(tmp_path, train={"steps": 1}))
    shown = " ".join("".join(capfd.readouterr()).split())
    assert shown.count("4 threads on 4 cores, of which other work keeps 3.6 busy: steps will be slow") == 1
    assert "set OMP_NUM_THREADS=1" in shown


def test_the_run_file_records_what_steers_threads_and_communication(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5_0")
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    result = run(run_data(tmp_path, train={"steps": 1}))
    variables = load_run(f"{result.out_dir}/run.yaml").environment["variables"]
    assert variables["NCCL_IB_HCA"] == "mlx5_0"
    assert "SECRET_TOKEN" not in variables


def test_the_folder_rebuilds_the_run(finished, tmp_path):
    """run.yaml, as resolved, gives the same run again, bit for bit."""
    _, result = finished
    spec = load_run(f"{result.out_dir}/run.yaml", [f"out_dir={tmp_path / 'again'}"])
    assert spec.layout.precision == "fp32"
    again = run(spec.dump())
    assert bits(again.out_dir) == bits(result.out_dir)
    assert_same_bits(weights(again.out_dir), weights(result.out_dir))


def test_another_seed_is_another_run(finished, tmp_path):
    data, result = finished
    other = rows(run({**data, "seed": 4, "out_dir": str(tmp_path / "other")}).out_dir)
    assert [row["sample_ids_hash"] for row in other] != [row["sample_ids_hash"] for row in rows(result.out_dir)]
    assert other[0]["loss"] != rows(result.out_dir)[0]["loss"]


def test_deterministic_mode_gives_the_same_numbers(finished, tmp_path):
    data, result = finished
    try:
        found = run({**data, "deterministic": True, "out_dir": str(tmp_path / "out")}).out_dir
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert bits(found) == bits(result.out_dir)


def test_seeds_are_a_function_of_step_and_rank():
    """Equal for equal (seed, step, rank), and different when any of the three is."""

    def draw(*place: int) -> float:
        seed_step(*place, torch.device("cpu"))
        return torch.rand(()).item()

    assert draw(0, 1, 0) == draw(0, 1, 0)
    assert len({draw(0, 1, 0), draw(1, 1, 0), draw(0, 2, 0), draw(0, 1, 1)}) == 4


def test_a_traced_step(tmp_path):
    import gzip
    import json

    run(run_data(tmp_path, train={"steps": 3}, profile={"steps": [2]}))
    (trace,) = (tmp_path / "out" / "traces").iterdir()
    assert trace.name == "step-00000002-rank00000.json.gz"
    found = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert any("aten::mm" in str(event.get("name")) for event in found)
    assert len(rows(tmp_path / "out")) == 3


def test_precision_auto_is_written_resolved(tmp_path):
    result = run(run_data(tmp_path, layout={"precision": "auto"}, train={"steps": 1}))
    assert load_run(f"{result.out_dir}/run.yaml").layout.precision in ("fp32", "bf16")


@pytest.fixture
def started(monkeypatch):
    """What would have been started."""
    found: list[str] = []
    monkeypatch.setattr(door, "prepare_workers", lambda *given: found.append("server"))
    monkeypatch.setattr(door, "run_local", lambda *given, **keys: found.append("ranks"))
    return found


TP2 = {"devices": 2, "tp": 2}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"layout": {"devices": 3, "tp": 3}}, "not divisible by tp 3"),
        ({"layout": {"devices": 8, "pp": 8}}, "more than the model's 3 layers"),
        ({"layout": {"devices": 2, "pp": 2, "schedule": "interleaved"}}, "more than the model's 3 layers"),
        ({"layout": TP2, "data": {"seq_len": 15}}, "seq_len 15 is not divisible by the 2 parts"),
        (
            {"layout": TP2, "data": {"python": "parts:Counting", "seq_len": 15}},
            "seq_len 15 is not divisible by the 2 parts",
        ),
        ({"layout": TP2, "optimizer": {"python": "parts:ByTensor", "lr": 0.1}}, "doesn't say that it is elementwise"),
    ],
)
def test_what_cannot_be_is_refused_before_a_process_starts(tmp_path, started, changes, says):
    with pytest.raises(UserError, match=says):
        run(run_data(tmp_path, **changes))
    assert started == []
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
def test_a_folder_in_use_is_refused_before_a_process_starts(tmp_path, started):
    data = run_data(tmp_path, layout=TP2)
    with claim_folder(RunSpec.parse(data)), pytest.raises(UserError, match="another process is training"):
        run(data)
    assert started == []
    assert (tmp_path / "out" / "events.jsonl").read_text() == ""  # no fault of the run that goes on


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
def test_two_starts_at_one_moment_leave_no_fault_in_the_run_that_goes_on(tmp_path, monkeypatch):
    """The other one took the folder, and wrote its first event, after this one had found it free."""
    data = run_data(tmp_path)
    file = tmp_path / "out" / "events.jsonl"
    began = '{"kind": "start"}\n'
    with claim_folder(RunSpec.parse(data)):
        monkeypatch.setattr("scalewright.train.run.check_free", lambda spec: file.write_text(began))
        with pytest.raises(UserError, match="another process is training there"):
            run(data)
    assert file.read_text() == began
    assert [path.name for path in file.parent.iterdir()] == ["events.jsonl"]


def test_data_that_alone_know_their_length_are_asked_before_a_rank_starts(tmp_path, started, monkeypatch):
    monkeypatch.setattr(parts.Counting.__init__, "__defaults__", (15, 67))
    with pytest.raises(UserError, match="seq_len 15 is not divisible by the 2 parts"):
        run(run_data(tmp_path, layout=TP2, data={"python": "parts:Counting"}))
    assert started == ["server"]
    assert not (tmp_path / "out").exists()
