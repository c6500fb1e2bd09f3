"""What a run takes over from the model that it begins from (`init`), beside weights of the same shape.

rows of embedding and head   old words │ new words: the mean of the old ones
OUT/huggingface/             the folder's other files, for the export
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from scalewright.checkpoint.read import text_files
from scalewright.checkpoint.store.bring import bring
from scalewright.data.dataset import Dataset
from scalewright.data.tokenizer import read_tokenizer, start_of_document, tokenizer_file, vocabulary_size
from scalewright.model.companions import copy_origin
from scalewright.parallel.weights import Source
from scalewright.spec.common.formatting import counted
from scalewright.spec.ends import ORIGIN, json_object
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import Box
from scalewright.spec.run import RunSpec
from scalewright.spec.tensors import TensorSpec

_OF_WORDS = ("embed.weight", "head.weight", "head.bias")  # a row a word


def init_vocabulary(run: RunSpec, model: ModelSpec) -> tuple[int, int]:
    """The rows of `init`'s embedding, and how many of them are words of its tokenizer (the rest is padding). Raises
    UserError when the run's model has fewer rows."""
    folders, size = text_files(bring(run.init, later=True))[0], model.vocab_size
    keys = json_object(folders[0] / "config.json") or json_object(folders[0] / "manifest.json").get("model", {})
    rows = int(keys.get("text_config", keys).get("vocab_size", size))
    if size < rows:
        problem = f"the model's vocab_size {size} is less than the {rows} that init has"
        raise UserError(problem, f"init: {run.init}", f"use vocab_size {rows}: words can be added, not taken out")
    tokenizer = next((path for path in folders if (path / "tokenizer.json").is_file()), None)
    return rows, min(rows, vocabulary_size(read_tokenizer(tokenizer)) if tokenizer else rows)


def grown(source: Source, run: RunSpec, data_words: int | None) -> Source:
    """The source of `init` with rows for the run's vocabulary; those of new words are the mean of the old. `data_words`
    of the data's tokenizer: more than init's has may lie in the padding of its rows."""
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


def start_of_texts(model: Path) -> tuple[int, ...] | None:
    """The ids that begin the texts of a model; None where neither its run nor a tokenizer has them."""
    folders, trained = text_files(model)
    words = next((folder for folder in folders if (folder / "tokenizer.json").is_file()), None)
    if trained.bos is not None or words is None:
        return trained.bos
    return start_of_document(read_tokenizer(words), tokenizer_file(words))


def odd_beginning(dataset: Dataset, expected: tuple[int, ...] | None, model: str) -> list[str]:
    """A line, where documents don't begin as a model's texts do."""
    if expected is None or (dataset.ends.bos or ()) == expected:
        return []
    starts = "are not known to begin with any" if dataset.ends.bos is None else f"begin with {list(dataset.ends.bos)}"
    return [f"texts of {model} begin with the tokens {list(expected)}; the documents {starts} (prepare --bos)"]


def begin_remarks(run: RunSpec, dataset: Dataset) -> list[str]:
    """Lines on new words, on documents that begin otherwise than the texts that the model has read, and on a warm-up
    that the run doesn't outlast."""
    path, warmup, steps = dataset.tokenizer_path, run.lr_schedule.warmup_steps, run.train.steps
    remarks = []
    if steps and warmup >= steps:
        remarks.append(f"warmup_steps {warmup:,}, and {counted(steps, 'steps')} in all: the rate never reaches its lr")
    if run.init == "random":
        if path is None or dataset.ends.bos is not None:
            return remarks
        return remarks + odd_beginning(dataset, start_of_document(read_tokenizer(path), path), "the tokenizer")
    remarks += odd_beginning(dataset, start_of_texts(bring(run.init, later=True)), f"init: {run.init}")
    if isinstance(run.model, ModelSpec):
        (rows, words), size = init_vocabulary(run, run.model), run.model.vocab_size
        if size > rows or (path is not None and (dataset.vocab_size or 0) > words):
            known = f"{words:,} words in {rows:,} rows" if words < rows else f"{rows:,}"
            remarks.append(f"vocabulary {known} -> {size:,}: new rows of embedding and head are the old ones' mean")
    return remarks


def keep_origin(run: RunSpec) -> None:
    """Copies the files beside init's weights into the run's folder; raises OSError."""
    if run.init != "random":
        for folder in text_files(bring(run.init, later=True))[0]:
            if (folder / "config.json").is_file():
                copy_origin(folder, run.folder / ORIGIN)
