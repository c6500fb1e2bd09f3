"""A run as MaxText's file."""

from __future__ import annotations

from scalewright.emit.choices import (
    Words,
    choose,
    is_all_sparse,
    optimizer_of,
    save_steps,
    take_adam,
    take_dense_width,
    take_expert_split,
    take_scaling,
    take_sources,
    yaml_text,
)
from scalewright.emit.emitted import Emitted
from scalewright.emit.maxtext.words import (
    BLOCKS,
    FILE,
    KINDS,
    MIXTURE,
    MLPS,
    PRECISIONS,
    REMAT,
    STRATEGIES,
    TITLE,
    TOKENIZER,
    VERSION,
    WORDS,
)
from scalewright.emit.rates import take_rates
from scalewright.emit.settings import Settings
from scalewright.emit.words import write_words
from scalewright.spec.errors import UserError


def write(s: Settings) -> Emitted:
    """The complete file; raises UserError where it would be another layout."""
    rates = take_rates(s, KINDS, "")
    total = rates.start + rates.length
    if not rates.to_the_end:
        s.nearly("lr_schedule.decay_steps", str(total), "MaxText's rate is 0 after the decay")
    hardware = "tpu" if "tpu" in str(s.run.cluster).lower() else "gpu"
    data: Words = {
        "base_config": "base.yml", "run_name": s.run.name, "base_output_directory": f"{s.run.folder}/maxtext",
        "hardware": hardware, **_network(s), **write_words(s, WORDS), **_layout(s), "steps": rates.steps,
        "lr_schedule_type": rates.kind, "learning_rate_schedule_steps": total,
        "learning_rate_final_fraction": float(f"{rates.least / rates.peak:.12g}"),
        "warmup_steps_fraction": _fraction(rates.warmup, total), **_optimizer(s), **_data(s), **_saves(s),
    }  # fmt: skip
    if rates.kind == "wsd":
        data |= {"wsd_decay_steps_fraction": _fraction(rates.length, total), "wsd_decay_style": "linear"}
    s.assume(f"hardware {hardware}; all devices are one slice: with several, move an axis from ici_ to dcn_")
    dropped = s.dropped(TITLE)
    command = f"python3 -m maxtext.trainers.pre_train.train {FILE}"
    comments = (f"Written by `scalewright emit maxtext`, for MaxText ({VERSION}); on every host:", command)
    return Emitted("maxtext", VERSION, {FILE: yaml_text(comments, data)}, command, dropped,
                   tuple(s.changed), tuple(s.assumed))  # fmt: skip


def _fraction(part: int, whole_: int) -> float:
    """A share that, times the steps and cut to a whole number, is the part again."""
    share = part / max(whole_, 1)
    return share if int(share * whole_) == part else (part + 0.5) / whole_


def _network(s: Settings) -> Words:
    model = s.model
    normed = model.qk_norm == "head"
    if normed:
        s.take("model.qk_norm")
    block = BLOCKS[normed, model.moe is not None]
    why = "MaxText's llama2 block has RMSNorm"
    choose(s, "model.norm_type", {"rmsnorm": None}, why)
    choose(s, "model.positions", {"rope": None}, "MaxText's llama2 block has rotary positions")
    mlp = choose(
        s,
        "model.mlp_type",
        MLPS,
        "MaxText's GELU is the tanh form",
        "geglu_tanh" if model.gated else "gelu_tanh",
    )
    if model.rope.theta != int(model.rope.theta):
        s.nearly(
            "model.rope.theta", str(int(model.rope.theta)), "MaxText's rope_max_timescale is a whole number"
        )
    written: Words = {
        "decoder_block": block, "mlp_activations": list(mlp or ()), "base_mlp_dim": take_dense_width(s),
        "normalize_embedding_logits": False, "enable_dropout": False,
    }  # fmt: skip
    scaling = take_scaling(s, TITLE, "llama3")
    if scaling is not None:
        written["rope_type"] = "llama3.1"
        if (scaling["factor"], scaling["original_context"]) != (8.0, 8192):
            s.nearly("model.rope.scaling.factor", "8", "MaxText's llama3.1 has the numbers of that model")
    if model.moe:
        written |= {**write_words(s, MIXTURE), "norm_topk_prob": True}
        if not model.moe.normalize_top_k:
            s.nearly("model.moe.normalize_top_k", "true", "its weights are a softmax of the chosen experts")
        if not is_all_sparse(s):
            s.drop("model.moe.first_k_dense", "MaxText's mixtral block has experts in every layer")
    return written


