"""A run as dotted keys: an emitter takes those that its trainer has words for, and the rest is reported.

    settings.take("layout.tp")   4, and the key counts as expressed
    settings.choose("layout.schedule", {"1f1b": "1f1b", "gpipe": "afab"}, why, instead="1f1b")
                                 "1f1b"; "zbv" is changed to it, with the reason; dropped without `instead`
    settings.left()              every key that no one took and whose value is not neutral

A neutral value does nothing (tp 1, no z-loss), so that a trainer without a word for it runs the same. Keys
whose value is always something (lr, betas, seq_len) are never neutral: an emitter can't forget them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from typing import Any, Protocol, TypeVar

from scalewright.emit.emitted import Changed, Dropped, Emitted
from scalewright.emit.tables import keys_of
from scalewright.spec.common.formatting import below, flat
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec, RopeScaling
from scalewright.spec.presets import load_model_spec
from scalewright.spec.run import DataSpec, OptimizerSpec, PythonRef, RunSpec

W = TypeVar("W")
# Of this machine, this project's files or its supervision: they say nothing about what is trained.
OUTSIDE = (
    "version", "cluster", "device", "resume", "environment", "allow_changes", "launch", "track", "out_dir", "name",
    "model.version", "model.name", "model.family", "train.timeouts", "train.guard", "train.compile", "checkpoint.keep",
    "checkpoint.keep_every", "checkpoint.keep_best", "checkpoint.memory_every", "checkpoint.memory_buddy",
    "checkpoint.async", "checkpoint.at_end", "profile.memory",
    "train.valid_batches", "engine",
)  # fmt: skip
ALWAYS = keys_of("""
    data.train data.seq_len train.steps train.tokens seed
    model: vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
        context mlp_type norm_type norm_eps tie_word_embeddings positions rope.theta
    layout: micro_batch global_batch devices precision
    optimizer: name lr betas eps weight_decay clip_norm
    lr_schedule: kind warmup_steps min_ratio
