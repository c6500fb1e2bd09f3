"""Categories and savings of a job whose every allocation is written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.memory.job import LAYER, MIB, Job

from scalewright.diagnose.diagnose import diagnose

MODEL_BYTES = 4 * LAYER + 6 * MIB  # layers of 16, 17, 18 and 19 MiB


def answer(job: Job, folder: Path, **settings: Any) -> dict[str, Any]:
    return diagnose([job.run().write(folder / "snapshot.pickle", **settings)])


def saved(result: dict[str, Any], change: str) -> int:
    return next(row["saves_bytes"] for row in result["memory"]["savings"] if row["change"] == change)


def test_the_peak_by_category_is_what_was_allocated(tmp_path: Path) -> None:
    job = Job()
    result = answer(job, tmp_path)
    memory = result["memory"]
    assert memory["peak_bytes"] == job.peak
    assert memory["by_category"] == {
        "parameters": MODEL_BYTES, "gradients": 0, "optimizer": 2 * MODEL_BYTES, "activations": 4 * 64 * MIB,
        "communication": 0, "loss": 3 * 256 * MIB, "temporary": 0, "other": 0,
    }  # fmt: skip
    assert sum(memory["by_category"].values()) == memory["peak_bytes"]
    assert max(memory["curve"]["allocated_bytes"]) == job.peak
    [verdict] = result["verdicts"]
    assert verdict["evidence"][0].startswith(
        "the peak of 1.21 GiB comes in the logits and the loss: logits and loss 0.75"
    )
    assert verdict["fix"].startswith("compute the loss in 8 chunks")


def test_a_change_saves_what_the_job_without_it_needs_less(tmp_path: Path) -> None:
    job = Job()
    result = answer(job, tmp_path)
    small = Job(logits=128 * MIB, activations=32 * MIB).run()
    assert saved(result, "micro-batch") == job.peak - small.peak
    small = Job(activations=64 * MIB // 4).run()
    assert saved(result, "recomputation") == job.peak - small.peak


def test_gradients_that_outlive_the_backward_and_what_works_within_it(tmp_path: Path) -> None:
    memory = answer(Job(logits=2 * MIB, steps=1), tmp_path)["memory"]
    assert memory["peak_phase"] == "backward"
    assert memory["by_category"]["gradients"] > 0
    assert memory["by_category"]["temporary"] == 64 * MIB
    assert memory["by_category"]["optimizer"] == 0


def test_the_optimizers_first_step_with_its_temporaries(tmp_path: Path) -> None:
    memory = answer(Job(logits=2 * MIB, activations=MIB, steps=1), tmp_path)["memory"]
    assert memory["peak_phase"] == "optimizer"
    assert memory["by_category"]["optimizer"] == 2 * MODEL_BYTES
    assert memory["by_category"]["gradients"] == MODEL_BYTES
    assert memory["by_category"]["temporary"] == 8 * MIB


def test_buffers_of_collectives_are_told_from_activations(tmp_path: Path) -> None:
    memory = answer(Job(gathers=32 * MIB), tmp_path)["memory"]
    assert memory["by_category"]["communication"] == 4 * 32 * MIB
    assert memory["by_category"]["activations"] == 4 * 64 * MIB


def test_states_from_before_the_recording_are_told_by_their_sizes(tmp_path: Path) -> None:
    job = Job(steps=3).run()
    first = next(number for number, event in enumerate(job.events) if number and event["frames"]
                 and event["frames"][0]["name"] == "_init_group" and event["size"] == 8 * MIB)  # fmt: skip
    del job.events[: first + 12]  # the first step, with the states' allocation
    states = {address for address, (size, _) in job.live.items() if size >= LAYER}
    job.live = {address: (size, [] if address in states else frames) for address, (size, frames) in job.live.items()}
    memory = diagnose([job.write(tmp_path / "late.pickle")])["memory"]
    assert memory["by_category"]["parameters"] == MODEL_BYTES
    assert memory["by_category"]["optimizer"] == 2 * MODEL_BYTES


def test_out_of_memory_in_the_loss_is_told_in_words(tmp_path: Path) -> None:
    result = answer(Job(out_of_memory=900 * MIB), tmp_path)
    verdict = result["verdicts"][0]
    assert verdict["cause"] == "out of memory"
    assert verdict["evidence"][0].startswith("0.88 GiB were asked for")
    assert "in the logits and the loss" in verdict["evidence"][1]
    assert "chunks of the sequence" in verdict["fix"]
    assert "expandable_segments" not in verdict["fix"]


@pytest.mark.parametrize(("expandable", "named"), [(False, True), (True, False)])
def test_out_of_memory_by_fragmentation(tmp_path: Path, expandable: bool, named: bool) -> None:
    result = answer(Job(out_of_memory=64 * MIB), tmp_path, pieces=10, expandable_segments=expandable)
    verdict = result["verdicts"][0]
    assert ("expandable_segments:True" in verdict["fix"]) == named
    assert ("the memory is fragmented" in verdict["evidence"][-1]) == named


def test_without_stacks_nothing_is_judged(tmp_path: Path) -> None:
    job = Job().run()
    for event in job.events:
        event["frames"] = []
    job.live = {address: (size, []) for address, (size, _) in job.live.items()}
    result = diagnose([job.write(tmp_path / "bare.pickle")])
    assert result["memory"]["by_category"] is None
    assert result["memory"]["savings"] == []
    assert "record with stacks='python'" in result["warnings"][-1]


@pytest.mark.parametrize("frames", [7, "text", [1, None], [{"name": None, "filename": 3}], [{}], {"a": 1}])
def test_strange_frames_are_nobodys(tmp_path: Path, frames: Any) -> None:
    job = Job().run()
    for event in job.events:
        event["frames"] = frames
    assert diagnose([job.write(tmp_path / "odd.pickle")])["memory"]["peak_bytes"] == job.peak


def test_blocks_larger_than_what_was_asked_for_keep_the_sum(tmp_path: Path) -> None:
    job = Job().run()
    job.live = {address: (size + 512, frames) for address, (size, frames) in job.live.items()}
    memory = diagnose([job.write(tmp_path / "rounded.pickle")])["memory"]
    assert sum(memory["by_category"].values()) == memory["peak_bytes"]


@pytest.mark.parametrize("layers", [2, 4, 7])
@pytest.mark.parametrize("begins", ["after the backward", "before zero_grad"])
def test_gradients_from_before_the_recording_are_named(tmp_path: Path, layers: int, begins: str) -> None:
    job = Job(layers=layers, steps=1).run()
    works = [at for at, event in enumerate(job.events) if event["size"] == 8 * MIB]  # the optimizer's
    job.events = job.events[works[0] if begins == "after the backward" else works[-1] + 1 :]
    sizes = diagnose([job.write(tmp_path / "late.pickle")])["memory"]["by_category"]
    model = sum(LAYER + MIB * layer for layer in range(layers))
    assert (sizes["parameters"], sizes["gradients"], sizes["optimizer"], sizes["other"]) == (model, model, 2 * model, 0)


@pytest.mark.parametrize("first", range(1, 5))
def test_gradients_that_are_freed_after_the_next_forward(tmp_path: Path, first: int) -> None:
    job = Job(steps=3, logits=2 * MIB).run()
    works = [at for at, event in enumerate(job.events) if event["size"] == 8 * MIB]
    frees, rest = job.events[works[0] + 3 : works[0] + 11], job.events[works[0] + 11 :]
    job.events = rest[:first] + frees + rest[first:]
    sizes = diagnose([job.write(tmp_path / "late.pickle")])["memory"]["by_category"]
    assert (sizes["parameters"], sizes["optimizer"], sizes["other"]) == (MODEL_BYTES, 2 * MODEL_BYTES, 0)
