"""Kinds of kernels: thousands of names, generated from true ones (kernel_names.yaml)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from scalewright.diagnose.traces.kinds import KINDS, OTHER, kind_of

TYPES = ("float", "c10::BFloat16", "c10::Half", "__nv_bfloat16", "__half", "cutlass::bfloat16_t", "c10::Float8_e4m3fn")
NUMBERS = ("1", "4", "8", "64", "256")
CHOICE = re.compile(r"\{(T|N|[\w:]*(?:,[\w:.]*)+)\}")
NAMES: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("kernel_names.yaml").read_text("utf-8"))


def variants(text: str) -> Iterator[str]:
    """The text with each choice in braces; {T} and {N} are the same wherever they stand."""
    words = list(dict.fromkeys(CHOICE.findall(text)))
    options = [{"T": TYPES, "N": NUMBERS}.get(word, tuple(word.split(","))) for word in words]
    for chosen in itertools.product(*options):
        picked = dict(zip(words, chosen, strict=True))
        yield CHOICE.sub(lambda match, picked=picked: picked[match[1]], text)  # type: ignore[misc]


@pytest.mark.parametrize("kind", NAMES)
def test_a_kernel_s_kind_follows_from_its_name(kind: str) -> None:
    wrong = {name: kind_of(name) for text in NAMES[kind] for name in variants(text) if kind_of(name) != kind}
    assert not wrong


def test_the_names_are_thousands_and_of_every_kind() -> None:
    assert set(NAMES) == {*KINDS, OTHER}
    assert sum(1 for texts in NAMES.values() for text in texts for _ in variants(text)) > 3000


def test_a_long_name_takes_no_long() -> None:
    assert kind_of("void f<" + "at::native::(anonymous namespace)::lambda<" * 3000 + ">") == OTHER
    assert kind_of("_Z" + "I" * 100_000) == OTHER
