"""The largest idle part has a verdict, or the words "unexplained: the host was in X"."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.job import COMMUNICATION, COMPUTE, GEMM, Job, Rank, simulate, write_traces

from scalewright.diagnose.diagnose import diagnose

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
Step = Callable[[Rank], None]


def job(tmp_path: Path, step: Step, steps: int = 4, named: bool = True) -> dict[str, Any]:
    """The answer for one rank whose steps are sixty kernels of 1 ms in all and what `step` adds."""
    rank = Rank(0, 10.0)
    for number in range(steps):
        begun = rank.host
        for _ in range(60):
            rank.kernel(GEMM, 1000.0, COMPUTE)
        step(rank)
        if named:
            rank.add("user_annotation", f"ProfilerStep#{number}", begun, rank.host - begun)
    rank.kernel(GEMM, 1000.0, COMPUTE)
    write_traces([rank.events], tmp_path)
    return diagnose([tmp_path])


def host_in(name: str, category: str, milliseconds: float = 156.0, inside: str = "") -> Step:
    def step(rank: Rank) -> None:
        rank.host = max(rank.host, *rank.free.values())
        if inside:
            rank.add(category, inside, rank.host, milliseconds * 1000 + 20)
        rank.add(category, name, rank.host + 5, milliseconds * 1000)
        rank.host += milliseconds * 1000 + 30

    return step


@pytest.mark.parametrize(
    ("name", "category", "inside"),
    [
        ("cudaFree", "cuda_runtime", ""),
        ("aten::bincount", "cpu_op", ""),
        ("tokenizers/__init__.py(12): encode", "python_function", "train.py(40): step"),
        ("write_checkpoint", "user_annotation", "save"),
        ("hipHostMalloc", "cuda_runtime", "aten::pin_memory"),
        ("wandb/sdk/lib/apikey.py(7): log", "python_function", ""),
    ],
)
def test_a_host_function_that_takes_most_of_a_step_is_named(
    tmp_path: Path, name: str, category: str, inside: str
) -> None:
    first = job(tmp_path, host_in(name, category, inside=inside))["verdicts"][0]
    assert first["cause"] == "host function"
    assert name in first["evidence"][0]
    assert "156.0 ms a step" in first["evidence"][0]
    assert first["gain_pct"]["p90"] == pytest.approx(72, abs=3)  # 156 of 216 ms


def test_a_function_beside_a_busy_device_is_no_cause(tmp_path: Path) -> None:
    def step(rank: Rank) -> None:
        rank.add("user_annotation", "write_checkpoint", rank.host, 40_000)
        rank.host += 40_000

    assert job(tmp_path, step)["verdicts"] == []


def test_a_kernel_that_waits_from_its_launch(tmp_path: Path) -> None:
    def step(rank: Rank) -> None:
        if rank.correlation > 200:
            rank.kernel("first_of_its_module", 1000.0, COMPUTE, ready=max(rank.free.values()) + 493_000)

    answer = job(tmp_path, step)
    launch = next(verdict for verdict in answer["verdicts"] if verdict["cause"] == "launch")
    assert answer["verdicts"][0] == launch
    assert "first_of_its_module waits longest: 493.0 ms" in launch["evidence"][1]


@pytest.mark.parametrize("named", [True, False])
def test_a_loader_is_the_cause_with_and_without_steps(tmp_path: Path, named: bool) -> None:
    def step(rank: Rank) -> None:
        end = max(rank.host + 10, *rank.free.values())
        rank.add("cuda_runtime", "cudaStreamSynchronize", rank.host, end - rank.host)
        rank.host = end + 12_000
        rank.add("user_annotation", LOADER, rank.host, 50_000)
        rank.host += 50_000

    answer = job(tmp_path, step, named=named)
    assert answer["verdicts"][0]["cause"] == "data"
    assert ("steps" if named else "window") in answer["verdicts"][0]["evidence"][0]


@pytest.mark.parametrize(
    ("category", "name"), [("kernel", ""), ("cpu_op", "aten::nonzero"), ("python_function", "a.py(1): f")]
)
def test_without_a_rule_the_words_are_unexplained(tmp_path: Path, category: str, name: str) -> None:
    events, _ = simulate(Job(ranks=1, steps=2, kernel=500.0))
    events[0] = [event for event in events[0] if event["cat"] in ("kernel", "cuda_runtime")]
    kernels = [event for event in events[0] if event["cat"] == "kernel"]
    for place, event in enumerate(kernels):  # launches that the recorder lost, and a kernel every 2 ms
        event["args"]["correlation"] = 10**6 + place
        event["ts"] = 1000.0 + 2000 * place
    if name:
        end = kernels[-1]["ts"]
        events[0].append({"ph": "X", "cat": category, "name": name, "pid": 100, "tid": 1, "ts": 1000.0, "dur": end})
    write_traces(events, tmp_path)
    answer = diagnose([tmp_path])
    assert answer["bound_by"] == "idle"
    where = f"unexplained: the host was in {name or 'nothing that the trace names'}"
    assert answer["verdicts"][0]["evidence"][1].startswith(where)


def test_a_collective_s_share_isn_t_the_headline_beside_a_larger_idle_part(tmp_path: Path) -> None:
    def step(rank: Rank) -> None:
        rank.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", 32_000.0, COMMUNICATION,
                    max(rank.free.values()))  # fmt: skip
        host_in("aten::unique_dim", "cpu_op", 130.0)(rank)

    causes = [verdict["cause"] for verdict in job(tmp_path, step)["verdicts"]]
    assert causes[0] == "host function"


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation"),
        ("next batch", "user_annotation"),
        ("data_loading", "user_annotation"),
        ("train.py(131): get_batch", "python_function"),
        ("litgpt/data.py(40): load_data", "python_function"),
        ("Trainer.fetch_next_batch", "user_annotation"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_loading_by_its_name(tmp_path: Path, name: str, category: str, named: bool) -> None:
    first = job(tmp_path, host_in(name, category), named=named)["verdicts"][0]
    assert first["cause"] == "data"
    assert first["gain_pct"]["p90"] == pytest.approx(72, abs=3)


@pytest.mark.parametrize("name", ["dataset.py(3): get_length", "aten::batch_norm", "load_state", "all-gather samples"])
def test_other_names_are_no_loading(tmp_path: Path, name: str) -> None:
    assert job(tmp_path, host_in(name, "user_annotation"))["verdicts"][0]["cause"] == "host function"


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("sync", [True, False])
def test_pauses_in_which_the_trace_has_nothing_of_the_host_are_no_launching(
    tmp_path: Path, named: bool, sync: bool
) -> None:
    def step(rank: Rank) -> None:
        if sync:
            end = max(rank.host + 10, *rank.free.values())
            rank.add("cuda_runtime", "cudaStreamSynchronize", rank.host, end - rank.host)
        rank.host = max(rank.host, *rank.free.values()) + 156_000

    first = job(tmp_path, step, named=named)["verdicts"][0]
    assert first["cause"] == "idle"
    assert first["evidence"][1] == "unexplained: the host was in nothing that the trace names"
    assert "in 4 pauses of 1 ms or more" in first["evidence"][0]
    assert first["gain_pct"]["p90"] == pytest.approx(72, abs=3)


@pytest.mark.parametrize("name", ["cudaHostAlloc", "aten::unique_dim"])
def test_a_function_after_a_wait_comes_before_the_wait(tmp_path: Path, name: str) -> None:
    def step(rank: Rank) -> None:
        end = max(rank.host + 10, *rank.free.values())
        rank.add("cuda_runtime", "cudaStreamSynchronize", rank.host, end - rank.host)
        rank.host = end
        host_in(name, "cuda_runtime")(rank)

    causes = [verdict["cause"] for verdict in job(tmp_path, step)["verdicts"]]
    assert causes[:2] == ["host function", "sync"]
