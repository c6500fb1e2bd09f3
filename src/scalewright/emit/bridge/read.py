"""Megatron-Bridge's fields as a run: a YAML of overrides, a recipe in Python, a NeMo 2 test's arguments.

model: {tensor_model_parallel_size: 8}              overrides of a recipe that isn't in the file
ConfigContainer(model=GPTModelProvider(...), ...)   a recipe: the calls that it returns, read and not run
MODEL_ARGS: {trainer.strategy.tensor_model_...: 8}  a functional test of NeMo 2

References within a YAML file are OmegaConf's; what can't be followed stays as it is written:

${model.hidden_size}  ${.hidden_size}  ${..seq_length}        from the root, beside this key, one above
${multiply:4, ${.hidden_size}}  ${sum:${.num_layers},-1}      products and sums of whole numbers
${training.model.x}                                           the file is `training` in a larger tree
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from scalewright.emit.bridge.fields import FIELDS, arguments_of, precision_of
from scalewright.emit.command_lines import ranks_beside
from scalewright.emit.emitted import Reading
from scalewright.emit.foreign import ForeignKeys
from scalewright.emit.megatron.files import read_arguments
from scalewright.emit.megatron.keys import ASIDE
from scalewright.emit.other_training import other_training
from scalewright.emit.python_code import Call, Module, Unknown
from scalewright.emit.tables import keys_for
from scalewright.spec.common.formatting import flat
from scalewright.spec.errors import UserError
from scalewright.spec.question import Unread

TEST = {  # sections of a NeMo 2 test; a field goes to the section here that has one of its name
    "trainer.strategy": ("model", "ddp"), "model.config": ("model",), "data": ("train", "dataset", "model"),
    "optim.config": ("optimizer",), "optim.lr_scheduler": ("scheduler",),
}  # fmt: skip
QUIET = keys_for("megatron-bridge")
SAVED = ("checkpoint.", "logger.", "log.", "profiling.", "validation.", "ft.", "rerun_state_machine.")
INNERMOST = re.compile(r"\$\{([^${}]{1,300})\}")
FUNCTIONS: dict[str, Callable[[Iterable[int]], int]] = {"multiply": prod, "sum": sum, "add": sum}
MOST = 50  # references followed for one value


def read_overrides(document: Mapping[str, Any]) -> Reading:
    """A YAML of overrides; what its recipe sets besides isn't in the file."""
    fields = flat(document)
    note = "a recipe's own settings aren't in its overrides: what is silent here has Megatron-LM's defaults"
    return _read(fields, _world(fields), [note])


def read_recipe(text: str, where: str) -> Reading:
    """A Python recipe, its last function that returns a ConfigContainer; raises UserError."""
    recipes = Module(text, where).returning(lambda call: call.name.endswith("ConfigContainer"))
    if not recipes:
        how = "give a recipe that returns ConfigContainer(...) itself, or its overrides as YAML"
        raise UserError("no function of this file returns a ConfigContainer", where, how)
    name, (call, statements) = list(recipes.items())[-1]  # which may start from the others
    notes = [f"function {name} of {len(recipes)}: {', '.join(recipes)}"] if len(recipes) > 1 else []
    reading = _read(_known(call), ranks_beside(text, "torchrun --nnodes"), notes, recipe=True)
    computed = {key: value[0] for key, value in call.flat().items() if isinstance(value, Unknown)}
    skipped = [Unread(key, text, "computed: neither a literal nor a call") for key, text in computed.items()]
    skipped += [Unread(f"{name}()", line, "neither a literal nor a call") for line in statements]
    return replace(reading, unread=(*reading.unread, *skipped))


def read_test(document: Mapping[str, Any]) -> Reading:
    """A functional test's `MODEL_ARGS` in the words of NeMo 2."""
    given = {str(key): value for key, value in document["MODEL_ARGS"].items()}
    fields: dict[str, object] = {}
    for key, value in given.items():
        section, _, name = key.rpartition(".")
        places = [f"{place}.{name}" for place in TEST.get(section, ())]
        known = [place for place in places if place in FIELDS.values() or place.startswith("model.add_bias")]
        fields[(known or places or [key])[0]] = value
    world = _world(fields)
    steps, plugins = fields.pop("trainer.max_steps", None), fields.pop("trainer.plugins.precision", None)
    if steps is not None:
        fields["train.train_iters"] = steps
    if plugins is not None:
        fields["mixed_precision"] = plugins
    return _read(fields, world, ["what the recipe sets besides isn't in the file: Megatron-LM's defaults stand for it"])


def _read(fields: dict[str, object], world: int | None, notes: list[str], recipe: bool = False) -> Reading:
    fields = _merged(fields)
    arguments, names = arguments_of(fields)
    if arguments.get("multi-latent-attention"):
        arguments.setdefault("rotary-scaling-factor", 40.0)  # MLATransformerConfig's
    if recipe:
        arguments.setdefault("bias-gelu-fusion", False)  # TransformerConfig's
    foreign = ForeignKeys(arguments, ASIDE | QUIET)
    foreign.assumed += notes
    if not recipe:
        _fill(foreign)
    run = read_arguments(foreign, world)
    if "model" in run and "context" not in run["model"] and "data" in run:
        run["model"]["context"] = run["data"].get("seq_len", 2048)
    unread = [Unread(names.get(key, key), value, why) for key, value, why in foreign.unread()]
    unread = [item for item in unread if not item.key.startswith(SAVED)]
    other = other_training(fields)
    return Reading("megatron-bridge", run, tuple(unread), tuple(foreign.assumed), foreign.guessed, other)


