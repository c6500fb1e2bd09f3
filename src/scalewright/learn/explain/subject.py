"""The run that an entry's number is about, as quantities by name: what functions of the field take.

    --run FILE      a run file, a run's folder, the JSON of `plan` or `predict`, another trainer's script
    (none)          the newest folder below ./runs
    (none there)    EXAMPLE: Llama 3.1 8B on one DGX H100

    subject.quantity("micro_batches")    raises Missing where this run or its cluster has none
    subject.assuming({"pp": 4})          the same run with at least so many stages, and a note of it

Rates are bytes/s one way a device, sizes bytes, times seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec, load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec, MoE
from scalewright.spec.presets import load_model_spec
from scalewright.spec.question import Question
from scalewright.spec.run import RunSpec

if TYPE_CHECKING:
    from scalewright.plan.predict import Prediction
    from scalewright.spec.hardware.devices import DeviceSpec
    from scalewright.spec.tensors import Count

EXAMPLE: dict[str, Any] = {
    "name": "example", "model": "llama-3.1-8b", "cluster": "dgx-h100", "data": {"train": "DATA", "seq_len": 8192},
    "layout": {"devices": 8, "zero_stage": 3, "micro_batch": 1, "global_batch": 128, "precision": "bf16"},
}  # fmt: skip
FILES = ("run.yaml", "metrics.jsonl")  # of a run's folder
WITHOUT = ("moe", "mla")  # parts of a model that it may not have


class Missing(LookupError):
    """A quantity that this run doesn't have."""


