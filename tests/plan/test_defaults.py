"""A micro-batch that a question leaves out is the largest that fits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scalewright.api import plan, predict, read


def asked(model: str = "qwen3-0.6b", cluster: str = "dgx-h100", **keys: Any) -> dict[str, Any]:
    return dict(predict(model, cluster, {"devices": 8, **keys}, seq_len=2048, explain=False))


def micro_batch(answer: dict[str, Any]) -> tuple[int, bool]:
    """The size, and whether the answer says that it is the largest."""
    size = answer["layout"]["micro_batch"]
    return size, f"micro_batch {size} (the largest that fits)" in answer["assumed"]


def test_the_next_size_doesnt_fit() -> None:
    size, told = micro_batch(answer := asked())
    assert (told, answer["risk"]) == (True, "fits")
    assert size > 1
    assert asked(micro_batch=2 * size)["risk"] != "fits"


@pytest.mark.parametrize(("batch", "sizes"), [(24, {1, 3}), (16, {1, 2}), (8, {1})])
def test_it_divides_the_batch(batch: int, sizes: set[int]) -> None:
    assert micro_batch(asked(global_batch=batch)) == (max(sizes), True)


def test_a_pipeline_keeps_a_micro_batch_for_each_stage() -> None:
    layout = asked(pp=4, global_batch=64)["layout"]
    assert 64 // (layout["dp"] * layout["micro_batch"]) >= 4


def test_where_nothing_fits_it_is_one() -> None:
    answer = asked("llama-3.1-70b", "rtx-4090", zero_stage=0)
    assert (micro_batch(answer), answer["risk"]) == ((1, False), "no")
    (line,) = [text for text in answer["assumed"] if text.startswith("micro_batch")]
    assert re.fullmatch(r"micro_batch 1 \(none fits: it may need [\d.]+ GiB of the [\d.]+ there are\)", line)


def test_one_that_is_given_stays() -> None:
    answer = asked(micro_batch=1)
    assert answer["layout"]["micro_batch"] == 1
    assert not any(text.startswith("micro_batch") for text in answer["assumed"])


SCRIPT = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 "
SCRIPT += "--seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --bf16 --use-distributed-optimizer "


def of_script(flags: str, folder: Path, **keys: Any) -> dict[str, Any]:
    (folder / "run.sh").write_text(SCRIPT + flags)
    return dict(predict(read(str(folder / "run.sh")), "dgx-h100", explain=False, **keys))


def test_a_script_without_one_is_asked_the_same(tmp_path: Path) -> None:
    size, told = micro_batch(answer := of_script("--global-batch-size 128", tmp_path))
    assert told
    assert (size > 1, answer["layout"]["global_batch"]) == (True, 128)
    assert of_script("", tmp_path, global_batch=128)["layout"] == answer["layout"]
    alone = of_script("", tmp_path)["layout"]  # and no batch either
    assert alone["global_batch"] == 8 * alone["micro_batch"] > 8
    given = of_script("--global-batch-size 128 --micro-batch-size 1", tmp_path)
    assert micro_batch(given) == (1, False)
    assert micro_batch(of_script("--global-batch-size 128", tmp_path, micro_batch=2)) == (2, False)


def test_a_plan_of_that_script_compares_with_the_same(tmp_path: Path) -> None:
    size, _ = micro_batch(of_script("--global-batch-size 128", tmp_path))
    planned = plan(read(str(tmp_path / "run.sh")), "dgx-h100", explain=False)
    assert planned["yours"]["layout"]["micro_batch"] == size


def test_a_run_file_runs_with_one(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        "model: qwen3-0.6b\ndata: {train: data, seq_len: 2048}\nlayout: {devices: 8, global_batch: 64}\n"
    )
    answer = dict(predict(read(str(tmp_path / "run.yaml")), "dgx-h100", explain=False))
    assert micro_batch(answer) == (1, False)
    assert "micro_batch 1" in answer["assumed"]
