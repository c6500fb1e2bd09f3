"""What is exported is what transformers computes: a family with one thing changed is refused, or its logits
are the same there (in training mode: a config's own dropout would show).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from model.tiny_families import CASES, tokens
from model.variants import VARIANTS, spec_of, varied
from scalewright.model.decoder import Decoder
from scalewright.model.huggingface import write_huggingface
from scalewright.model.load import load_model
from scalewright.spec.errors import UserError
from scalewright.spec.huggingface import read_huggingface, to_huggingface, why_not_running
from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import tensors

# Relative to the largest logit: fp32, three layers whose matrices double what they take, scores times 3.
TOLERANCE = 3e-5
UNDEFINED = {("neox-partial", "dynamic")}  # theirs divides by the rotary dimensions but two, which are two
TURNS_WHOLE_HEADS = ("llama-gqa", "mistral-window", "qwen2", "qwen3", "olmo2", "starcoder2", "gemma",
                     "gemma2", "gemma3", "mixtral", "olmoe", "gpt-oss", "llama4")  # fmt: skip


def numbers(spec: ModelSpec) -> dict[str, Tensor]:
    """Random tensors in which every part shows."""
    generator, made = torch.Generator().manual_seed(0), {}
    for t in tensors(spec):
        noise = torch.randn(t.shape, generator=generator)
        gain = (2.0 if "layers" in t.name else 0.5) * t.shape[-1] ** -0.5
        middle = 0.0 if t.name.endswith("bias") else 0.5
        made[t.name] = middle + 0.3 * noise if len(t.shape) == 1 else gain * noise
    return made


def difference(spec: ModelSpec, folder: Path) -> float:
    """Of logits, relative to the largest; raises UserError where the export is refused."""
    rmtree(folder, ignore_errors=True)
    values = numbers(spec)
    write_huggingface(folder, spec, values.__getitem__)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    ours, ids = Decoder(spec), tokens(length=40)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(values[name])
        expected = theirs.train()(ids).logits
        return float((ours(ids) - expected).abs().max() / expected.abs().max())


def wrong(case: str, variants: Iterable[str], folder: Path) -> tuple[list[str], int]:
    """Variants whose logits differ, and how many are equal."""
    logging.disable(logging.WARNING)
    differing, equal, plain = [], 0, spec_of(case)
    for name in variants:
        spec = varied(plain, name)
        if spec is None or why_not_running(spec) or (case, name) in UNDEFINED:
            continue
        try:
            distance = difference(spec, folder)
        except UserError:
            continue
        equal += distance < TOLERANCE
        differing += [] if distance < TOLERANCE else [f"{name}: {distance:.1e}"]
    logging.disable(logging.NOTSET)
    return differing, equal


@pytest.mark.parametrize("case", CASES)
def test_some_variants_are_equal_or_refused(case: str, tmp_path: Path) -> None:
    names = list(VARIANTS)
    sample = ["plain", *names[list(CASES).index(case) % 24 :: 24]]
    differing, equal = wrong(case, sample, tmp_path / "hf")
    assert not differing
    assert equal > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_all_variants_are_equal_or_refused(case: str, tmp_path: Path) -> None:
    differing, equal = wrong(case, VARIANTS, tmp_path / "hf")
    assert not differing
    assert equal > 5


@pytest.mark.parametrize("scaling", [None, {"kind": "linear", "factor": 2.0}])
@pytest.mark.parametrize("case", TURNS_WHOLE_HEADS)
def test_partial_rotary_is_refused_where_transformers_turns_whole_heads(case: str, scaling: Any) -> None:
    spec = spec_of(case)
    half = spec.replace(rope={**spec.rope.dump(), "fraction": 0.5, "scaling": scaling})
    with pytest.raises(UserError, match=r"can't express rope\.fraction 0\.5.*which transformers computes"):
        to_huggingface(half)
    written = to_huggingface(spec)
    written.pop("rope_scaling", None)  # transformers takes it before rope_parameters
    for keys in (
        {"partial_rotary_factor": 0.5},
        {"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    ):
        with pytest.raises(UserError, match=r"partial_rotary_factor 0\.5.*turns whole heads"):
            read_huggingface({**written, **keys})


def test_an_older_folder_with_partial_rotary_is_refused_to_load(tmp_path: Path) -> None:
    from model.tiny_families import save

    save("llama-gqa", tmp_path)
    config = (tmp_path / "config.json").read_text().replace("{", '{"partial_rotary_factor": 0.25,', 1)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UserError, match=r"partial_rotary_factor 0\.25"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("case", "variant"),
    [
        ("gpt2", "plain"), ("gemma2", "no windows"), ("gemma3", "no windows"), ("gemma3", "scores capped"),
        ("gemma3", "yarn, not rounded"), ("llama4", "yarn"), ("llama4", "yarn, attention"),
        ("deepseek-v2-yarn", "half of the dimensions turn"), ("deepseek-v3", "linear, half"),
    ],
)  # fmt: skip
def test_what_its_class_does_otherwise(case: str, variant: str, tmp_path: Path) -> None:
    """GPT-2's class has dropout; Gemma 3's no cap, and it rounds; Llama 4's norm undoes YaRN's stretch."""
    assert wrong(case, [variant], tmp_path / "hf")[0] == []


@pytest.mark.parametrize(
    ("case", "variant", "families"),
    [
        ("llama-gqa", "windows", "mistral or smollm3"), ("llama-gqa", "norms of heads", "qwen3"),
        ("mixtral", "norms of heads", "qwen3_moe"), ("qwen3", "experts", "qwen3_moe"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_family_that_has_it(case: str, variant: str, families: str) -> None:
    spec = varied(spec_of(case), variant)
    assert spec is not None
    with pytest.raises(UserError, match=f"use the family that has it: {families}$"):
        to_huggingface(spec)
