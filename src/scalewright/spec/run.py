"""`run.yaml`: all settings of a run, strict at every level, so that a run can be rebuilt from its folder.

    file + key=value overrides --load_run--> RunSpec --resolve--> RunSpec with no nulls --> out_dir/run.yaml

`{python: package.module:name, ...arguments}` is accepted wherever a user's own code may replace a part.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from scalewright.spec.base import Spec, from_keys, parse_yaml, read_yaml
from scalewright.spec.common.urls import is_url, parse_url
from scalewright.spec.compress import Compress, read_compress
from scalewright.spec.deepspeed import check_options
from scalewright.spec.diloco import DilocoSpec
from scalewright.spec.elastic import ElasticSpec
from scalewright.spec.errors import Mistakes, UserError
from scalewright.spec.guard import GuardSpec
from scalewright.spec.launch import LaunchSpec
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import OPTIMIZERS, Optimizer, OptimizerName
from scalewright.spec.tracking import TrackSpec


class PythonRef(Spec):
    """A user's own part: `python: package.module:name`, and the arguments that it is called with."""

    model_config = ConfigDict(frozen=True, extra="allow")

    python: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")

    @property
    def arguments(self) -> dict[str, object]:
        """The keys beside `python`."""
        return dict(self.model_extra or {})


class Source(Spec):
    """One folder of token shards (or a token file), and its share of a mixture."""

    path: str
    weight: float = Field(1.0, gt=0)
    format: Literal["auto", "uint16", "uint32", "int32"] = "auto"  # set it for files without a header
    eod: int | None = Field(None, ge=0)  # the token that ends a document, where files don't mark the ends

    def bare(self) -> str | dict[str, object]:
        """The path alone where nothing else is set."""
        return self.path if self == Source(path=self.path) else self.written()


class DataSpec(Spec):
    """The sources of tokens, and how they become sequences."""

    train: tuple[Source, ...] = Field(min_length=1)
    valid: tuple[Source, ...] = ()
    seq_len: int = Field(1024, ge=2, le=1 << 30)
    packing: bool = True
    document_mask: bool = True

    @from_keys
    def _bare_paths(cls, data: Any) -> Any:
        for key in ("train", "valid"):
            if key in data:
                data[key] = _sources(data[key])
        return data

    @property
    def masked(self) -> bool:
        """Whether rows hold several documents whose tokens don't see each other."""
        return self.packing and self.document_mask

    def missing(self) -> list[str]:
        """The training sources that don't exist; a source may be a path without its suffix."""
        return [source.path for source in self.train if not there(Path(source.path))]


def _sources(value: Any) -> Any:
    items = [] if value is None else [value] if isinstance(value, (str, dict)) else value
    if not isinstance(items, (list, tuple)):
        return value
    return tuple({"path": item} if isinstance(item, str) else item for item in items)