def _merged(fields: Mapping[str, Any]) -> dict[str, object]:
    """Older names and forms of the same fields."""
    fields = dict(fields)
    split = fields.pop("dataset.blend_per_split", None)
    for section in ("dataset", "train"):
        blend = fields.pop(f"{section}.blend", None) if split is None else None
        if blend is not None:
            fields["dataset.data_path"] = _paths(blend)
    if split:
        fields["train-data-path"] = _paths(split[0])
        fields["valid-data-path"] = _paths(split[1]) or None
    if (distributed := fields.pop("optimizer.use_distributed_optimizer", None)) is not None:
        fields.setdefault("ddp.use_distributed_optimizer", distributed)
    if "model.seq_length" not in fields and "dataset.seq_length" in fields:
        fields["model.seq_length"] = fields["dataset.seq_length"]
    if "dataset.sequence_length" in fields:
        fields["model.seq_length"] = fields.pop("dataset.sequence_length")
    size = fields.pop("model.vocab_size", None)
    if size is not None and fields.get("tokenizer.vocab_size") is None:
        fields["padded-vocab-size"] = size
    return fields


def _paths(blend: Any) -> list[Any]:
    """Their pair of paths and weights, or one of them, as Megatron's list."""
    paths, weights = blend if isinstance(blend, (list, tuple)) and len(blend) == 2 else (blend, None)
    paths = list(paths) if isinstance(paths, (list, tuple)) else [paths]
    if weights:
        return [item for pair in zip(weights, paths, strict=False) for item in pair]
    return [path for path in paths if path is not None]


def _fill(foreign: ForeignKeys) -> None:
    """What their recipes set and overrides rarely repeat."""
    values = foreign.values
    if not any(key in values for key in ("bf16", "fp16", "fp8-format", "fp4-format")):
        values |= precision_of("bf16_mixed")
        foreign.assume("precision bf16, as their recipes have it")
    if "use-distributed-optimizer" not in values:
        values["use-distributed-optimizer"] = True
        foreign.assume("zero_stage 1: their recipes use the distributed optimizer")


def _known(call: Call) -> dict[str, object]:
    """A recipe's fields; sections that it calls without arguments have none."""
    known = {key: value for key, value in call.flat().items() if not isinstance(value, Unknown)}
    return {key: value for key, value in known.items() if not (isinstance(value, Call) and not value.values)}


def _world(fields: dict[str, object]) -> int | None:
    sizes = [fields.pop("trainer.devices", None), fields.pop("trainer.num_nodes", 1)]
    numbers = [size for size in sizes if isinstance(size, int) and size > 0]
    return prod(numbers) if len(numbers) == 2 else None


def resolve(document: Mapping[str, Any]) -> dict[str, object]:
    """The document with its references replaced."""
    return {key: _resolved(value, (str(key),), document) for key, value in document.items()}


def _resolved(value: Any, path: tuple[str, ...], root: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _resolved(item, (*path, str(key)), root) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, path, root) for item in value]
    return _text(value, path, root) if isinstance(value, str) and "${" in value else value


def _text(text: str, path: Sequence[str], root: Mapping[str, Any]) -> Any:
    kept: list[str] = []  # references without a value, in their places as \0
    for _ in range(MOST):
        match = INNERMOST.search(text)
        if match is None:
            break
        value = _referred(match[1].strip(), path, root)
        if value is None:
            kept.append(match[0])
            value = f"\0{len(kept) - 1}\0"
        if match[0] == text and not isinstance(value, str):
            return value
        text = f"{text[: match.start()]}{value}{text[match.end() :]}"[:10_000]
    for index in reversed(range(len(kept))):
        text = text.replace(f"\0{index}\0", kept[index])
    return text


def _referred(inside: str, path: Sequence[str], root: Mapping[str, Any]) -> Any:
    """What `${inside}` is; None where it isn't a plain value of this file."""
    name, colon, arguments = inside.partition(":")
    if colon:
        numbers = [item.strip() for item in arguments.split(",")]
        if name not in FUNCTIONS or not all(re.fullmatch(r"-?\d{1,12}", item) for item in numbers):
            return None
        return FUNCTIONS[name](int(item) for item in numbers)
    dots = len(inside) - len(inside.lstrip("."))
    parts = inside.lstrip(".").split(".")
    starts = [(*path[:-dots], *parts)] if dots else [tuple(parts), tuple(parts[1:])]
    for start in starts:
        node: Any = root
        for part in start:
            node = node.get(part) if isinstance(node, Mapping) else None
        if isinstance(node, (str, int, float)):
            return node
    return None
