"""The heat maps of experts: from a file's rows, and from rows that a run wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parity.matrix import MOE
from report.page_checks import read_page
from report.run_folders import make_run
from runs import run, run_data
from scalewright.report.folder import read_folder
from scalewright.report.run import write_report
from scalewright.report.sections.experts import section


def with_rows(folder: Path, rows: list[dict[str, Any]]) -> Path:
    made = make_run(folder, steps=20)
    with (made / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"kind": "experts", **row}) + "\n" for row in rows)
    return made


def test_shades_are_loads_over_their_layers_mean(tmp_path: Path) -> None:
    rows = [
        {"step": 10, "loads": {"1": [4, 4, 4, 4], "3": [1, 1, 1, 13]}},
        {"step": 20, "loads": {"1": [4, 4, 4, 4], "3": [0, 4, 4, 8]}},
    ]
    shown = section(read_folder(with_rows(tmp_path / "run", rows)))
    assert shown is not None
    layers, steps = shown.data["maps"]
    assert dict(layers["paths"]) == {"none": "M0 1h1v1h-1z", "even": "M0 0h4v1h-4zM1 1h2v1h-2z",
                                     "more1": "M3 1h1v1h-1z"}  # fmt: skip
    assert dict(steps["paths"])["less3"] == "M0 0h3v1h-3z"  # a quarter of the mean
    assert (steps["title"], steps["ends"]) == ("Layer 3 over the steps", ("step 10", "step 20"))
    assert shown.data["busiest"] == "expert 3 of layer 3, 2 times the mean"
    assert (shown.data["idle"], shown.data["cells"]) == (1, 8)


@pytest.mark.parametrize(
    "row", [{"step": 1, "loads": {"x": [1]}}, {"step": 1, "loads": {"1": "x"}}, {"loads": {"1": [1]}},
            {"step": 1, "loads": {"1": [1], "2": [1, 2]}}, {"step": 1, "loads": {"1": []}}],
)  # fmt: skip
def test_what_is_no_row_of_loads_is_left_out(tmp_path: Path, row: dict[str, Any]) -> None:
    assert section(read_folder(with_rows(tmp_path / "run", [row]))) is None


@pytest.mark.parametrize(
    "layout",
    [{}, {"devices": 4, "pp": 2, "tp": 2, "micro_batch": 2}, {"devices": 2, "ep": 2, "zero_stage": 3}],
    ids=["1", "pp2-tp2", "ep2"],
)
def test_a_run_writes_the_loads_of_all_layers(tmp_path: Path, layout: dict[str, Any]) -> None:
    """Every token of the global batch at its top_k experts, whatever the layout."""
    model = {"moe": MOE, "num_hidden_layers": 3}
    folder = Path(run(run_data(tmp_path, model=model, layout=layout, train={"steps": 2})).out_dir)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    loads = [row for row in rows if row["kind"] == "experts"]
    assert [row["step"] for row in loads] == [1, 2]
    tokens = next(row["tokens"] for row in rows if row["kind"] == "train")
    for row in loads:
        assert list(row["loads"]) == ["1", "2"]  # the first layer is dense
        assert all(len(counts) == 4 and sum(counts) == 2 * tokens for counts in row["loads"].values())
    page = read_page(write_report(folder))
    assert "Which experts work" in page.body
