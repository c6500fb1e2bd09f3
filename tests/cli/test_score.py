"""`score`: figures of the bundled table and of one's own, and one line for what can't be compared."""

from __future__ import annotations

import csv

import pytest
from tests.cli.blocked import run_without_torch

from scalewright.plan.fitting.runs import MEASURED, OUT_OF_MEMORY, read_table


@pytest.fixture(scope="module")
def some():
    """Rows of three sources."""
    rows = read_table(MEASURED)
    found = []
    for source in ("llm-foundry-mpt", "vtrain-multi", "simumax-b200"):
        found += [row for row in rows if row["source"] == source][:15]
    return found


def write(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_the_bundled_table(call_cli):
    found = call_cli("score", "--json").json()
    assert found["rows"] == 2501
    assert {"overall", "sources", "apart", "expressed_pct", "refused", "memory", "ranking", "worst", "fits"} <= set(
        found
    )
    overall = found["overall"]
    assert {"median_error_pct", "mape_pct", "bias_pct", "coverage_pct", "best_baseline"} <= set(overall)
    assert overall["median_error_pct"] < overall[f"baseline_{overall['best_baseline']}_pct"]
    assert found["expressed_pct"] >= 95


def test_ones_own_table(call_cli, tmp_path, some):
    found = call_cli("score", write(tmp_path / "runs.csv", some), "--json").json()
    assert found["rows"] == len(some)
    assert set(found["sources"]) == {"llm-foundry-mpt", "vtrain-multi", "simumax-b200"}
    assert "fits" not in found, "no table of layouts out of memory was given"


def test_a_measurement_twice_as_long_is_half_predicted(call_cli, tmp_path, some):
    """Errors are those of predicted over measured: all times doubled, all ratios halve."""
    rows = [row for row in some if row["step_time_s"]]
    doubled = [{**row, "step_time_s": 2 * float(row["step_time_s"])} for row in rows]
    one = call_cli("score", write(tmp_path / "one.csv", rows), "--json").json()
    two = call_cli("score", write(tmp_path / "two.csv", doubled), "--json").json()
    for name, figures in one["sources"].items():
        halved = 50 * (1 + figures["bias_pct"] / 100) - 100
        assert two["sources"][name]["bias_pct"] == pytest.approx(halved)


def test_fit_reports_the_rest(call_cli, tmp_path, some):
    rows = [row for row in read_table(MEASURED) if row["source"] == "vtrain-multi"]
    found = call_cli("score", write(tmp_path / "runs.csv", rows), "--fit", "8", "--json").json()["profile"]
    assert found["fitted_on"] == 8
    assert found["rows"] + 8 <= len(rows)
    assert found["median_error_pct"] < found["before_median_error_pct"]


def test_the_tables_for_people(call_cli, tmp_path, some):
    path = write(tmp_path / "runs.csv", [*some, {**some[0], "id": "odd", "device": "abacus"}])
    shown = call_cli("score", path, "--fit", "8", "--oom", OUT_OF_MEMORY).out
    for word in ("step time", "in p10-p90", "baseline", "at half of peak", "ranking",
                 "peak memory", "worst rows", "fitted on 8 runs", "not expressed: 1", "odd: "):  # fmt: skip
        assert word in shown, word


def test_rows_that_can_not_be_read_count_as_refused(call_cli, tmp_path, some):
    path = write(tmp_path / "runs.csv", some)
    with open(path, "a", encoding="utf-8") as file:
        file.write("x," * 60 + "\n")
    found = call_cli("score", path, "--json").json()
    assert found["rows"] == len(some) + 1
    assert found["refused"][0]["id"] == "x"
    assert found["expressed_pct"] == pytest.approx(100 * len(some) / (len(some) + 1))


@pytest.mark.parametrize(
    ("change", "arguments", "words"),
    [
        ({}, ["--fit", "1000"], "--fit 1000 leaves none"),
        ({}, ["--fit", "0"], "--fit"),
        ({}, ["--oom", "nowhere.csv"], "cannot read the table"),
        ({"source": "mine"}, ["--left-out"], "fewer than three sources"),
        ({"device": "abacus"}, [], "no row can be expressed"),
        (
            dict.fromkeys(
                ["step_time_s", "step_time_derived_s", "tokens_per_s_per_device", "tok_s_dev_derived",
                 "tflops_per_device", "mfu_pct", "peak_mem_gib"], "",
            ),
            [],
            "no row has a measured time or memory",
        ),
    ],
)  # fmt: skip
def test_what_can_not_be_compared_is_one_line(call_cli, tmp_path, some, change, arguments, words):
    path = write(tmp_path / "runs.csv", [{**row, **change} for row in some])
    answer = call_cli("score", path, *arguments)
    assert answer.code == 2
    assert words in answer.error


def test_a_table_out_of_memory_needs_its_columns(call_cli, tmp_path, some):
    path = write(tmp_path / "runs.csv", some)
    assert "the column model_params_b is missing" in call_cli("score", path, "--oom", path).error
    (tmp_path / "oom.csv").write_text(OUT_OF_MEMORY.read_text().splitlines()[0] + "\n")
    assert "empty" in call_cli("score", "--oom", tmp_path / "oom.csv").error
    row = {**read_table(OUT_OF_MEMORY)[0], "dp": "many"}
    assert "line 2" in call_cli("score", "--oom", write(tmp_path / "bad.csv", [row])).error


@pytest.mark.parametrize("text", ["", "a letter\nto a friend\n"])
def test_a_file_that_is_no_table(call_cli, tmp_path, text):
    (tmp_path / "runs.csv").write_text(text)
    answer = call_cli("score", tmp_path / "runs.csv")
    assert answer.code == 2
    assert answer.error.startswith("error: ")


def test_without_torch(tmp_path, some):
    path = str(write(tmp_path / "runs.csv", some))
    done = run_without_torch(["score", path], ["score", path, "--json"])
    assert done.returncode == 0, done.stderr
