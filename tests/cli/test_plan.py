"""`plan`: the promised keys, fixed axes, the run file, one line for each mistake, and Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.cli.blocked import run_without_torch

import scalewright as sw
from scalewright.cli.verbs.plan import read_counts

SMALL = ["llama-3.2-1b", "--cluster", "dgx-h100", "--devices", "8", "--seq-len", "2048", "--global-batch", "64"]


@pytest.fixture(scope="module")
def found():
    """One answer that several tests look at."""
    return sw.plan("llama-3.2-1b", "dgx-h100", 8, 2048, 64, tokens=1e11, price=2.0)


def planned(call_cli, *arguments):
    answer = call_cli("plan", *SMALL, *arguments, "--json")
    assert answer.code == 0, answer.err
    return answer.json()


# -- keys -----------------------------------------------------------------------------------------


def test_every_promised_key(found):
    assert {"evaluated", "feasible", "seconds", "best", "pareto", "why_not", "assumed"} <= set(found)
    one = sw.predict("llama-3.2-1b", "dgx-h100", {"devices": 8}, 2048, tokens=1e11, price=2.0)
    for best in found["best"]:
        assert set(one) <= set(best)
        assert {"trainable", "untrainable"} <= set(best)
    json.dumps(found, allow_nan=False)
    defaults = {"framework scalewright", "optimizer adamw", "precision bf16 (auto)"}
    assert defaults <= set(found["assumed"])


def test_the_best_is_first_and_each_is_what_predict_says(found):
    times = [entry["step_time_s"]["p50"] for entry in found["best"]]
    assert times == sorted(times)
    assert len(times) <= 5
    for entry in found["best"]:
        again = sw.predict("llama-3.2-1b", "dgx-h100", entry["layout"], 2048, tokens=1e11, price=2.0)
        assert again["step_time_s"]["p50"] == pytest.approx(entry["step_time_s"]["p50"], rel=1e-9)
        assert again["memory_gib"] == pytest.approx(entry["memory_gib"], rel=1e-9)


def test_the_front_falls_in_memory_as_it_rises_in_time(found):
    points = [(entry["step_time_s"]["p50"], entry["memory_gib"]["peak"]) for entry in found["pareto"]]
    assert points == sorted(points)
    assert [gib for _, gib in points] == sorted((gib for _, gib in points), reverse=True)


def test_the_command_says_the_same_as_python(call_cli, found):
    again = planned(call_cli, "--tokens", "1e11", "--price", "2")
    assert [entry["layout"] for entry in again["best"]] == [entry["layout"] for entry in found["best"]]
    nodes = call_cli(
        "plan", "llama-3.2-1b", "--cluster", "dgx-h100", "--nodes", "1", "--seq-len", "2048",
        "--global-batch-tokens", str(64 * 2048), "--json",
    ).json()  # fmt: skip
    assert nodes["best"][0]["layout"] == found["best"][0]["layout"]


def test_fixed_axes_are_kept(call_cli):
    for entry in planned(call_cli, "--fix", "tp=2,zero-stage=1", "--top", "3")["best"]:
        assert (entry["layout"]["tp"], entry["layout"]["zero_stage"]) == (2, 1)
    assert {item["layout"]["pp"] for item in planned(call_cli, "--fix", "pp=[2,4]")["best"]} <= {2, 4}


def test_headroom_is_left(call_cli):
    for entry in planned(call_cli, "--memory-headroom", "0.5")["best"]:
        assert entry["memory_gib"]["peak"] <= 0.5 * entry["device"]["usable_gib"]


@pytest.mark.parametrize("aim", ["cost", "energy", "tokens-per-dollar"])
def test_objectives(call_cli, aim):
    best = planned(call_cli, "--objective", aim, "--price", "2")["best"]
    values = [entry["objective_value"] for entry in best]
    assert values == sorted(values, reverse=aim == "tokens-per-dollar")


def test_scaling_has_a_row_a_count(call_cli):
    scaling = planned(call_cli, "--scaling", "2..8")["scaling"]
    assert [row["devices"] for row in scaling["rows"]] == [2, 4, 8]
    assert 0 <= scaling["serial_share"] <= 1


@pytest.mark.parametrize(
    ("text", "counts"),
    [("8..64", [8, 16, 32, 64]), ("8..50", [8, 16, 32, 50]), ("24,8,96", [8, 24, 96]), ("4..4", [4])],
)
def test_ranges_of_counts(text, counts):
    assert read_counts(text) == counts


# -- the run file ---------------------------------------------------------------------------------


def test_the_run_file_is_one_that_train_takes(call_cli, tmp_path):
    answer = planned(call_cli, "--out", tmp_path / "new" / "run.yaml", "--data", "data/x")
    spec = sw.load_run(answer["run_file"])
    assert spec.layout.devices == 8
    assert spec.layout.global_batch == 64
    assert answer["run_file_untrainable"] is None
    shown = call_cli("plan", *SMALL, "--out", tmp_path / "run.yaml", "--data", "data/x").out
    assert f"scalewright train {tmp_path / 'run.yaml'}" in shown


def test_the_optimizer_is_planned_and_written(call_cli, tmp_path):
    answer = planned(call_cli, "--optimizer", "lion", "--out", tmp_path / "run.yaml", "--data", "data/x",
                     "--scaling", "4,8")  # fmt: skip
    assert sw.load_run(answer["run_file"]).optimizer.name == "lion"
    best = answer["best"][0]
    again = sw.predict("llama-3.2-1b", "dgx-h100", best["layout"], 2048, optimizer="lion")
    assert again["memory_gib"] == pytest.approx(best["memory_gib"], rel=1e-9)
    assert answer["scaling"]["rows"][-1]["step_time_s"] == pytest.approx(again["step_time_s"]["p50"])
    assert "optimizer" not in planned(call_cli)["run_yaml"]
    wrong = call_cli("plan", *SMALL, "--optimizer", "adafactor")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    words = "use one of adamw, sgd, lion, muon, adamw_bf16, adamw_8bit"
    assert f"unknown optimizer 'adafactor' (--optimizer): {words}" in wrong.err


def test_another_trainers_plan_sends_nobody_to_train(call_cli, tmp_path):
    """Its memory isn't that of `train`, whose dry run of the file would contradict it."""
    shown = call_cli("plan", *SMALL, "--framework", "megatron", "--out", tmp_path / "run.yaml").out
    assert "to be set in megatron, which doesn't read this file" in shown
    assert f"scalewright train {tmp_path}" not in shown