""")
WHOLE = ("layout.recompute", "cluster", "launch.env")  # values, though they have keys
SIZES = ("tp", "pp", "cp", "ep", "etp", "dp_replicate")  # without one of these it would be another layout


class Writable(Protocol):
    """A rule, as rules.py has them."""

    def write(self, s: Settings) -> dict[str, object]:
        """Their keys."""


class Settings:
    """A run with its model; every key is taken at least once, or is left."""

    def __init__(self, run: RunSpec, model: ModelSpec) -> None:
        self.run, self.model, self.layout = run, model, run.layout
        self.version: str | None = None  # of the trainer, where the user asks for one
        self.lacks: Mapping[str, str] = {}  # axes of the layout -> why the trainer lacks them
        self.network: ModelSpec | None = None  # that is written, where the target's files aren't read back
        self.stated = frozenset(flat(run.model_dump(mode="json", by_alias=True, exclude_unset=True), WHOLE))
        self.values = flat({**run.dump(), "model": model.dump()}, WHOLE)
        self.changed: list[Changed] = []
        self.assumed: list[str] = []
        self._taken: set[str] = set()
        self._dropped: dict[str, str] = {}

    def take(self, key: str) -> Any:
        """A key's value, which the emitter expresses."""
        self._taken.add(key)
        return self.values[key]

    def take_each(self, section: str, *names: str) -> None:
        """Several keys of a section, whose values are expressed in another form."""
        self._taken |= {f"{section}.{name}" for name in names}

    def take_all(self, prefix: str) -> dict[str, object]:
        """All keys below a prefix, `model.` for instance, by their rest."""
        keys = [key for key in self.values if key.startswith(prefix)]
        return {key.removeprefix(prefix): self.take(key) for key in keys}

    def write(self, rules: Iterable[Writable]) -> dict[str, object]:
        """Their keys of all rules."""
        return {key: value for rule in rules for key, value in rule.write(self).items()}

    def has(self, key: str) -> bool:
        """Whether a key is there: `model.moe.top_k` is only in a mixture."""
        return key in self.values

    def states(self, key: str) -> bool:
        """Whether the run file sets a key, in place of its default."""
        return key in self.stated

    def nearly(self, key: str, written: str, why: str) -> None:
        """Takes a key and records that it is expressed only nearly."""
        self.changed.append(Changed(key, self.take(key), written, why or self._lack(key)))

    def drop(self, key: str, why: str) -> None:
        """Records why a key can't be expressed; a neutral value is no loss."""
        self._dropped[key] = why

    def assume(self, text: str) -> None:
        """Records a value that was filled in."""
        self.assumed.append(text)

    def choose(
        self, key: str, words: Mapping[Any, W], why: str = "", instead: Any = None, written: str = ""
    ) -> W | None:
        """Their word for a key's value; None where it is dropped, as they have no such value.

        `why`: of an axis, that of its capabilities where it is left out.
        """
        value = self.values[key]
        if not isinstance(value, dict) and value in words:
            return words[self.take(key)]
        if instead is None:
            self.drop(key, why)
            return None
        self.nearly(key, written or str(instead), why)
        return words[instead]

    def choose_precision(self, words: Mapping[Any, W], why: str) -> W | None:
        """Their word for the precision; of one that they lack, fp32's for tf32 and bf16's for others."""
        instead = "fp32" if self.precision() == "tf32" else "bf16"
        word = words[instead]
        return self.choose("layout.precision", words, why, instead, word if isinstance(word, str) else "")

    def take_head_dim(self, title: str) -> None:
        """The heads' width, which they derive from the hidden size."""
        model = self.model
        if model.mla is None and model.dim_per_head * model.num_attention_heads == model.hidden_size:
            self.take("model.head_dim")
        else:
            self.drop("model.head_dim", f"{title}'s heads are hidden_size / num_attention_heads wide")

    def take_expert_split(self, title: str) -> None:
        """`etp` of a trainer that splits experts over the ranks of tp."""
        tp, etp = self.layout.tp, self.layout.etp
        if self.model.moe is None or etp == tp:
            self.take("layout.etp")
        elif etp == 1:
            self.nearly("layout.etp", str(tp), f"{title} splits each expert over the ranks of tp")
        else:
            self.drop("layout.etp", f"{title} splits each expert over the ranks of tp")

    def is_all_sparse(self) -> bool:
        """Whether every layer has experts, so that no dense MLP has a width."""
        layers = range(self.model.num_hidden_layers)
        return self.model.moe is not None and all(self.model.parts(i)[1] == "experts" for i in layers)

    def take_dense_width(self) -> int:
        """The width of dense MLPs; experts' where there are no dense ones."""
        width: int = self.take("model.intermediate_size")
        return self.model.moe.moe_intermediate_size if self.model.moe and self.is_all_sparse() else width

    def take_scaling(self, title: str, kind: str) -> dict[str, object] | None:
        """The scaling of rotary frequencies, where it is of the kind that they have."""
        scaling = self.model.rope.scaling
        if scaling is None:
            return None
        keys = self.take_all("model.rope.scaling.")
        if scaling.kind == kind:
            return keys
        why = f"{title} has no scaling of rotary frequencies of this kind"
        self.changed.append(Changed("model.rope.scaling", scaling.kind, "none", why))
        return None

    def take_sources(self) -> tuple[list[str], list[float]]:
        """Paths of the training data, and their weights."""
        train = self.take("data.train")
        return [source["path"] for source in train], [source["weight"] for source in train]

    @property
    def optimizer(self) -> OptimizerSpec:
        """The optimizer's spec; users' own were refused before."""
        assert isinstance(self.run.optimizer, OptimizerSpec)
        return self.run.optimizer

    def take_steps(self) -> int:
        """Optimizer steps of the run."""
        steps, tokens = self.take("train.steps"), self.take("train.tokens")
        if steps is not None:
            return int(steps)
        return ceil(tokens / (self.layout.global_batch * self.run.seq_len)) if tokens else 1000

    def save_steps(self) -> int | None:
        """Steps between saves; all of them where only the end is saved; None without saves."""
        every: int = self.take("checkpoint.every")
        return every or (self.take_steps() if self.run.checkpoint.at_end else None)

    def precision(self) -> str:
        """The layout's; where it is `auto`, which asks the device, bf16 is assumed."""
        if self.layout.precision == "auto":
            self.assume("precision bf16, since `auto` asks the device")
        return str(self.layout.precision)

    def emitted(self, title: str, trainer: str, version: str, files: dict[str, str], command: str) -> Emitted:
        """The files, with what they express otherwise or not at all; raises UserError as `dropped` does."""
        dropped = self.dropped(title)
        return Emitted(trainer, version, files, command, dropped, tuple(self.changed), tuple(self.assumed))

    def dropped(self, title: str) -> tuple[Dropped, ...]:
        """Everything that wasn't taken. Raises UserError where a size of the layout is among it."""
        lost = [
            Dropped(key, value, self._dropped.get(key) or self._lack(key) or f"{title} has no word for it")
            for key, value in self.left()
        ]
        for key, value, why in lost:
            if key.removeprefix("layout.") in SIZES:
                how = f"plan with `--framework {title.lower()}`, or set {key}=1"
                raise UserError(f"{title} can't run {key.removeprefix('layout.')} {value}: {why}", key, how)
        return tuple(lost)

    def _lack(self, key: str) -> str:
        return self.lacks.get(key.removeprefix("layout."), "")

    def left(self) -> Iterator[tuple[str, Any]]:
        """Keys that no one took, with values that do something."""
        for key, value in self.values.items():
            if key in self._taken or below(key, OUTSIDE) or below(key, self.irrelevant()):
                continue
            if value is not None if key in ALWAYS else key not in NEUTRAL or NEUTRAL[key] != value:
                yield key, value

    def irrelevant(self) -> Iterator[str]:
        """Keys that don't matter beside others: a schedule without a pipeline."""
        layout, model = self.layout, self.model
        if layout.pp == 1:
            yield from ("layout.schedule", "layout.stage_layers")
        if layout.cp == 1:
            yield "layout.cp_kind"
        if model.moe is None:
            yield from ("layout.ep", "layout.etp", "train.balance")
        if layout.zero_stage == 0:
            yield "layout.dp_replicate"  # whole replicas, however they are grouped
        if model.positions != "rope":
            yield "model.rope"
        if not model.mtp_layers:
            yield "train.mtp_weight"
        if isinstance(self.run.optimizer, OptimizerSpec):
            states = self.run.optimizer.record.states
            if "exp_avg_sq" not in states:
                yield "optimizer.eps"
            if "exp_avg" not in states:
                yield "optimizer.betas"
        if self.run.lr_schedule.kind == "constant":
            yield from ("lr_schedule.min_ratio", "lr_schedule.decay_steps")
        for key in ("data.document_mask", "data.packing", "loss", "init"):
            if key not in self.stated:
                yield key


