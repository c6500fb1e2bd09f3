"""Exports of Nsight Compute in its three forms: four kernels, each bound by something else."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import pytest

from scalewright.diagnose.diagnose import diagnose
from scalewright.spec.errors import UserError

FIRST = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
         "Grid Size", "Device", "CC"]  # fmt: skip
RAW = {  # metric -> unit on the raw page, name and unit on the details page
    "gpu__time_duration.sum": ("usecond", "Duration", "us"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "Compute (SM) Throughput", "%"),
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "Memory Throughput", "%"),
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "DRAM Throughput", "%"),
    "dram__bytes.sum.per_second": ("Gbyte/second", "Memory Throughput", "Gbyte/s"),
    "sm__maximum_warps_per_active_cycle_pct": ("%", "Theoretical Occupancy", "%"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "Achieved Occupancy", "%"),
    "launch__waves_per_multiprocessor": ("", "Waves Per SM", ""),
    "launch__occupancy_limit_registers": ("block", "Block Limit Registers", "block"),
    "launch__occupancy_limit_shared_mem": ("block", "Block Limit Shared Mem", "block"),
}
KERNELS: list[tuple[str, list[float]]] = [
    ("void at::native::vectorized_elementwise_kernel<4>()", [400, 20, 92, 92, 3082, 100, 95, 40, 8, 16]),
    ("sm90_xmma_gemm_bf16bf16", [300, 88, 40, 20, 670, 25, 24, 6, 1, 2]),
    ("void attention_kernel(float*)", [200, 30, 35, 10, 335, 25, 24, 9, 2, 4]),
    ("void small_reduce(float*)", [100, 2, 4, 3, 100, 100, 12, 0.11, 16, 32]),
]


def lines(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue()


def first(number: int, name: str) -> list[str]:
    return [str(number), "7", "python", "host", name, "1", "7", "(256, 1, 1)", "(99, 1, 1)", "0", "9.0"]


def raw() -> str:
    rows = [[*FIRST, *RAW], ["" for _ in FIRST] + [unit for unit, _, _ in RAW.values()]]
    rows += [[*first(number, name), *(f"{value:,.2f}" for value in values)]
             for number, (name, values) in enumerate(KERNELS)]  # fmt: skip
    return lines(rows)


def details() -> str:
    rows = [[*FIRST, "Section Name", "Metric Name", "Metric Unit", "Metric Value"]]
    for number, (name, values) in enumerate(KERNELS):
        for value, (_, metric, unit) in zip(values, RAW.values(), strict=True):
            rows.append([*first(number, name), "a section", metric, unit, f"{value:,.2f}"])
    return lines(rows)


def summary() -> str:
    heads = ["Process ID", "Kernel Name", "Invocations", "Section Name", "Metric Name", "Metric Unit"]
    rows = [[*heads, "Minimum", "Maximum", "Average"]]
    for name, values in KERNELS:
        for value, (_, metric, unit) in zip(values, RAW.values(), strict=True):
            rows.append(["7", name, "2", "a section", metric, unit, "0", "0", f"{value:.2f}"])
    return lines(rows)


def answer(folder: Path, text: str) -> dict[str, Any]:
    path = folder / "kernels.csv"
    path.write_text(text)
    return diagnose([path])


@pytest.mark.parametrize("text", [raw(), details(), summary(), "==PROF== Connected\nstep 1\n" + raw() + "done, 3\n"])
def test_each_kernel_with_its_bound(tmp_path: Path, text: str) -> None:
    result = answer(tmp_path, text)
    assert result["kind"] == "kernels"
    rows = result["kernels"]
    assert [row["bound"] for row in rows] == ["memory", "compute", "latency", "latency"]
    assert [round(row["time_pct"]) for row in rows] == [40, 30, 20, 10]
    assert rows[0]["time_s"] == pytest.approx(400e-6 * rows[0]["count"])
    assert rows[0]["dram_peak_bytes_per_s"] == pytest.approx(3.35e12)
    assert (rows[1]["occupancy_limit"], rows[1]["theoretical_occupancy_pct"]) == ("registers", 25)
    assert "at most 25% of the warps fit, by registers" in rows[2]["why"]
    assert "fill 0.11 of a wave" in rows[3]["why"]


def test_gains_are_shares_of_the_time(tmp_path: Path) -> None:
    verdicts = answer(tmp_path, raw())["verdicts"]
    assert [verdict["cause"] for verdict in verdicts] == ["latency-bound kernel"] * 2
    assert verdicts[0]["gain_pct"]["p90"] == pytest.approx(20 * (1 - 35 / 80))
    assert verdicts[0]["evidence"][0].startswith("attention_kernel takes 20% of the kernels' time at 30% of its peak")


def test_launches_of_a_kernel_are_one_row_and_files_are_gzipped_or_not(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv.gz"
    body = raw().splitlines()
    path.write_bytes(gzip.compress("\n".join([*body, body[2]]).encode()))
    row = diagnose([path])["kernels"][0]
    assert (row["count"], row["time_s"]) == (2, pytest.approx(800e-6))


def test_without_durations_or_throughputs_nothing_is_claimed(tmp_path: Path) -> None:
    text = lines([[*FIRST, "launch__registers_per_thread"], [*first(0, "k"), "32"]])
    result = answer(tmp_path, text)
    assert (result["kernels"][0]["bound"], result["verdicts"]) == ("unknown", [])
    assert "have no duration" in result["warnings"][0]


@pytest.mark.parametrize("cell", ["n/a", "nan", "inf", "-5", "1e400", "", "\x00", '"', "," * 50])
def test_strange_cells_count_as_missing(tmp_path: Path, cell: str) -> None:
    rows = [[*FIRST, *RAW], [""] * (len(FIRST) + len(RAW)), [*first(0, "k"), *([cell] * len(RAW))],
            [*first(1, "good"), *(str(value) for value in KERNELS[0][1])]]  # fmt: skip
    assert [row["name"] for row in answer(tmp_path, lines(rows))["kernels"]] == ["good"]


def test_a_csv_without_metrics_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no kernel with a metric"):
        answer(tmp_path, lines([[*FIRST, "some__metric"], [*first(0, "k"), "1"]]))
