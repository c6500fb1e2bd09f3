"""What a run takes over from the model that it begins from (`init`), beside weights of the same shape.

rows of embedding and head   old words │ new words: the mean of the old ones
OUT/huggingface/             the folder's other files, for the export
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from scalewright.checkpoint.format import read_state
from scalewright.checkpoint.read import find_checkpoint
from scalewright.data.dataset import Dataset
from scalewright.data.tokenizer import read_tokenizer, start_of_document, vocabulary_size
from scalewright.model.companions import copy_origin
from scalewright.parallel.weights import Source
from scalewright.spec.ends import ORIGIN, Ends, json_object, origins
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import Box
from scalewright.spec.run import RunSpec
from scalewright.spec.tensors import TensorSpec

_OF_WORDS = ("embed.weight", "head.weight", "head.bias")  # a row a word


def init_vocabulary(run: RunSpec, model: ModelSpec) -> tuple[int, int]:
    """The rows of `init`'s embedding, and how many of them are words of its tokenizer (the rest is padding).

    Raises UserError when the run's model has fewer rows.
    """
    folder, size = Path(run.init), model.vocab_size
    if (folder / "config.json").is_file():
        keys, folders = json_object(folder / "config.json"), [folder]
        keys = keys if "vocab_size" in keys else keys.get("text_config", {})
    else:
        step = find_checkpoint(folder)
        keys, folders = json_object(step / "manifest.json").get("model", {}), [step, step.parent.parent]
    rows = int(keys.get("vocab_size", size))
    if size < rows:
        raise UserError(
            f"the model's vocab_size {size} is less than the {rows} that init has",
            f"init: {run.init}",
            f"use vocab_size {rows}: words can be added, not taken out",
        )
    tokenizer = next((path for path in folders if (path / "tokenizer.json").is_file()), None)
    return rows, min(rows, vocabulary_size(read_tokenizer(tokenizer)) if tokenizer else rows)


def grown(source: Source, run: RunSpec, data_words: int | None) -> Source:
    """The source of `init` with rows for the run's vocabulary; those of new words are the mean of the old.

    `data_words` of the data's tokenizer: more than init's has may lie in the padding of its rows.
    """
    if not isinstance(run.model, ModelSpec):
        return source
    size, (rows, words) = run.model.vocab_size, init_vocabulary(run, run.model)
    first = words if (data_words or 0) > words else rows

    def read(tensor: TensorSpec, box: Box) -> Tensor:
        if tensor.name not in _OF_WORDS or first >= size:
            return source(tensor, box)
        old = replace(tensor, shape=(rows, *tensor.shape[1:]))
        (start, *rest), (count, *lengths) = box
        kept = max(0, min(start + count, first) - start)
        parts = [source(old, ((start, *rest), (kept, *lengths)))] if kept else []
        if kept < count:
            mean = source(old, ((0, *rest), (words, *lengths))).mean(0, dtype=torch.float64).float()
            parts.append(mean.expand(count - kept, *mean.shape))
        return torch.cat(parts)

    return read


def begin_remarks(run: RunSpec, dataset: Dataset) -> list[str]:
    """Lines on new words, and on documents that begin otherwise than the texts that the model has read."""
    remarks, path, expected = list[str](), dataset.tokenizer_path, None
    begins, began = dataset.ends.bos, run.init != "random"
    if began and isinstance(run.model, ModelSpec):
        (rows, words), size = init_vocabulary(run, run.model), run.model.vocab_size
        if size > rows or (path is not None and (dataset.vocab_size or 0) > words):
            known = f"{words:,} words in {rows:,} rows" if words < rows else f"{rows:,}"
            remarks.append(
                f"vocabulary {known} -> {size:,}: new rows of embedding and head are the old ones' mean"
            )
    if began and not (Path(run.init) / "config.json").is_file():
        path, expected = None, Ends.parse(read_state(find_checkpoint(Path(run.init)))).bos
    elif began:
        path = Path(run.init) / "tokenizer.json"
    if path is not None and path.is_file():
        expected = start_of_document(read_tokenizer(path), path)
    whose = f"init: {run.init}" if began else "the tokenizer"
    if begins is None and expected:
        line = "the data don't record what begins a document, and are taken as they are"
        remarks.append(f"{line}; {whose} begins texts with {list(expected)}")
    elif began and expected is not None and begins is not None and begins != expected:
        remarks.append(
            f"documents begin with {list(begins)}, texts of {whose} with {list(expected)} (prepare --bos)"
        )
    return remarks


def keep_origin(run: RunSpec) -> None:
    """Copies the files beside init's weights into the run's folder; raises OSError."""
    folder = Path(run.init)
    if run.init == "random" or not folder.exists():
        return
    if not (folder / "config.json").is_file():
        step = find_checkpoint(folder)
        folder = next(iter(origins(read_state(step), step, step.parent.parent)), folder)
    if (folder / "config.json").is_file():
        copy_origin(folder, run.folder / ORIGIN)