def _layout(s: Settings) -> Words:
    layout = s.layout
    for key in ("devices", "tp", "sp", "cp", "ep", "micro_batch", "global_batch"):
        s.take(f"layout.{key}")
    take_expert_split(s, TITLE)
    shards = _sharding(s)
    sizes = {
        "data": layout.dp // (shards * layout.ep), "fsdp": shards, "pipeline": s.take("layout.pp"),
        "context": layout.cp, "tensor": 1 if layout.sp else layout.tp,
        "tensor_sequence": layout.tp if layout.sp else 1, "expert": layout.ep,
    }  # fmt: skip
    written: Words = {f"ici_{axis}_parallelism": size for axis, size in sizes.items()}
    written |= {"dcn_data_parallelism": 1, "shard_optimizer_over_data": layout.zero_stage == 1}
    if layout.cp > 1:
        written["context_parallel_strategy"] = STRATEGIES[s.take("layout.cp_kind")]
    if layout.precision == "auto":
        s.assume("precision bf16, since `auto` asks the device")
    why = "MaxText trains in bf16 or fp32, with products in fp8 or int8"
    instead = "fp32" if layout.precision == "tf32" else "bf16"
    precision = choose(s, "layout.precision", PRECISIONS, why, instead) or {}
    if layout.precision in ("fp8", "int8"):
        s.nearly("layout.precision", layout.precision, "its own recipe of scales")
    return {**written, **_batch(s), **precision, "weight_dtype": "float32", **_memory(s)}


def _sharding(s: Settings) -> int:
    """Devices of the fsdp axis: what shards parameters beside the expert axis."""
    layout, stage = s.layout, s.layout.zero_stage
    shared = [axis for axis in ("cp", "ep") if getattr(layout, axis) > 1]
    if stage in (0, 1) and shared:
        s.nearly(
            "layout.zero_stage", f"3 over {' and '.join(shared)}", "MaxText shards parameters over those axes"
        )
    elif stage >= 2 and layout.dp_shard * layout.cp == 1:
        s.nearly("layout.zero_stage", "0", "a replica has one data-parallel rank: there is nothing to shard")
    elif stage == 2:
        s.nearly("layout.zero_stage", "3", "MaxText has no ZeRO-2: the same numbers, more messages")
    else:
        s.take("layout.zero_stage")
    if stage in (0, 1) and shared and layout.dp_replicate != layout.dp // layout.ep:
        whole = layout.dp // layout.ep
        s.nearly("layout.dp_replicate", str(whole), "the ranks of its data axis hold the same parameters")
    elif stage == 1:
        s.drop("layout.dp_replicate", "MaxText's ZeRO-1 shards over all of its data axis")
    else:
        s.take("layout.dp_replicate")
    within = layout.dp_shard if stage >= 2 else layout.dp
    if within % layout.ep:
        what = f"MaxText can't run ep {layout.ep} beyond the {within} data-parallel ranks of a replica"
        raise UserError(what, "layout.ep", "use an ep that divides dp / dp_replicate")
    return layout.dp_shard // layout.ep if stage >= 2 else 1


