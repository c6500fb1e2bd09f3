"""What a configuration asks the planner: sizes that follow from devices, and run files of ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalewright.emit.question import question
from scalewright.spec.errors import UserError
from scalewright.spec.question import Unread, unread_lines

RUN = """model: llama-3.2-1b
layout: {devices: 32, tp: 4, global_batch: 64}
data: {train: corpus, seq_len: 4096}
"""


def deepspeed(folder: Path, **keys: int) -> str:
    path = folder / "ds_config.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, **keys}))
    return str(path)


def test_a_micro_batch_that_is_not_given_follows_from_the_devices(tmp_path: Path) -> None:
    foreign = question(deepspeed(tmp_path, train_batch_size=256), "llama-3.1-8b")
    layout = foreign.resized(64, None).layout
    assert (layout.devices, layout.micro_batch, layout.global_batch) == (64, 4, 256)
    assert foreign.resized(None, None).layout.micro_batch == 256
    assert foreign.notes(["devices"]) == ()
    assert [line.split()[0] for line in foreign.notes([])] == ["devices", "micro_batch"]


def test_a_global_batch_that_is_not_given_follows_from_the_devices(tmp_path: Path) -> None:
    foreign = question(deepspeed(tmp_path, train_micro_batch_size_per_gpu=2), "llama-3.1-8b")
    assert foreign.resized(64, None).layout.global_batch == 128
    assert foreign.resized(64, 256).layout.global_batch == 256


def test_a_batch_that_is_nowhere_is_assumed_and_named(tmp_path: Path) -> None:
    """`auto` in a DeepSpeed JSON; devices that are given don't settle it."""
    auto = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
    foreign = question(deepspeed(tmp_path, **auto), "llama-3.1-8b").resized(8, None)
    assert foreign.notes(["devices"]) == ("micro_batch 1, global_batch 8: the file has no batch",)
    assert foreign.notes(["devices", "micro_batch"]) == ("global_batch 8: the file has no batch",)
    assert foreign.notes(["devices", "micro_batch", "global_batch"]) == ()
    assert foreign.resized(8, None, 4).layout.global_batch == 32
    stated = question(deepspeed(tmp_path, train_micro_batch_size_per_gpu=2), "llama-3.1-8b")
    assert stated.resized(8, None, 4).layout.global_batch == 16  # the file's own batch


def test_reasons_that_many_keys_share_stand_once() -> None:
    auto = [Unread(f"key{number}", "auto", "the Trainer fills it in") for number in range(4)]
    other = Unread("no-such-flag", 3, "not a setting")
    assert unread_lines([auto[0], other, *auto[1:]]) == [
        "not read  key0 auto, key1 auto, key2 auto, key3 auto: the Trainer fills it in",
        "not read  no-such-flag 3: not a setting",
    ]
    assert len(unread_lines([*auto[:3], other])) == 4


def test_sizes_that_are_given_stay(tmp_path: Path) -> None:
    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    layout = question(deepspeed(tmp_path, **sizes), "llama-3.1-8b").resized(16, None).layout
    assert (layout.micro_batch, layout.global_batch) == (2, 64)


def test_a_run_file_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    ours = question(str(path))
    assert (ours.framework, ours.run.model, ours.seq_len, ours.layout.tp) == ("scalewright", "llama-3.2-1b", 4096, 4)
    path.write_text(RUN.replace("tp: 4", "tpp: 4"))
    with pytest.raises(UserError, match=r"did you mean 'layout\.tp'"):
        question(str(path))
    path.write_text(RUN.replace("llama-3.2-1b", "{python: mine:net}"))
    with pytest.raises(UserError, match="no operators to price"):
        question(str(path))


def test_files_that_are_not_there_or_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        question("no/such.sh")
    with pytest.raises(UserError, match="it can't be read"):
        question(str(tmp_path))
