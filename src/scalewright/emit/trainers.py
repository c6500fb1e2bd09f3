"""The trainers that runs are written for and read from, by name; a module is imported when it is asked for.

module            write(settings) -> Emitted
                  recognises(document, text) -> bool,  read(document, text, where) -> Reading
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import NamedTuple


class Trainer(NamedTuple):
    """A trainer: its name in its own spelling, and its module here."""

    title: str
    module: str
    reads: bool = True  # whether its configurations are read, too


TRAINERS: dict[str, Trainer] = {
    "megatron": Trainer("Megatron-LM", "megatron.files"),
    "megatron-bridge": Trainer("Megatron-Bridge", "bridge.files"),
    "torchtitan": Trainer("torchtitan", "torchtitan.files"),
    "deepspeed": Trainer("DeepSpeed", "deepspeed.read"),
    "accelerate": Trainer("Accelerate", "accelerate"),
    "transformers": Trainer("Transformers", "transformers.arguments"),
    "nanotron": Trainer("nanotron", "nanotron.run"),
    "litgpt": Trainer("litgpt", "litgpt"),
    "gpt-neox": Trainer("GPT-NeoX", "gpt_neox"),
    "colossalai": Trainer("Colossal-AI", "colossalai", reads=False),
    "axolotl": Trainer("Axolotl", "axolotl"),
    "llama-factory": Trainer("LLaMA-Factory", "llama_factory"),
    "maxtext": Trainer("MaxText", "maxtext.run"),
    "levanter": Trainer("Levanter", "levanter"),
}
ALIASES = {"megatron-lm": "megatron", "hf": "transformers", "trainer": "transformers", "neox": "gpt-neox"}


def module_of(name: str) -> ModuleType:
    """A trainer's module."""
    return import_module(f"scalewright.emit.{TRAINERS[name].module}")
