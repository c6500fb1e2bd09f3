"""litgpt's parser: jsonargparse on the signature of `litgpt pretrain`, and what its start checks."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.parsers.words import words
from scalewright.emit.emitted import Emitted
from scalewright.emit.settings import Settings
from scalewright.spec.tensors import count

TITLE = "litgpt"
NEEDS = """torch, and: pip install --no-deps litgpt==0.5.13 jsonargparse==4.41.0 lightning
lightning-utilities torchmetrics typeshed-client docstring-parser importlib-resources"""
CHECKS = (
    "names and types of all keys", "its arguments' own conditions (validate_args)", "heads by groups",
    "(ours:) devices, micro-batches of a step, and steps by tokens",
    "(ours:) that its model, made without memory, has as many parameters as ours",
)  # fmt: skip
UNCHECKED = ("whether data and tokenizer exist", "its sharding", "memory")
SAME_SIZE = (
    "model.rope.scaling", "model.rope.local_theta", "model.rope_every_not",
    "model.norm_eps", "model.moe.normalize_top_k", "model.attention_softcap", "model.query_scale",
    "model.moe.scaling",
)  # fmt: skip


def prepare() -> str:
    """Imports its `pretrain`."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import litgpt.pretrain  # noqa: F401
    from jsonargparse import set_docstring_parse_options

    set_docstring_parse_options(attribute_docstrings=True)  # as its command line does
    return metadata.version("litgpt")


def refusal(folder: Path, emitted: Emitted, settings: Settings) -> str:
    """The parser's words on an emitted file."""
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return _unlike(_parsed(folder / "pretrain.yaml"), emitted, settings)
    except Exception as error:
        return words(error)


def _parsed(file: Path) -> Any:
    """Its arguments; a parser serves one file, since it keeps nested values of the one before."""
    from jsonargparse import ArgumentParser
    from litgpt.pretrain import setup, validate_args

    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_function_arguments(setup, as_positional=False, fail_untyped=False, sub_configs=True)
    arguments = parser.instantiate_classes(parser.parse_args(["--config", str(file)]))
    validate_args(arguments.train, arguments.eval, None, False)
    return arguments


def _unlike(arguments: Any, emitted: Emitted, settings: Settings) -> str:
    """How its run differs from ours; "" where it doesn't."""
    import torch
    from litgpt.model import GPT

    train, layout = arguments.train, settings.layout
    ranks = arguments.devices * arguments.num_nodes
    steps = train.gradient_accumulation_iters(arguments.devices, arguments.num_nodes)
    tokens = ranks * steps * train.micro_batch_size * train.max_seq_length
    theirs = (ranks, steps, train.max_tokens // tokens)
    ours = (layout.devices, layout.accumulation, settings.run.train.steps or theirs[2])
    if theirs != ours:
        return f"its devices, micro-batches and steps are {theirs}, ours {ours}"
    if {item.key for item in (*emitted.dropped, *emitted.changed)} & _sizes(emitted):
        return ""
    with torch.device("meta"):
        model = GPT(arguments.model_config)
    if train.tie_embeddings:
        model.transformer.wte.weight = model.lm_head.weight
    size, expected = sum(tensor.numel() for tensor in set(model.parameters())), count(settings.model).total
    return "" if size == expected else f"its model has {size:,} parameters, ours {expected:,}"


def _sizes(emitted: Emitted) -> set[str]:
    """Keys of the model that were lost and change its size."""
    lost = {item.key for item in (*emitted.dropped, *emitted.changed) if item.key.startswith("model.")}
    return lost - set(SAME_SIZE)