@dataclass(frozen=True)
class Subject:
    """A run, its cluster, and what it is called."""

    question: Question
    name: str
    folder: Path | None = None  # of a run that was
    notes: tuple[str, ...] = ()

    def quantity(self, name: str) -> Any:
        """A quantity by its name. Raises Missing."""
        if name.startswith("_") or not hasattr(type(self), name):
            raise AttributeError(f"no quantity {name}")
        if (value := getattr(self, name)) is None:
            raise Missing(name)
        return value

    def assuming(self, keys: Mapping[str, Any]) -> Subject:
        """The run with at least these sizes, and with a named model where its own lacks the part."""
        subject = self
        for key, value in keys.items():
            if key in WITHOUT:
                subject = subject._with_model(key, value)
            else:
                subject = subject._with_size(key, value)
        return subject

    def _with_model(self, part: str, name: str) -> Subject:
        if getattr(self.model, part) is not None:
            return self
        run = self.question.run.model_copy(update={"model": load_model_spec(name)})
        return replace(self, question=replace(self.question, run=run), notes=(*self.notes, f"the model were {name}"))

    def _with_size(self, key: str, value: Any) -> Subject:
        layout = self.layout
        if key == "pp":  # a stage has a layer at least
            value = min(value, self.layers)
        if key == "dp":  # another replica
            key, value = "devices", value * layout.tp * layout.pp * layout.cp
        if (getattr(layout, key) >= value) if isinstance(value, int) else (getattr(layout, key) != "none"):
            return self
        sizes = {**layout.dump(), key: value}
        for devices in (layout.devices, layout.devices * value if isinstance(value, int) else layout.devices):
            dp = max(1, devices // (sizes["tp"] * sizes["pp"] * sizes["cp"]))
            batch = max(1, layout.global_batch // (layout.micro_batch * dp)) * layout.micro_batch * dp
            try:
                changed = Layout.parse({**sizes, "devices": devices, "global_batch": batch})
            except UserError:
                continue
            words = f"{key} were {value}" + (f" on {devices} devices" if devices > layout.devices else "")
            return replace(self, question=self.question.with_layout(changed), notes=(*self.notes, words))
        raise Missing(key)

    @property
    def model(self) -> ModelSpec:
        """Its network."""
        return self.question.model

    @property
    def layout(self) -> Layout:
        """How it is divided."""
        return self.question.layout

    @cached_property
    def cluster(self) -> ClusterSpec:
        """Where it runs; this machine where nothing is said, which is timed."""
        from scalewright.machine.local import find_cluster

        return self.question.cluster or find_cluster(self.question.run.cluster, self.layout.devices)

    @property
    def asked(self) -> Question:
        """The run with its cluster, as the planner takes it."""
        return replace(self.question, cluster=self.cluster)

    @property
    def device(self) -> DeviceSpec:
        """One of its devices."""
        return self.cluster.device

    @cached_property
    def prediction(self) -> Prediction:
        """The run as the planner prices it."""
        from scalewright.plan.predict import price

        return price(self.asked)

    @cached_property
    def sizes(self) -> Count:
        """Its parameters, counted."""
        from scalewright.spec.tensors import count

        return count(self.model)

    # --- model ---

    @property
    def model_name(self) -> str:
        """As its preset or file calls it."""
        source = self.question.run.model
        return source if isinstance(source, str) and "/" not in source else self.model.name

    @property
    def parameters(self) -> int:
        return self.sizes.total

    @property
    def active_parameters(self) -> int:
        return self.sizes.active

    @property
    def layers(self) -> int:
        return self.model.num_hidden_layers

    @property
    def hidden(self) -> int:
        return self.model.hidden_size

    @property
    def width(self) -> int:
        """Of an MLP's inside."""
        return self.model.intermediate_size

    @property
    def heads(self) -> int:
        return self.model.num_attention_heads

    @property
    def kv_heads(self) -> int:
        return self.model.kv_heads

    @property
    def head_dim(self) -> int:
        return self.model.dim_per_head

    @property
    def vocabulary(self) -> int:
        return self.model.vocab_size

    @property
    def experts(self) -> int | None:
        return self.model.moe.num_experts if self.model.moe else None

    @property
    def top_k(self) -> int | None:
        return self.model.moe.top_k if self.model.moe else None

    @property
    def moe(self) -> MoE | None:
        return self.model.moe

    @property
    def theta(self) -> float:
        """Of rotary positions."""
        return self.model.rope.theta

    @property
    def qkv_width(self) -> int:
        """Columns of the three projections together."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def compute_optimal_tokens(self) -> float:
        """20 for each parameter (Hoffmann et al. 2022)."""
        return 20.0 * self.parameters

    @property
    def compute_optimal_flops(self) -> float:
        return 6.0 * self.active_parameters * self.compute_optimal_tokens

    @property
    def uniform_nats(self) -> float:
        """Cross-entropy of a guess that knows nothing."""
        return log(self.vocabulary)

    @property
    def mlp_shape(self) -> tuple[int, int]:
        """Of an MLP's matrix."""
        return self.width, self.hidden

    @property
    def weight_bytes(self) -> int:
        """In 16 bits."""
        return 2 * self.parameters

    @cached_property
    def block_parameters(self) -> int:
        """Of one block."""
        from scalewright.spec.tensors import block_tensors

        return sum(tensor.size for tensor in block_tensors(self.model, self.layers - 1))

    @property
    def block_bytes(self) -> float:
        """Of one block's weights on a tensor-parallel rank, in 16 bits."""
        return 2 * self.block_parameters / self.tp

    @property
    def active_bytes(self) -> int:
        """Of the weights that work on a token, in 16 bits."""
        return 2 * self.active_parameters

    @property
    def checkpoint_bytes(self) -> float:
        """Master weights and Adam's moments."""
        return 12.0 * self.parameters

    @property
    def request_cache_bytes(self) -> float:
        """Of a request of the run's sequence length, in 16 bits."""
        from scalewright.learn.attention import kv_bytes

        return kv_bytes(self.model, self.seq_len)

    @property
    def prompt_bytes(self) -> int:
        """Of a text of the run's sequence length, at 4 bytes a token."""
        return 4 * self.seq_len

    @property
    def prefill_flops(self) -> float:
        """Of a prompt of the run's sequence length."""
        from scalewright.spec.flops import forward_flops

        return forward_flops(self.model, self.seq_len)

    # --- batch and layout ---

    @property
    def seq_len(self) -> int:
        return self.question.seq_len

    @property
    def micro_batch(self) -> int:
        return self.layout.micro_batch

    @property
    def global_batch(self) -> int:
        return self.layout.global_batch

    @property
    def micro_batches(self) -> int:
        """Of one rank and step."""
        return self.layout.accumulation

    @property
    def micro_tokens(self) -> int:
        """Of one micro-batch on one rank."""
        return self.micro_batch * self.seq_len // self.layout.cp

    @property
    def step_tokens(self) -> int:
        return self.global_batch * self.seq_len

    @property
    def devices(self) -> int:
        return self.layout.devices

    @property
    def tp(self) -> int:
        return self.layout.tp

    @property
    def pp(self) -> int:
        return self.layout.pp

    @property
    def cp(self) -> int:
        return self.layout.cp

    @property
    def ep(self) -> int:
        return self.layout.ep

    @property
    def dp(self) -> int:
        return self.layout.dp

    @property
    def dp_shard(self) -> int:
        return self.layout.dp_shard

    @property
    def model_parallel(self) -> int:
        return self.tp * self.pp

    @property
    def rank_parameters(self) -> float:
        """A rank's parameters before ZeRO: those of its part of the model."""
        return self.parameters / self.model_parallel

    @property
    def rank_weight_bytes(self) -> float:
        """Of those in 16 bits."""
        return 2 * self.rank_parameters

    @property
    def rank_fp32_bytes(self) -> float:
        """Of those in 32 bits."""
        return 4 * self.rank_parameters

    @property
    def shard_optimizer_bytes(self) -> float:
        """Of master weights and moments on a device, 12 a parameter."""
        return 12 * self.rank_parameters / (self.dp if self.zero_stage else 1)

    @property
    def shard_checkpoint_bytes(self) -> float:
        """A device's share of a checkpoint."""
        return self.checkpoint_bytes / self.devices

    @property
    def width_of_rank(self) -> int:
        """Columns of an MLP on a tensor-parallel rank."""
        return self.width // self.tp

    @property
    def stream_bytes(self) -> int:
        """Of the residual stream of a micro-batch in 16 bits."""
        return 2 * self.micro_tokens * self.hidden

    @property
    def mlp_numbers(self) -> int:
        """Inside an MLP, of a micro-batch on a rank."""
        return self.micro_tokens * self.width // self.tp

    @property
    def logits(self) -> int:
        """Of a micro-batch on a rank."""
        return self.micro_tokens * self.vocabulary // self.tp

    @property
    def routed_tokens(self) -> int | None:
        """Rows that experts take of a micro-batch."""
        return self.micro_tokens * self.top_k if self.top_k else None

    @property
    def stream_numbers(self) -> int:
        return self.micro_tokens * self.hidden

    @property
    def block_forward_flops(self) -> float:
        """Of a micro-batch on a rank, attention's scores left out."""
        return 2.0 * self.block_parameters * self.micro_tokens / self.tp

    @property
    def kv_width(self) -> int:
        """Numbers of a token's keys in a layer."""
        return self.kv_heads * self.head_dim

    @property
    def axes(self) -> dict[str, int]:
        """The mesh, outermost first."""
        names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
        return {name: getattr(self.layout, name) for name in names}

    @cached_property
    def stage_weights(self) -> list[float]:
        """Parameters of each pipeline stage."""
        from scalewright.spec.placement import place

        sizes = [0.0] * self.pp
        for placement in place(self.model, self.layout):
            for stage in placement.stages:
                sizes[stage % self.pp] += placement.tensor.size
        return sizes

    @property
    def zero_stage(self) -> int:
        return self.layout.zero_stage

    @property
    def schedule(self) -> str:
        return self.layout.schedule

    @property
    def virtual_stages(self) -> int:
        return self.layout.virtual_stages

    @property
    def chunks(self) -> int:
        """Stages of a rank, two at least: of an interleaved schedule."""
        return max(2, self.virtual_stages)

    @property
    def per_node(self) -> int:
        return min(self.cluster.devices_per_node, self.devices)

    @property
    def cluster_per_node(self) -> int:
        return self.cluster.devices_per_node

    @property
    def nodes(self) -> int:
        return -(-self.devices // self.cluster.devices_per_node)

    # --- hardware ---

    @property
    def device_name(self) -> str:
        return self.device.name

    @property
    def peak(self) -> float | None:
        """FLOP/s in 16 bits, or what the device has."""
        return self.device.peak(self.device.half)

    @property
    def fp32_peak(self) -> float | None:
        return self.device.peak("fp32")

    @property
    def fp8_peak(self) -> float | None:
        return self.device.peak("fp8")

    @property
    def memory_bytes(self) -> float:
        return self.device.capacity_bytes

    @property
    def memory_bytes_per_s(self) -> float:
        return self.device.memory_bytes_per_s

    @property
    def multiprocessors(self) -> int | None:
        """SMs of a GPU."""
        return self.device.multiprocessors if self.device.kind == "gpu" else None

    @property
    def cache_bytes(self) -> float | None:
        return self.device.cache_bytes

    @property
    def host_bytes_per_s(self) -> float | None:
        return self.device.host_bytes_per_s

    @property
    def host_memory_bytes(self) -> float:
        """Of a node: the cluster's, or 250 GB a device, as the planner assumes."""
        return self.cluster.host_memory_bytes or 250e9 * self.cluster.devices_per_node

    @property
    def link_bytes_per_s(self) -> float | None:
        """Of the fastest links between devices."""
        return next((level.bytes_per_s for level in self.cluster.levels[1:]), None)

    @property
    def link_delay(self) -> float | None:
        return next((level.latency_s for level in self.cluster.levels[1:]), None)

    @property
    def domain(self) -> int | None:
        """Devices that the fastest links join."""
        return next((level.size for level in self.cluster.levels[1:]), None)

    @property
    def network_bytes_per_s(self) -> float | None:
        """Of a device's share of the network between nodes."""
        return next((level.bytes_per_s for level in self.cluster.levels if level.name == "fabric"), None)

    @property
    def network_ridge(self) -> float | None:
        """FLOPs for each byte that a device sends over the network."""
        rate = self.network_bytes_per_s
        return self.peak / rate if self.peak and rate else None

    @property
    def link_ridge(self) -> float | None:
        """FLOPs for each byte that a device sends over the fastest links."""
        rate = self.link_bytes_per_s
        return self.peak / rate if self.peak and rate else None

    @property
    def dp_bytes_per_s(self) -> float | None:
        """Of the links that data parallelism uses: the network's where it leaves the fastest links' domain."""
        return self.link_bytes_per_s if self.devices <= (self.domain or 1) else self.network_bytes_per_s

    @property
    def dp_delay(self) -> float | None:
        return self.link_delay if self.devices <= (self.domain or 1) else self.network_delay

    @property
    def ring_algorithm_rate(self) -> float | None:
        """Bytes of a rank's gradients over the seconds of their all-reduce."""
        from scalewright.learn.communication import ring_seconds

        if self.dp_bytes_per_s is None or self.dp < 2:
            return None
        size = self.rank_weight_bytes
        return size / ring_seconds("all_reduce", size, self.dp, self.dp_bytes_per_s, self.dp_delay or 0.0)

    @property
    def network_delay(self) -> float | None:
        return next((level.latency_s for level in self.cluster.levels if level.name == "fabric"), None)

    # --- time ---

    @property
    def breakdown(self) -> dict[str, float]:
        """A step's seconds by part, by the planner."""
        return self.prediction.breakdown

    @cached_property
    def exposed_share(self) -> float:
        """Of a step: communication that nothing hides."""
        from scalewright.learn.speedup import exposed_share

        return exposed_share(self.breakdown)

    @property
    def predicted_step_s(self) -> float:
        """By the planner."""
        return self.prediction.step_time_s

    @cached_property
    def step_s(self) -> float:
        """A step's seconds: a run's own median, else the planner's."""
        from scalewright.goodput.ledger import read_ledger

        measured = None
        if self.folder is not None:
            try:
                measured = read_ledger(self.folder).step_s
            except UserError:  # it has no step yet
                measured = None
        return measured or self.predicted_step_s

    @property
    def failure_rate(self) -> float:
        """Failures an hour of a device, as published runs had them."""
        from scalewright.plan.reliability import usual

        return usual().rate

    @property
    def mtbf_s(self) -> float:
        from scalewright.plan.reliability import mtbf_s

        return mtbf_s(self.devices, self.failure_rate)

    @property
    def save_s(self) -> float:
        """Of a checkpoint, by usual storage."""
        from scalewright.plan.reliability import usual

        return usual().save_s(self.checkpoint_bytes, self.devices)

    @property
    def tokens_per_s(self) -> float:
        return self.step_tokens / self.step_s

    @property
    def block_forward_s(self) -> float | None:
        """One block's forward of a micro-batch at half of the peak."""
        if self.peak is None:
            return None
        return self.block_forward_flops / (0.5 * self.peak)


def band_width(asked: Question) -> float:
    """The p90 of a run's step time over its p10, by the planner."""
    from scalewright.plan.predict import price

    low, high = price(asked).band_s
    return high / low


def legal_layouts(asked: Question) -> int:
    """Layouts of the run's devices and batch that `plan` chooses among."""
    from scalewright.plan.search.objective import Goal
    from scalewright.plan.search.search import prepare

    maker, *_ = prepare(asked, Goal(asked.layout.devices, asked.layout.global_batch))
    return int(maker.space.size)


def memory_share(asked: Question) -> float:
    """The median peak of the worst rank over what a device has for a trainer."""
    from scalewright.plan.predict import price

    prediction = price(asked)
    return prediction.peak_gib / prediction.usable_gib


def compute_share(parts: Mapping[str, float]) -> float:
    """The share of a step that is computing, recomputation too."""
    return (parts["compute"] + parts["recompute"]) / sum(parts.values())


def list_price(device: DeviceSpec) -> float:
    """USD of one device for an hour on demand, the median of the dated list."""
    from scalewright.spec.prices import price_of

    return price_of(device).median


def usual_goodput(asked: Question) -> float:
    """The share of a run's time that trains, by usual rates of failures and storage, saved at the best interval."""
    from scalewright.plan.reliability import rhythm
    from scalewright.plan.whole_run import habits_of

    return rhythm(asked.layout.devices, habits_of(asked)).goodput()


def example() -> Subject:
    """The run that is taken where nobody has one."""
    run = RunSpec.parse(EXAMPLE)
    return Subject(Question(run, load_cluster(EXAMPLE["cluster"])), "example: Llama 3.1 8B on 8 H100, ZeRO-3")


def find_subject(source: str | Path | None = None, runs: Path = Path("runs")) -> Subject:
    """The run of a file or folder, the newest of `runs`, or the example. Raises UserError for a source that is none."""
    if source is not None:
        return _of(Path(source))
    folders = [path.parent for path in runs.glob("*/run.yaml")] if runs.is_dir() else []
    for folder in sorted(folders, key=lambda path: (path / "run.yaml").stat().st_mtime, reverse=True):
        try:
            subject = _of(folder)
            _ = subject.parameters  # a module of the user's own has no shapes
            return subject
        except UserError:
            continue
    return example()


def _of(path: Path) -> Subject:
    from scalewright.spec.run import load_run

    if path.is_dir():
        return _named(load_run(path / "run.yaml"), str(path), path)
    if not path.exists():
        how = "give a run file, a run's folder, or what `plan --json` or `predict --json` printed"
        raise UserError("no such file or folder", str(path), how)
    if path.suffix == ".json":
        return _answer(path)
    from scalewright.emit.question import question

    read = question(str(path))
    return Subject(read if read.cluster else replace(read, cluster=None), f"{path}: {_words(read)}")


def _answer(path: Path) -> Subject:
    """A plan's best layout, or the layout of a prediction."""
    from scalewright.report.document import read_plan

    document = read_plan(path)
    first = document.first
    if first is None:
        raise UserError("this plan has no layout that fits", str(path), "plan with more devices")
    run = document.read.data.get("run")
    if isinstance(run, Mapping):
        return _named(RunSpec.parse(dict(run), str(path)), str(path))
    keys = {key: value for key, value in first.layout.items() if key != "dp"}
    device, length = document.device, document.number("seq_len")
    place = load_cluster({"device": device.text("name"), "devices_per_node": int(device.number("per_node") or 1)})
    run_keys = {"model": document.model, "layout": keys, "data": {"train": "DATA", "seq_len": int(length or 1024)}}
    question = Question(RunSpec.parse(run_keys, str(path)), place)
    return Subject(question, f"{path}: {_words(question)}")


def _named(run: RunSpec, source: str, folder: Path | None = None) -> Subject:
    question = Question(run, source=source)
    return Subject(question, f"{source}: {_words(question)}", folder)


def _words(question: Question) -> str:
    layout = question.layout
    sizes = [f"{axis} {getattr(layout, axis)}" for axis in ("tp", "pp", "cp", "ep") if getattr(layout, axis) > 1]
    model = question.run.model if isinstance(question.run.model, str) else question.model.name
    return ", ".join([f"{model} on {layout.devices} devices", *sizes, f"zero {layout.zero_stage}"])