def test_what_train_runs_is_a_column_of_our_own_plans_alone(call_cli):
    """With fp8, which `train` lacks and Megatron has."""
    ours, megatron = (
        call_cli("plan", *SMALL, "--precision", "fp8", "--top", "1", *more).out
        for more in ((), ("--framework", "megatron"))
    )
    assert "not yet" in ours
    assert "`train` can't run 1 yet: precision fp8 can be planned but not trained yet" in ours
    assert "not yet" not in megatron
    assert "`train`" not in megatron
    header = next(line for line in megatron.splitlines() if "MFU" in line and "layout" in line)
    assert "train" not in header


def test_the_terminal_names_better_counts_and_what_was_preferred(call_cli):
    """100 devices leave few layouts; the simplest comes before a faster one, by a margin of 2%, and the usual
    before what nobody has measured."""
    odd = "--cluster dgx-h100 --devices 100 --seq-len 8192 --global-batch 512 --top 1"
    answer = call_cli("plan", "llama-3.1-8b", *odd.split(), "--json").json()
    shown = " ".join(call_cli("plan", "llama-3.1-8b", *odd.split()).out.split())
    batch, fewer = answer["nearby"]
    assert f"a global batch of {batch['global_batch']} instead of 512 is" in shown
    assert f"{fewer['devices']} of your 100 devices are" in shown
    faster = answer["best"][0]["simpler_than"]
    assert 0.05 < faster["cost_pct"] < 12.5
    said = "more usual than the fastest" if faster["unusual"] else "the simplest within 2% of the fastest"
    assert f"the first is {said} ({faster['step_time_s']:.1f} s, " in shown
    assert f"{faster['cost_pct']:.1f}% less)" in shown
    plain = call_cli("plan", *SMALL, "--top", "1", "--margin", "0").out
    assert "simplest within" not in plain
    assert "of your" not in plain


