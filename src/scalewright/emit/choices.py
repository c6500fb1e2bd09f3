"""What emitters of smaller trainers share: a choice between their words, sizes that they derive, their files.

choose(s, "layout.schedule", {"1f1b": "1f1b", "gpipe": "afab"}, why, instead="1f1b")
    "1f1b"        taken
    "zbv"         changed to 1f1b, with the reason; dropped where there is no `instead`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import yaml

from scalewright.emit.emitted import Changed, Reading
from scalewright.emit.megatron.training import steps_of
from scalewright.emit.nodes import nodes_of
from scalewright.emit.settings import Settings
from scalewright.emit.theirs import Theirs
from scalewright.spec.base import TextDumper
from scalewright.spec.errors import UserError
from scalewright.spec.run import OptimizerSpec
from scalewright.spec.text.dotted import flat
from scalewright.spec.text.words import commented

W = TypeVar("W")
Words = dict[str, Any]


def choose(
    s: Settings, key: str, words: Mapping[Any, W], why: str, instead: Any = None, written: str = ""
) -> W | None:
    """Their word for a key's value; None where it is dropped, as they have no such value."""
    value = s.values[key]
    if not isinstance(value, dict) and value in words:
        return words[s.take(key)]
    if instead is None:
        s.drop(key, why)
        return None
    s.nearly(key, written or str(instead), why)
    return words[instead]


def choose_precision(s: Settings, words: Mapping[Any, W], why: str) -> W | None:
    """Their word for the precision; of one that they lack, fp32's for tf32 and bf16's for others."""
    instead = "fp32" if s.precision() == "tf32" else "bf16"
    word = words[instead]
    return choose(s, "layout.precision", words, why, instead, word if isinstance(word, str) else "")


def take_head_dim(s: Settings, title: str) -> None:
    """The heads' width, which they derive from the hidden size."""
    if s.model.mla is None and s.model.dim_per_head * s.model.num_attention_heads == s.model.hidden_size:
        s.take("model.head_dim")
    else:
        s.drop("model.head_dim", f"{title}'s heads are hidden_size / num_attention_heads wide")


def take_expert_split(s: Settings, title: str) -> None:
    """`etp` of a trainer that splits experts over the ranks of tp."""
    tp, etp = s.layout.tp, s.layout.etp
    if s.model.moe is None or etp == tp:
        s.take("layout.etp")
    elif etp == 1:
        s.nearly("layout.etp", str(tp), f"{title} splits each expert over the ranks of tp")
    else:
        s.drop("layout.etp", f"{title} splits each expert over the ranks of tp")


def is_all_sparse(s: Settings) -> bool:
    """Whether every layer has experts, so that no dense MLP has a width."""
    layers = range(s.model.num_hidden_layers)
    return s.model.moe is not None and all(s.model.parts(layer)[1] == "experts" for layer in layers)


def take_dense_width(s: Settings) -> int:
    """The width of dense MLPs; experts' where there are no dense ones."""
    width: int = s.take("model.intermediate_size")
    return s.model.moe.moe_intermediate_size if s.model.moe and is_all_sparse(s) else width


def take_scaling(s: Settings, title: str, kind: str) -> Words | None:
    """The scaling of rotary frequencies, where it is of the kind that they have."""
    scaling = s.model.rope.scaling
    if scaling is None:
        return None
    keys = s.take_all("model.rope.scaling.")
    if scaling.kind == kind:
        return keys
    why = f"{title} has no scaling of rotary frequencies of this kind"
    s.changed.append(Changed("model.rope.scaling", scaling.kind, "none", why))
    return None


def shortest(pattern: list[Any]) -> list[Any]:
    """The part that a pattern of all layers repeats."""
    size = len(pattern)
    return next((pattern[:n] for n in range(1, size) if pattern == (pattern[:n] * size)[:size]), pattern)


def take_sources(s: Settings) -> tuple[list[str], list[float]]:
    """Paths of the training data, and their weights."""
    train = s.take("data.train")
    return [source["path"] for source in train], [source["weight"] for source in train]


def put_sources(paths: Any, weights: Iterable[Any] | None = None) -> list[Words]:
    """Sources of a run from their paths: one, several, or with weights."""
    if isinstance(paths, Mapping):
        return [{"path": str(path), "weight": float(weight)} for path, weight in paths.items()]
    listed = [str(path) for path in (paths if isinstance(paths, list) else [paths])]
    shares = list(weights or ())
    if len(shares) != len(listed) or len(listed) == 1:
        return [{"path": path} for path in listed]
    return [{"path": path, "weight": float(share)} for path, share in zip(listed, shares, strict=True)]


def take_adam(s: Settings) -> tuple[float, float]:
    """The betas; of an optimizer without them, too, so that a change to AdamW has its numbers."""
    first, second = s.take("optimizer.betas")
    return first, second


def optimizer_of(s: Settings) -> OptimizerSpec:
    """The optimizer's spec; users' own were refused before."""
    assert isinstance(s.run.optimizer, OptimizerSpec)
    return s.run.optimizer


def save_steps(s: Settings) -> int | None:
    """Steps between saves; all of them where only the end is saved; None without saves."""
    every: int = s.take("checkpoint.every")
    return every or (steps_of(s) if s.run.checkpoint.at_end else None)


def torchrun(devices: int, program: str) -> str:
    """The launch line of every node."""
    nodes, each = nodes_of(devices)
    if nodes == 1:
        return f"torchrun --nproc-per-node {each} {program}"
    several = f"--nnodes {nodes} --nproc-per-node {each} --node-rank $NODE_RANK"
    return f"torchrun {several} --master-addr $MASTER_ADDR --master-port 29500 {program}"


def yaml_text(comments: Iterable[str], data: Words) -> str:
    """A configuration with comments at its top."""
    text = yaml.dump(data, None, TextDumper, sort_keys=False, width=100, allow_unicode=True)
    return commented(*comments) + text


def given(document: Mapping[str, Any]) -> Words:
    """Dotted keys that are set: null is as if the key weren't there."""
    return {key: value for key, value in flat(document).items() if value is not None}


def read_keys(
    trainer: str, document: Mapping[str, Any], aside: frozenset[str], where: str,
    *readers: Callable[[Theirs, Words], None],
) -> Reading:  # fmt: skip
    """A document's keys as a run, by these readers in turn; raises UserError for a value of another kind."""
    theirs = Theirs(given(document), aside)
    run: Words = {}
    try:
        for reader in readers:
            reader(theirs, run)
    except UserError:
        raise
    except (TypeError, ValueError, ArithmeticError) as error:
        how = "give the file as the trainer takes it"
        raise UserError(f"a value isn't of the kind that {trainer} has there: {error}", where, how) from None
    return theirs.reading(trainer, run)


def inverse(words: Mapping[Any, Any]) -> dict[Any, Any]:
    """Ours by theirs; of several that they write alike, the first."""
    return {value: key for key, value in reversed(list(words.items()))}