MOST_RATE = 1e6  # of rates and weights of a loss: a factor above any use, and far below overflow
Weight = Annotated[float, Field(ge=0, le=MOST_RATE)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSpec(Spec):
    """An optimizer of the table in `spec/optimizers.py`, its numbers, and clipping."""

    name: OptimizerName = "adamw"
    lr: float = Field(3e-4, gt=0, le=MOST_RATE)
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    momentum: float | None = Field(None, ge=0, lt=1)  # null: 0 of sgd, 0.95 of muon
    eps: float = Field(1e-8, gt=0)
    weight_decay: Weight = 0.1
    clip_norm: float = Field(1.0, ge=0, le=1e19)  # 0: no clipping; the square of more isn't finite in fp32

    @property
    def kept_momentum(self) -> float:
        """The share of the last momentum in the next one."""
        return self.momentum if self.momentum is not None else 0.95 if self.name == "muon" else 0.0

    @property
    def record(self) -> Optimizer:
        """The optimizer's record: the states it keeps, the bytes its update moves."""
        return OPTIMIZERS["momentum" if self.name == "sgd" and self.momentum else self.name]


class ScheduleSpec(Spec):
    """The learning rate over the steps: warm-up, then one of four shapes down to `min_ratio` of it."""

    kind: Literal["constant", "linear", "cosine", "wsd"] = "cosine"
    warmup_steps: int = Field(0, ge=0)
    decay_steps: int | None = Field(None, ge=0)  # null: to the end (wsd: the last fifth)
    min_ratio: float = Field(0.1, ge=0, le=1)


class TimeoutsSpec(Spec):
    """Timeouts of the ranks' waits for each other: until the end of the first step, and after it."""

    start_s: float = Field(1800.0, ge=0.1, le=1e7)  # to the end of the first step; also saves and validation
    steady_s: float = Field(300.0, ge=0.1, le=1e7)  # every later step

    @model_validator(mode="after")
    def _order(self) -> TimeoutsSpec:
        if self.steady_s > self.start_s:
            problem = f"steady_s {self.steady_s:g} is longer than start_s {self.start_s:g}"
            how = f"the start takes longest: set steady_s to at most {self.start_s:g}"
            raise UserError(problem, "train.timeouts", how)
        return self


class BalanceSpec(Spec):
    """What keeps a mixture's experts busy alike (train/balance.py); zeros: nothing does."""

    loss: Weight = 0.0  # of each sequence
    z_loss: Weight = 0.0  # of the router's logits
    bias_rate: Weight = 1e-3  # of routers that have a correction bias
    capacity_factor: float | None = Field(None, gt=0)  # null: experts take all tokens (train/capacity.py)


class TrainSpec(Spec):
    """The length of training, validation, compilation, compressed gradients, timeouts and the guard."""

    steps: int | None = Field(None, ge=0)
    tokens: float | None = Field(None, gt=0, le=1e18)
    valid_every: int = Field(0, ge=0)
    valid_batches: int = Field(16, ge=1)
    z_loss: Weight = 0.0
    mtp_weight: Weight = 0.3  # of the loss of prediction modules; 0: trained without them
    balance: BalanceSpec = BalanceSpec()
    compile: bool | Literal["auto"] = "auto"  # auto: on CUDA
    compress: Compress = "none"  # gradients of whole replicas
    timeouts: TimeoutsSpec = TimeoutsSpec()
    guard: GuardSpec = GuardSpec()

    @from_keys
    def _one_length(cls, data: Any) -> Any:
        if data.get("steps") is not None and data.get("tokens") is not None:
            raise UserError("steps and tokens are both given", "train", "keep one of them")
        if data.get("steps") is None and data.get("tokens") is None:
            data["steps"] = 1000
        if "compress" in data:
            data["compress"] = read_compress(data["compress"])
        return data


class CheckpointSpec(Spec):
    """When to save, and which saves to keep: the newest, and beside them two kinds more."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    every: int = Field(0, ge=0)
    keep: int = Field(2, ge=1)
    keep_every: int = Field(0, ge=0)  # those of steps that are multiples of it, for ever
    keep_best: int = Field(0, ge=0)  # those with the lowest held-out loss
    async_: bool = Field(False, alias="async")
    memory_every: int = Field(0, ge=0)  # steps kept in a node's memory (checkpoint/memory/)
    memory_buddy: int | None = Field(None, ge=0)  # nodes further lies a copy; null: 1 where there are several; 0: none
    at_end: bool = True
    store: str | None = None  # a URL: saves are put there, too, behind the run (checkpoint/store/)
    store_every: int = Field(0, ge=0)  # saves at multiples of it, and the last; 0: all
    store_keep: int = Field(2, ge=1)

    @field_validator("store")
    @classmethod
    def _plain_url(cls, store: str | None) -> str | None:
        return None if store is None else str(parse_url(store, "checkpoint.store"))


class ProfileSpec(Spec):
    """The steps to trace, and whether a GPU's allocations are kept for when one fails."""

    steps: tuple[int, ...] = ()
    memory: bool = False

    @field_validator("steps")
    @classmethod
    def _from_one(cls, steps: tuple[int, ...]) -> tuple[int, ...]:
        if steps and min(steps) < 1:
            how = "steps are counted from 1: write 1 for the first one"
            raise UserError(f"there is no step {min(steps)}", "profile.steps", how)
        return steps


class RunSpec(Spec):
    """A whole run. `resolve` fills the nulls; `load_run` reads a file with overrides."""

    version: Literal[1] = 1
    name: str = Field("run", pattern=r"^\.*[\w\-][\w.\-]*$")  # neither `.` nor `..`: it names a folder
    out_dir: str | None = None
    seed: int = Field(0, ge=0)
    deterministic: bool = False
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    resume: str = "auto"
    model: PythonRef | ModelSpec | str
    init: str = "random"
    cluster: str | dict[str, Any] = "local"
    layout: Layout = Layout()
    elastic: ElasticSpec | None = None  # other worlds than layout.devices
    engine: Literal["scalewright", "deepspeed"] = "scalewright"
    engine_options: dict[str, Any] = Field(default_factory=dict)  # keys of DeepSpeed's JSON
    data: PythonRef | DataSpec
    loss: PythonRef | Literal["cross_entropy"] = "cross_entropy"
    optimizer: PythonRef | OptimizerSpec = OptimizerSpec()
    diloco: DilocoSpec | None = None  # islands along layout.dp_replicate
    lr_schedule: ScheduleSpec = ScheduleSpec()
    train: TrainSpec = TrainSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    track: TrackSpec = TrackSpec()
    profile: ProfileSpec = ProfileSpec()
    launch: LaunchSpec = LaunchSpec()  # where its processes start; no number depends on it
    allow_changes: tuple[Literal["data", "tokenizer", "seed", "model"], ...] = ()  # on a resume
    environment: dict[str, Any] | None = None  # written by `train`: versions, git state, machine of the run

    @from_keys
    def _pick_branches(cls, data: Any) -> Any:
        """Parses each union with `{python: ...}` as one branch, so that an error is about that branch."""
        branches: dict[str, type[Spec]] = {"model": ModelSpec, "data": DataSpec, "optimizer": OptimizerSpec}
        branches["loss"] = PythonRef
        if isinstance(data.get("data"), str):
            data["data"] = {"train": data["data"]}
        mistakes = Mistakes()
        for key, spec in branches.items():
            if isinstance(data.get(key), dict):
                kind = PythonRef if "python" in data[key] else spec
                data[key] = mistakes.of(partial(kind.parse, data[key], where=key))
        if mistakes.noted:  # what else is wrong is named beside it
            stand_ins = {"model": "tiny", "data": {"train": "data"}}
            sound = {key: stand_ins.get(key) if value is None else value for key, value in data.items()}
            mistakes.of(lambda: cls.parse({key: value for key, value in sound.items() if value is not None}))
        mistakes.stop()
        if isinstance(data.get("elastic"), bool):
            data["elastic"] = {} if data["elastic"] else None
        if isinstance(data.get("allow_changes"), str):
            data["allow_changes"] = (data["allow_changes"],)
        if data.get("out_dir") in (None, ""):
            data["out_dir"] = f"runs/{data.get('name', 'run')}"
        return data

    @model_validator(mode="after")
    def _check_engine(self) -> RunSpec:
        if self.engine_options and self.engine == "scalewright":
            problem = "engine_options are DeepSpeed's, and this run's engine is scalewright"
            raise UserError(problem, "engine_options", "set engine: deepspeed, or leave them out")
        check_options(self.engine_options)
        return self

    def written(self) -> dict[str, Any]:
        """The fewest keys, at every level, that parse to an equal run; sources without weights are paths."""
        parts = {key: getattr(self, key) for key in super().written()}
        keys = {key: value.written() if isinstance(value, Spec) else self.dump()[key] for key, value in parts.items()}
        if isinstance(self.data, DataSpec):
            sources = {key: [source.bare() for source in getattr(self.data, key)] for key in ("train", "valid")}
            lists = {key: bare[0] if len(bare) == 1 else bare for key, bare in sources.items() if bare}
            rest = {key: value for key, value in keys["data"].items() if key not in ("train", "valid", "seq_len")}
            keys["data"] = {**lists, "seq_len": self.data.seq_len, **rest}
        return keys

    @property
    def folder(self) -> Path:
        """`out_dir`, as a path."""
        return Path(self.out_dir or f"runs/{self.name}")

    @property
    def stated_seq_len(self) -> int | None:
        """Tokens per sequence that data, or the arguments of a user's own, set, else None; UserError for no number."""
        if isinstance(self.data, DataSpec):
            return self.data.seq_len
        if (length := self.data.arguments.get("seq_len")) is None:
            return None
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            raise UserError(f"seq_len is {length!r}", "data", "give a whole number of tokens, from 1 on")
        return length

    @property
    def seq_len(self) -> int:
        """Tokens per sequence; 1024 where the run file doesn't set them."""
        return self.stated_seq_len or 1024


def load_run(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> RunSpec:
    """The run that a file and `key=value` overrides describe; raises UserError.

    >>> load_run("run.yaml", ["layout.tp=2", "optimizer.lr=3e-4"])
    """
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise UserError("a run file holds keys and values", str(path), "see `scalewright train --help`")
    if "model" not in data and {"hidden_size", "num_hidden_layers"} <= set(data):
        raise UserError("this is a model, not a run", str(path), f"name it in a run file: `model: {path}`")
    _find_again(data, Path(path))
    for override in overrides:
        apply_override(data, override)
    return RunSpec.parse(data, where=str(path))


def _find_again(data: dict[str, Any], file: Path) -> None:
    """Of a run's own run.yaml in a folder that was moved, or that is read from elsewhere: the folder is where it lies,
    and what the file names relatively is looked for here, where the run was started, and beside the folder."""
    home, seen, here = file.absolute().parent, data.get("environment"), Path(str(data.get("out_dir")))
    if file.name != "run.yaml" or not isinstance(seen, dict) or not (home / "events.jsonl").exists():
        return  # a user's own
    if here.resolve() == home.resolve():
        return
    data["out_dir"] = str(file.parent)
    above = 1 if here.is_absolute() else len(here.parts)  # where `runs/NAME` began
    places = [Path(str(seen.get("folder", "."))), *home.parents[:above], home]

    def again(text: Any) -> Any:
        if not isinstance(text, str) or text in NO_PATHS or there(Path(text)):
            return text
        return next((str(place / text) for place in places if there(place / text)), text)

    data |= {key: again(data[key]) for key in ("init", "resume", "cluster") if key in data}
    parts = data["data"] if isinstance(data.get("data"), dict) else {}
    for source in (*(parts.get("train") or ()), *(parts.get("valid") or ())):
        if isinstance(source, dict):
            source["path"] = again(source.get("path"))


NO_PATHS = ("random", "auto", "never", "local")


def there(source: Path) -> bool:
    """Whether a source is there; it may be named without its suffix. One in a store is looked for when it is opened."""
    if is_url(source):
        return True
    path = source.expanduser()
    return any(Path(f"{path}{end}").exists() for end in ("", ".bin", ".idx"))


def apply_override(data: Mapping[str, Any], override: str) -> None:
    """Sets one dotted `key=value` in plain data, in place; the value is read as YAML."""
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise UserError(f"'{override}' is not an override", "command line", "write key=value, such as layout.tp=2")
    *parents, last = key.split(".")
    node: Any = data
    for part in parents:
        child = node.get(part)
        if child is None:
            child = node[part] = {}
        if not isinstance(child, dict):
            problem = f"'{part}' in '{key}' holds {child!r}, not keys"
            raise UserError(problem, "command line", f"set {part}=... as a whole")
        node = child
    node[last] = parse_yaml(text, f"value of {key}")