def settings_of(run: RunSpec) -> Settings:
    """The settings of a run that other trainers can run; raises UserError for a user's own parts."""
    for key in ("model", "data", "optimizer", "loss"):
        value = getattr(run, key)
        if isinstance(value, PythonRef):
            how = f"give a {key} of the run file's own kinds, or train it here"
            raise UserError(f"{key} is your own {value.python}, which no other trainer has", key, how)
    assert isinstance(run.data, DataSpec)
    assert not isinstance(run.model, PythonRef)
    return Settings(run, load_model_spec(run.model))


def _defaults() -> dict[str, object]:
    """Values of keys that nobody set: those of a plain run and of a plain mixture."""
    size = {"vocab_size": 1, "hidden_size": 1, "intermediate_size": 1, "num_hidden_layers": 1, "num_attention_heads": 1}
    moe = {"num_experts": 1, "top_k": 1, "moe_intermediate_size": 1}
    plain = ModelSpec.parse({**size, "head_dim": 2}).dump()
    mixture = ModelSpec.parse({**size, "head_dim": 2, "moe": moe}).dump()
    run = RunSpec.parse({"model": "plain", "data": "plain"}).dump()
    layout = Layout().dump() | {"zero_stage": 0, "sp": False}
    keys = flat({**run, "layout": layout, "model": plain}, WHOLE) | flat({"model": mixture})
    scaling = RopeScaling(kind="linear").dump()
    keys |= {f"model.rope.scaling.{key}": value for key, value in scaling.items() if key != "kind"}
    return keys | {"model.moe": None}


NEUTRAL: Mapping[str, Any] = _defaults()
