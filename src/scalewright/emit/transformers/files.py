"""The Trainer's files: those that are written, and what is recognised as its own."""

from __future__ import annotations

from typing import Any

from scalewright.emit.transformers.read import read
from scalewright.emit.transformers.write import write

__all__ = ["read", "recognises", "write"]
MARKS = {
    "per_device_train_batch_size",
    "learning_rate",
    "max_steps",
    "num_train_epochs",
    "gradient_accumulation_steps",
}
OTHERS = {
    "base_model",
    "finetuning_type",
    "cutoff_len",
    "template",
    "stage",
    "dataset_dir",
}  # Axolotl, LLaMA-Factory


def recognises(document: Any, text: str) -> bool:
    """TrainingArguments, alone or with those of a script that takes them."""
    if not isinstance(document, dict) or OTHERS & document.keys():
        return False
    return "output_dir" in document and bool(MARKS & document.keys())