def _batch(s: Settings) -> Words:
    """The batch of a device; a pipeline accumulates in itself, a multiple of pp micro-batches."""
    layout, layers = s.layout, s.model.num_hidden_layers
    if layout.pp == 1:
        each = layout.micro_batch / (layout.tp * layout.cp)
        return {"per_device_batch_size": each, "gradient_accumulation_steps": layout.accumulation}
    stages = layout.pp * s.take("layout.virtual_stages")
    if layers % stages:
        what = (
            f"MaxText can't run pp {layout.pp} with {layout.virtual_stages} stages of a rank: {layers} layers"
        )
        raise UserError(what, "layout.pp", "use stages that divide the layers")
    s.drop("layout.stage_layers", "MaxText's stages have as many layers each")
    if s.layout.stage_layers is not None and len(set(s.layout.stage_layers)) == 1:
        s.take("layout.stage_layers")
    why = f"MaxText has no {layout.schedule}: all forwards of its pipeline come before the backwards"
    if layout.schedule == "gpipe":
        s.take("layout.schedule")
    else:
        s.nearly("layout.schedule", "circular" if layout.virtual_stages > 1 else "gpipe", why)
    samples = layout.global_batch // layout.dp
    counts = [n for n in range(layout.pp, samples + 1, layout.pp) if samples % n == 0]
    if not counts:
        what = f"MaxText can't run pp {layout.pp} with {samples} samples of a data-parallel rank"
        raise UserError(what, "layout.pp", "use a global_batch that pp divides for each of them")
    count = min(counts, key=lambda n: abs(n - layout.accumulation))
    if count != layout.accumulation:
        why = "MaxText's pipeline wants a multiple of pp micro-batches"
        s.nearly("layout.micro_batch", str(samples // count), why)
    return {
        "per_device_batch_size": layout.global_batch / layout.devices, "gradient_accumulation_steps": 1,
        "num_pipeline_microbatches": count, "num_pipeline_repeats": layout.virtual_stages,
        "num_layers_per_pipeline_stage": layers // stages,
    }  # fmt: skip


def _memory(s: Settings) -> Words:
    why = "MaxText's policies are of every layer"
    policy = choose(s, "layout.recompute", REMAT, why, "full")
    if s.layout.recompute == "none":
        s.assume("recompute none is minimal_with_context: products and attention's output are kept")
    offload = s.layout.offload
    if offload in ("optimizer", "parameters"):
        s.take("layout.offload")
        return {"remat_policy": policy, "optimizer_memory_host_offload": True,
                "parameter_memory_host_offload": offload == "parameters"}  # fmt: skip
    if offload == "activations":
        s.take("layout.offload")
        return {"remat_policy": "custom", "decoder_layer_input": "offload"} if policy == "full" else {
            "remat_policy": "minimal_offloaded"}  # fmt: skip
    s.drop("layout.offload", "MaxText's offloads of states and of activations aren't written together")
    return {"remat_policy": policy}


def _optimizer(s: Settings) -> Words:
    spec = optimizer_of(s)
    decay = s.take("optimizer.weight_decay")
    if spec.name == "sgd" and not s.take("optimizer.momentum"):
        s.take("optimizer.name")
        return {"opt_type": "sgd", "adam_weight_decay": decay}
    why = "MaxText has AdamW, Muon and SGD without momentum"
    name = choose(s, "optimizer.name", {"adamw": "adamw", "muon": "muon"}, why, "adamw")
    first, second = take_adam(s)
    written: Words = {
        "opt_type": name, "adam_b1": first, "adam_b2": second, "adam_eps": s.take("optimizer.eps"),
        "adam_weight_decay": decay, "adamw_mask": [".*norm.*", ".*bias.*"],
    }  # fmt: skip
    if name == "muon":
        s.take("optimizer.momentum")
        written |= {"muon_beta": spec.kept_momentum, "muon_weight_decay": decay}
    return written


def _data(s: Settings) -> Words:
    paths, weights = take_sources(s)
    valid = [source["path"] for source in s.take("data.valid")]
    every, batches = s.take("train.valid_every"), s.values["train.valid_batches"]
    s.assume(f"tokenizer {TOKENIZER}: put in its path; data are ArrayRecord files: convert ours, or set them")
    mixed = [f"{path},{weight:g}" for path, weight in zip(paths, weights, strict=True)]
    written: Words = {
        "dataset_type": "grain", "grain_file_type": "arrayrecord",
        "grain_train_files": ";".join(mixed) if len(paths) > 1 else paths[0], "tokenizer_path": TOKENIZER,
        "tokenizer_type": "huggingface", "data_shuffle_seed": s.values["seed"],
    }  # fmt: skip
    if valid and every:
        written |= {"grain_eval_files": ";".join(valid), "eval_interval": every, "eval_steps": batches}
    return written


def _saves(s: Settings) -> Words:
    every = save_steps(s)
    return {"enable_checkpointing": bool(every), **({"checkpoint_period": every} if every else {})}