def test_what_train_can_not_run_is_said(call_cli, tmp_path):
    answer = call_cli(
        "plan", "qwen3-next-80b-a3b", "--cluster", "dgx-h100", "--devices", "16", "--seq-len", "2048",
        "--global-batch", "64", "--fix", "pp=2,tp=1,cp=1", "--out", tmp_path / "run.yaml",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert "no run file: `train` can't run this yet" in answer.out
    assert not (tmp_path / "run.yaml").exists()


def test_the_tables_tell_all_of_it(call_cli):
    shown = call_cli("plan", *SMALL, "--why-not", "tp=8", "--scaling", "4..8", "--all").out
    for word in ("layouts judged", "step", "MFU", "GiB", "why not", "time against memory", "what if",
                 "nearest measured runs", "assumed", "--out run.yaml", "serial"):  # fmt: skip
        assert word in shown, word


# -- mistakes -------------------------------------------------------------------------------------

WRONG = [
    (["--fix", "tpp=8"], "unknown key 'tpp' (--fix): did you mean 'tp'"),
    (["--fix", "tp=3"], "tp 3"),
    (["--fix", "tp=nan"], "tp is 'nan'"),
    (["--fix", "devices=8"], "devices is not an axis"),
    (["--fix", "schedule=1f1c"], "unknown schedule '1f1c'"),
    (["--fix", "tp=16"], "tp 16"),
    (["--objective", "tiem"], "did you mean 'time'"),
    (["--memory-headroom", "nan"], "headroom is nan"),
    (["--memory-headroom", "1.5"], "headroom is 1.5"),
    (["--top", "0"], "--top"),
    (["--precision", "bf61"], "precision is 'bf61'"),
    (["--scaling", "8..4..2"], "scaling is '8..4..2'"),
    (["--scaling", "64..8"], "write 8..64"),
    (["--scaling", "0..8"], "scaling is '0..8'"),
    (["--scaling", "many"], "scaling is 'many'"),
    (["--tokens", "nan"], "tokens is nan"),
    (["--price", "-1", "--objective", "cost"], "price is -1"),
    (["--price", "2"], "price is given without tokens (--price): add --tokens"),
    (["--data", "x"], "add --out run.yaml"),
    (["--why-not", "tpp=8"], "unknown key 'tpp' (--why-not)"),
    (["--nodes", "2"], "devices 8 and nodes 2"),
    (["--global-batch-tokens", "100"], "not divisible by seq_len"),
    (["--out", "/proc/nowhere/run.yaml"], "cannot write the file"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=[" ".join(one) for one, _ in WRONG])
def test_a_mistake_is_one_line(call_cli, arguments, words):
    answer = call_cli("plan", *SMALL, *arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert words in answer.error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["llama-3.2-1", "--cluster", "dgx-h100", "--devices", "8", "--global-batch", "8"], "'llama-3.2-1b'"),
        (["llama-3.2-1b", "--cluster", "dgx-h10", "--devices", "8", "--global-batch", "8"], "'dgx-h100'"),
        (["llama-3.2-1b", "--cluster", "dgx-h100", "--global-batch", "8"], "devices is missing"),
        (["llama-3.2-1b", "--cluster", "dgx-h100", "--devices", "8"], "global_batch is missing"),
        (["llama-3.2-1b", "--devices", "8", "--global-batch", "8"], "--cluster is missing"),
        (["--cluster", "dgx-h100"], "MODEL is missing"),
        (["llama-3.2-1b", "-c", "dgx-h100", "--devices", "0", "--global-batch", "8"], "devices is 0"),
        (["llama-3.2-1b", "-c", "dgx-h100", "--devices", "99999999999", "--global-batch", "8"], "devices is 9"),
        (["llama-3.2-1b", "-c", "dgx-h100", "--devices", "17", "--global-batch", "9"], "global_batch 9"),
        (["llama-3.1-405b", "-c", "t4", "--devices", "2", "--global-batch", "2"], "fits on no layout"),
    ],
)
def test_questions_that_have_no_answer(call_cli, arguments, words):
    answer = call_cli("plan", *arguments, "--seq-len", "2048")
    assert answer.code == 2
    assert answer.out == ""
    assert words in answer.error


