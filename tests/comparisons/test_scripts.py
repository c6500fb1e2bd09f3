"""Every comparison runs from end to end in little, and its result says what a reader must know."""

from __future__ import annotations

import importlib.util
import sys

import pytest


def check_facts(data, text):
    facts = data["facts"]
    assert facts["versions"]["torch"]
    assert facts["cpu"]["model"]
    assert facts["torch_threads"] >= 1
    assert facts["load_average"] is None or len(facts["load_average"]) == 3
    assert "commit" in (facts["source"] or {"commit": ""})
    assert facts["command"].startswith("python ")
    assert data["finished"] >= data["started"]
    assert facts["cpu"]["model"] in text


@pytest.mark.slow
def test_cpu_benchmark(script):
    data, text = script("cpu_benchmark.py", "--quick", "--threads", 1)
    check_facts(data, text)
    for precision in ("fp32", "bf16"):
        part = data[f"tiny {precision}"]
        people = part["contestants"]
        assert {"scalewright", "bare loop, our model"} <= people.keys()
        if importlib.util.find_spec("accelerate"):
            assert {"bare loop, HF Llama", "HF Trainer"} <= people.keys()
        for entry in people.values():
            assert entry["tokens_per_s"]["p20"] <= entry["tokens_per_s"]["median"] <= entry["tokens_per_s"]["p80"]
            assert len(entry["segments_wall_s"]) == part["rounds"] == 2
            assert entry["ours_is_faster_by"]["median"] > 0
        assert people["scalewright"]["ours_is_faster_by"]["median"] == 1
        assert sum(part["profiles"]["scalewright"]["shares"].values()) == pytest.approx(1)
        losses = part["largest_loss_difference_from_the_bare_loop"]
        # All compute the same; two operators in another order differ by an ulp of fp32, or of bf16.
        assert max(losses.values()) < (1e-5 if precision == "fp32" else 1e-2)
    for peer in ("trainer", "litgpt"):
        if importlib.util.find_spec({"trainer": "accelerate"}.get(peer, peer)) is None:
            assert any(line.startswith(peer) for line in data["missing"])
            assert f"Left out: {peer}" in text


@pytest.mark.slow
def test_overhead(script):
    data, text = script("overhead.py", "--quick", "--precisions", "bf16")
    check_facts(data, text)
    part = data["tiny bf16"]
    for account in part["cpu_s_per_step_by_part"].values():
        inside = sum(account[name] for name in ("forward", "backward", "optimizer step"))
        assert min(account["forward"], account["backward"], account["optimizer step"]) > 0
        assert account["all"] == pytest.approx(inside + account["outside"])
    assert "row written" in part["cpu_s_per_step_by_part"]["scalewright"]
    assert part["noise_cpu_share"]["count"] == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_gpu_check_on_a_cpu(script):
    """The whole of it; what each part makes of a kill is test_gpu_kit.py's."""
    data, _ = script("gpu_check.py", "--device", "cpu", "--quick", "--minutes", 14, timeout=880)
    parts = {name: record["values"] for name, record in data["parts"].items()}
    assert {record["status"] for record in data["parts"].values()} == {"done"}
    steps = parts["steps-1b"]
    for racer in ("plain, blocks compiled", "plain, whole model compiled"):
        assert steps[racer]["losses"]["agree"]
        for name in (racer, "scalewright"):
            assert steps[racer][name]["tokens_per_s"] > 0
            assert steps[racer][name]["attention_launched"] == ["flash (CPU)"]
    outcomes = [value["outcome"] for value in (parts["tests-first"] | parts["tests-rest"]).values()]
    assert outcomes.count("passed") >= 30
    assert set(outcomes) <= {"passed", "skipped"}  # those for a GPU alone
    assert parts["attention"]["torch's choice, length 64, head dim 16"]["forward_backward_tflops"] > 0
    assert parts["mask-trap"]["math"]["finite"]
    for name in ("none, again", "selective", "budget 0.5", "full", "offload", "offload, full"):
        assert parts["activations"][name]["equal_bits"], name
    assert parts["losses"]["chunks of 32, plain torch"]["loss_differs_by"] < 1e-2  # bf16 logits
    assert parts["profile"]["plan"]["layout"]["devices"] == 1


@pytest.mark.slow
def test_loop(script):
    data, text = script("loop.py", "--quick")
    check_facts(data, text)
    assert len(data["cases"]) == len(data["measured"]) == 4
    assert len(data["calibration"]["scored_on"]) == 2
    assert all(row["median_error"] >= 0 for row in data["summary"].values())


def test_gpu_check_says_when_there_is_no_gpu(script):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(AssertionError, match="error: no CUDA device"):
        script("gpu_check.py")


def test_the_page_of_gpu_results_is_made_of_them():
    import gpu_page

    assert gpu_page.DOCS.read_text(encoding="utf-8") == gpu_page.text(gpu_page.results())
    readme = (gpu_page.DOCS.parents[1] / "README.md").read_text(encoding="utf-8")
    assert ("No speed on a GPU has been measured" in readme) == (not gpu_page.results())


@pytest.mark.slow
def test_long_context(script):
    data, text = script("long_context.py", "--seq-len", 256, "--kinds", "ring")
    check_facts(data, text)
    one, ring = data["answers"]["one process"], data["answers"]["cp 4, ring"]
    assert [row["loss"] for row in ring["rows"]] == pytest.approx([row["loss"] for row in one["rows"]], rel=1e-5)
    assert ring["kept"] / one["kept"] == pytest.approx(0.25, rel=0.02)
    assert ring["peak"] < one["peak"]


@pytest.mark.slow
def test_packed_rows(script):
    data, text = script("packed_rows.py", "--seq-len", 384, "--rounds", 1)
    check_facts(data, text)
    assert len(data["answers"]) == 7
    for answer in data["answers"].values():
        assert answer["tiles"]["kept"] < answer["masks"]["kept"]
        assert answer["away"] < 1e-5


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_flat_memory(script):
    data, text = script("flat_memory.py", "--quick", timeout=600)
    check_facts(data, text)
    assert len(data["kinds"]) == 2
    for answer in data["kinds"].values():
        assert answer["steps"] > 50
        assert answer["most"] > data["floor_mib"] > answer["counted"] > 0
        assert answer["most"] == pytest.approx(data["floor_mib"] + answer["counted"] + answer["beside"])
        assert {len(held) for _, held in answer["samples"]} <= {1, 2}
