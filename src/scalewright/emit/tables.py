"""Tables of other trainers' names, as YAML beside the code that reads them.

keys.yaml                keys that say nothing about a run, by trainer
other_training.yaml      what isn't training of all weights of a decoder
bridge/nemo.yaml         NeMo's keys as Megatron-LM's arguments
torchtitan/flavors.yaml  models that torchtitan has by name
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from scalewright.spec.base import parse_yaml


def text_of(name: str) -> str:
    """A text in this folder."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


@cache
def table(name: str) -> Any:
    """The table of a file in this folder."""
    return parse_yaml(text_of(name), name)


def keys_of(text: str) -> frozenset[str]:
    """The words of a text as dotted keys; one with a colon is the section of those after it."""
    keys, section = set(), ""
    for word in text.split():
        if word.endswith(":"):
            section = f"{word[:-1]}."
        else:
            keys.add(section + word)
    return frozenset(keys)


def keys_for(trainer: str) -> frozenset[str]:
    """A text of keys.yaml: keys of a trainer that say nothing about a run."""
    return keys_of(table("keys.yaml")[trainer])