# -- Ctrl-C, torch, terminals ---------------------------------------------------------------------


def test_what_was_found_before_ctrl_c_is_printed(call_cli, monkeypatch):
    """The search is told to stop before its end, as a Ctrl-C tells it."""
    monkeypatch.setattr("scalewright.cli.output._interrupts", stop_after(3))
    large = "--cluster dgx-h100 --devices 512 --seq-len 8192 --global-batch 1024 --framework unknown --json"
    answer = call_cli("plan", "llama-3.1-70b", *large.split())
    assert answer.code == 130
    found = answer.json()
    assert found["complete"] is False
    assert found["best"]


def test_ctrl_c_before_anything_was_found(call_cli, monkeypatch):
    monkeypatch.setattr("scalewright.cli.output._interrupts", stop_after(0))
    answer = call_cli("plan", *SMALL)
    assert answer.code == 130
    assert answer.error == "interrupted"


def stop_after(times):
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > times

    @contextlib.contextmanager
    def interrupts(stopped):
        stopped.is_set = stop
        yield

    return interrupts


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_is_no_traceback():
    script = [sys.executable, "-m", "scalewright", "plan", "gpt3-175b", "--cluster", "dgx-a100-80g",
              "--devices", "4096", "--seq-len", "2048", "--global-batch", "4096"]  # fmt: skip
    done = subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1.5)
    done.send_signal(signal.SIGINT)
    out, err = done.communicate(timeout=120)
    assert "Traceback" not in err
    assert done.returncode in (130, -signal.SIGINT) or (done.returncode == 0 and out), err


def test_without_torch(tmp_path):
    done = run_without_torch(
        ["plan", *SMALL, "--json"],
        ["plan", *SMALL, "--out", str(tmp_path / "run.yaml"), "--data", "x", "--why-not", "tp=8"],
    )
    assert done.returncode == 0, done.stderr


def test_calling_the_package_is_the_function():
    import scalewright.plan

    assert callable(sw.plan)
    assert scalewright.plan is sw.plan
    with pytest.raises(sw.UserError, match="unknown model"):
        sw.plan("nobody", "dgx-h100", 8, 2048, 8)


def test_near_ranks_changes_to_a_layout_by_their_gain(call_cli):
    answer = planned(call_cli, "--near", "tp=8,pp=1,zero_stage=1,micro_batch=1")
    yours = answer["yours"]
    assert (yours["layout"]["devices"], yours["layout"]["global_batch"]) == (8, 64)
    assert yours["gain_pct"] > 0
    gains = [row["gain_pct"] for row in yours["changes"]]
    assert gains == sorted(gains, reverse=True)
    best = next(row for row in yours["changes"] if row["change"] == "tp / 2")
    halved = sw.plan(
        "llama-3.2-1b", "dgx-h100", 8, 2048, 64, yours={"tp": 4, "zero_stage": 1, "micro_batch": 1}, top=1
    )["yours"]
    gained = halved["tokens_per_s"] / yours["tokens_per_s"] - 1
    assert best["gain_pct"] == pytest.approx(100 * gained, rel=1e-6)
    assert "tp / 2 alone" in call_cli("plan", *SMALL, "--near", "tp=8,micro_batch=1").out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--near", "tpp=8"], "unknown key 'tpp' (--near)"),
        (["--near", "tp=3"], "not divisible by tp 3"),
        (["--near", "devices=4"], "unknown key 'devices' (--near)"),
        (["--near", "tp=8", "--from", "pretrain.sh"], "--near and --from"),
    ],
)
def test_a_layout_to_beat_is_checked_before_the_search(call_cli, flags, words):
    shown = call_cli("plan", *SMALL, *flags)
    assert shown.code == 2
    assert words in shown.err
