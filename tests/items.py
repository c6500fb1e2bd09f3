"""A user's own data in the shapes that people have it, as run files name them (`python: items:numbered`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

WORDS = 66


def document(number: int) -> list[int]:
    """Document `number`: 3 to 30 tokens, from 1 to 66."""
    random = np.random.default_rng(number)
    start, length = int(random.integers(1, WORDS)), int(random.integers(3, 30))
    return [(start + 5 * place) % WORDS + 1 for place in range(length)]


def numbered(count: int = 90) -> Any:
    """A torch Dataset of tensors."""
    import torch

    class Numbered(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> Any:
            return torch.tensor(document(index))

    return Numbered()


def flowing(count: int = 90) -> Any:
    """A torch IterableDataset."""
    import torch

    class Flowing(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return (torch.tensor(document(number)) for number in range(count))

    return Flowing()


def yielded(split: str, count: int = 90) -> Iterator[list[int]]:
    """A generator."""
    for number in range(count):
        yield document(number + (1000 if split != "train" else 0))


def by_index(index: int, seed: int) -> np.ndarray:
    """A function of an index."""
    return np.array(document(index), dtype=np.uint16)


def huggingface(folder: str, streaming: bool = False, shuffled: bool = False) -> Any:
    """JSON lines through Hugging Face's datasets, on disk or streamed."""
    import datasets

    file = Path(folder) / "lines.jsonl"
    if not file.exists():
        file.write_text("".join(json.dumps({"input_ids": document(n)}) + "\n" for n in range(90)))
    datasets.disable_progress_bars()
    if streaming:
        found = datasets.load_dataset("json", data_files=str(file), split="train", streaming=True)
        return found.shuffle(seed=1, buffer_size=20) if shuffled else found
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)})


def listed(items: list[Any]) -> list[Any]:
    """The items that a run file lists."""
    return [tuple(np.array(part) for part in item["pair"]) if "pair" in item else item for item in items]


def text(split: str) -> list[dict[str, str]]:
    """Text under a key of its own."""
    return [{"body": f"To be, or not to be: {number}"} for number in range(20)]
