"""DeepSpeed's JSON: options that are laid over it, and those that are refused for a key of the run file."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.spec.deepspeed import DECIDED, NOT_HERE, TOP_LEVEL, check_options, merge
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec

RUN = {"model": "llama-3.2-1b", "data": "text"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gradient_cliping": 1.0}, "no key 'gradient_cliping'.*use gradient_clipping"),
        ({"gradient_clipping": 1.0}, "gradient_clipping is what the run file's optimizer.clip_norm decides"),
        ({"zero_optimization": {"stage": 3}}, "zero_optimization.stage .*leave it out, and set layout.zero"),
        ({"zero_optimization": {"offload_param": {"device": "nvme"}}}, "set layout.offload"),
        ({"fp16": {"enabled": True}}, "set layout.precision"),
        ({"bf16": {"enabled": True}}, "set layout.precision"),
        ({"optimizer": {"params": {"lr": 0.1}}}, "optimizer.params.lr .*set optimizer.lr"),
        ({"train_batch_size": 8}, "set layout.global_batch"),
        ({"scheduler": {"type": "WarmupLR"}}, "set lr_schedule"),
        ({"pipeline": {"stages": 2}}, "set layout.pp"),
        ({"zero_optimization": {"reduce_bucket_size": "auto"}}, "only Hugging Face's Trainer fills in"),
        ({"curriculum_learning": {"enabled": True}}, "samples and their order are the run's"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_options(options)
    with pytest.raises(UserError, match=words):
        RunSpec.parse({**RUN, "engine": "deepspeed", "engine_options": options})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"zero_optimization": {"reduce_bucket_size": 5e8, "overlap_comm": False}},
        {"zero_optimization": {"offload_optimizer": {"pin_memory": False, "ratio": 0.5}}},
        {"bf16": {"immediate_grad_update": True}, "wall_clock_breakdown": True},
        {"optimizer": {"params": {"fused": False}}, "comms_logger": {"enabled": True}},
    ],
)
def test_options_that_are_passed_on(options: dict[str, Any]) -> None:
    run = RunSpec.parse({**RUN, "engine": "deepspeed", "engine_options": options})
    assert run.engine_options == options


def test_options_without_the_engine() -> None:
    with pytest.raises(UserError, match=r"engine is scalewright \(engine_options\): set engine: deepspeed"):
        RunSpec.parse({**RUN, "engine_options": {"wall_clock_breakdown": True}})


def test_an_engine_that_is_none() -> None:
    with pytest.raises(UserError, match="engine"):
        RunSpec.parse({**RUN, "engine": "deepsped"})


def test_the_tables_are_of_keys_that_deepspeed_reads() -> None:
    for key in (*DECIDED, *NOT_HERE):
        assert key.split(".")[0] in TOP_LEVEL, key


def test_sections_are_merged_key_by_key() -> None:
    config = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert merge(config, {"a": {"c": {"f": 4}}, "e": {"g": 5}}) == {"a": {"b": 1, "c": {"d": 2, "f": 4}}, "e": {"g": 5}}
    assert config["e"] == 3
