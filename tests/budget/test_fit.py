"""Fits to runs of a known law and to the runs of comparisons/results; ladders; what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from scalewright.budget.fit import Run, fit_runs, leave_largest_out, optimum, predict, read_runs
from scalewright.budget.ladder import ladder, run_keys
from scalewright.budget.laws import find_law
from scalewright.spec.errors import UserError
from scalewright.spec.run import load_run

pytest.importorskip("scipy")
TRUE = np.array([np.log(1.8), np.log(480.0), np.log(2085.0), 0.348, 0.366])


def made(noise: float = 0.0) -> list[Run]:
    """Runs of 10M to 1B parameters by a known law, each off by `noise`."""
    rng = np.random.default_rng(3)
    grid = [(n, d) for n in (1e7, 3e7, 1e8, 3e8, 1e9) for d in (1e8, 1e9, 1e10)]
    return [Run(f"n{n:g}", n, d, float(predict(TRUE, n, d)) * float(np.exp(rng.normal(0, noise)))) for n, d in grid]


def test_a_known_law_is_found_again() -> None:
    answer = fit_runs(made(), flops=1e22, draws=10)
    law = answer["law"]
    assert law["E"] == pytest.approx(1.8, rel=1e-3)  # what L-BFGS leaves of a smooth bowl
    assert law["alpha"] == pytest.approx(0.348, rel=2e-3)
    assert law["beta"] == pytest.approx(0.366, rel=2e-3)
    more = answer["extrapolated"]
    assert more["params"] == pytest.approx(optimum(TRUE, 1e22)[0], rel=0.01)
    assert more["loss"]["p50"] == pytest.approx(float(predict(TRUE, more["params"], more["tokens"])), rel=1e-3)
    assert more["far"]
    assert more["beyond"] == pytest.approx(1e22 / 6e19)


def test_intervals_hold_the_truth_of_noisy_runs_and_one_wild_run_moves_little() -> None:
    runs = made(0.003)
    answer = fit_runs(runs, draws=60)
    low, high = answer["intervals"]["E"]
    assert low - 0.05 < 1.8 < high + 0.05
    assert abs(answer["leave_largest_out"]["error_pct"]) < 1.5
    wild = [*runs[:-4], Run("wild", runs[-4].params, runs[-4].tokens, runs[-4].loss * 1.5), *runs[-3:]]
    assert fit_runs(wild, draws=10)["law"]["E"] == pytest.approx(answer["law"]["E"], rel=0.05)  # Huber's


def test_the_largest_run_is_predicted_without_it() -> None:
    runs = made()
    runs[-1] = Run("largest", runs[-1].params, runs[-1].tokens, runs[-1].loss * 1.1)
    left = leave_largest_out(runs)
    assert left["name"] == "largest"
    assert left["error_pct"] == pytest.approx(100 / 1.1 - 100, abs=0.2)


def test_runs_are_read_from_tables_and_folders(tmp_path: Path, call_cli) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(
        "# mine\nname,params,tokens,loss\n" + "".join(f"{r.name},{r.params},{r.tokens},{r.loss}\n" for r in made())
    )
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    rung = ladder(find_law(None), None, [1e6], [1e6], None, 512)[0]
    (folder / "run.yaml").write_text(json.dumps(run_keys(rung, tmp_path, "data", 128, "cpu")))
    steps = run_keys(rung, tmp_path, "data", 128, "cpu")["train"]["steps"]
    rows = [{"kind": "train", "step": steps, "tokens": 1e6}, {"kind": "valid", "step": steps, "loss": 4.1}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    unfinished = tmp_path / "runs" / "two"
    unfinished.mkdir()
    (unfinished / "run.yaml").write_text((folder / "run.yaml").read_text())
    (unfinished / "metrics.jsonl").write_text(json.dumps({"kind": "valid", "step": 1, "loss": 6.0}) + "\n")
    runs = read_runs([str(table), str(tmp_path / "runs")])
    assert len(runs) == 16
    own = next(run for run in runs if run.name == "one")
    assert (own.params, own.tokens, own.loss) == (rung.params, 1e6, 4.1)
    shown = call_cli("budget", "fit", table, "--flops", "1e22", "--bootstrap", "10", "--plot", tmp_path / "fit.svg")
    assert shown.code == 0, shown.err
    assert "beyond what was fitted" in shown.out
    assert "<svg" in (tmp_path / "fit.svg").read_text(encoding="utf-8")


def test_the_runs_of_this_project_predict_their_largest() -> None:
    """comparisons/scaling_ladder.py trained them; the aim was 2%."""
    path = Path(__file__).parents[2] / "comparisons" / "results" / "scaling-ladder.csv"
    runs = read_runs([str(path)])
    assert len(runs) >= 8
    assert abs(leave_largest_out(runs)["error_pct"]) < 2


BAD = [
    ("params,tokens\n1,2\n", "no column loss"),
    ("params,tokens,loss\n1e6,1e7,nine\n", "row 1 has no three numbers"),
    ("params,tokens,loss\n1e6,1e7,-2\n", "row 1 has no three numbers"),
    ("params,tokens,loss\n1e6,1e7,4\n", "1 runs are too few"),
    ("params,tokens,loss\n" + "".join(f"1e6,{n}e7,4\n" for n in range(1, 9)), "all runs have the same params"),
]


@pytest.mark.parametrize(("text", "words"), BAD, ids=[words for _, words in BAD])
def test_a_table_that_can_t_be_fitted(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        read_runs([str(path)])


def test_an_extrapolation_needs_both_or_flops() -> None:
    with pytest.raises(UserError, match="--flops alone, or --params with --tokens"):
        fit_runs(made(), params=1e9, draws=10)


def test_a_ladder_varies_size_and_tokens_apart(tmp_path: Path, call_cli) -> None:
    flags = f"--flops 1e15 --vocab 512 --seq-len 128 --out {tmp_path}/ladder --json"
    answer = json.loads(call_cli("budget", "ladder", *flags.split()).out)
    assert 8 <= len(answer["runs"]) <= 15
    assert max(row["flops"] for row in answer["runs"]) <= 1.001e15
    assert (
        call_cli("budget", "ladder", "--flops", "1e12", "--out", tmp_path / "none").code == 2
    )  # too small for five sizes
    assert len({row["params"] for row in answer["runs"]}) == 5
    for row in answer["runs"]:
        run = load_run(row["file"])
        batch = run.layout.global_batch * 128
        assert abs((run.train.steps or 0) * batch - row["tokens"]) <= batch
