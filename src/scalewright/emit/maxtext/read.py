"""MaxText's file as a run."""

from __future__ import annotations

from typing import Any

from scalewright.emit.emitted import Reading
from scalewright.emit.maxtext.words import ASIDE, AXES, MIXTURE, MLPS, MODELS, REMAT, STRATEGIES, WORDS
from scalewright.emit.numbers import real, whole
from scalewright.emit.rates import put_rates
from scalewright.emit.rules import Words, inverse, put, read_rules
from scalewright.emit.theirs import Theirs, put_sources, read_keys

NETS = ("ici", "dcn")  # inside a slice, between slices


def recognises(document: Any, text: str) -> bool:
    """A document with MaxText's sizes."""
    if not isinstance(document, dict):
        return False
    sizes = {"base_emb_dim", "per_device_batch_size", "max_target_length"} & document.keys()
    return bool(sizes) or any(str(key).startswith(("ici_", "dcn_")) for key in document)


def read(document: Any, text: str, where: str) -> Reading:
    """Such a file as a run; what base.yml fills in is filled in, too."""
    return read_keys("maxtext", document, ASIDE, where, _read_network, _read_layout, _read_training)


def _read_network(t: Theirs, run: Words) -> None:
    name = t.take("model_name", "default")
    if "base_emb_dim" not in t and name in MODELS:
        run["model"] = MODELS[name]
        read_rules(t, [word for word in WORDS if not word.ours.startswith("model.")], run)
        return
    if "base_emb_dim" not in t and name != "default":
        t.refuse("model_name", "a model that isn't known here by this name: set model")
        read_rules(t, [word for word in WORDS if not word.ours.startswith("model.")], run)
        return
    read_rules(t, WORDS, run)
    model = run.setdefault("model", {})
    sizes = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16,
             "num_key_value_heads": 16, "head_dim": 128, "vocab_size": 32000}  # fmt: skip
    for key, size in sizes.items():
        model.setdefault(key, size)
    model["intermediate_size"] = whole(t.take("base_mlp_dim", 7168))
    activations = t.take("mlp_activations", MLPS["swiglu"])
    names = {tuple(theirs): ours for ours, theirs in MLPS.items()}
    model["mlp_type"] = names.get(tuple(activations), "swiglu")
    model["norm_type"] = "rmsnorm"
    model.setdefault("rope", {}).setdefault("theta", 10000.0)
    if "context" not in model and (length := run.get("data", {}).get("seq_len")):
        model["context"] = length
    if t.values.get("rope_type") == "llama3.1":
        model["rope"]["scaling"] = {"kind": "llama3", "factor": 8.0, "original_context": 8192}
    block = str(t.values.get("decoder_block", "llama2"))
    if t.take("use_qk_norm") and block.startswith("qwen3"):
        model["qk_norm"] = "head"
    elif block not in ("llama2", "mixtral", "mistral"):
        t.assume(f"the network is a Llama's: theirs is {block}")
    if whole(t.values.get("num_experts", 1)) > 1:
        read_rules(t, MIXTURE, run)
        model["moe"].setdefault("moe_intermediate_size", model["intermediate_size"])
        model["moe"].setdefault("top_k", 1)
    else:
        t.take("num_experts"), t.take("num_experts_per_tok"), t.take("base_moe_mlp_dim")


def _read_layout(t: Theirs, run: Words) -> None:
    layout = run.setdefault("layout", {})
    sizes = {axis: _size(t, axis) for axis in AXES}
    data, fsdp, expert = sizes["data"], sizes["fsdp"], sizes["expert"]
    tp, pp, cp = max(sizes["tensor"], 1) * sizes["tensor_sequence"], sizes["pipeline"], sizes["context"]
    devices = data * fsdp * expert * tp * pp * cp
    layout |= {
        "devices": devices,
        "tp": tp,
        "sp": sizes["tensor_sequence"] > 1,
        "pp": pp,
        "cp": cp,
        "ep": expert,
    }
    if "moe" in (run.get("model") or {}):
        layout["etp"] = tp
    if cp > 1:
        name = str(t.take("context_parallel_strategy", "all_gather"))
        layout["cp_kind"] = inverse(STRATEGIES).get(name, "allgather")
    shards = t.take("shard_optimizer_over_data")
    sharded = fsdp * expert * cp > 1 or -1 in (t.values.get(f"{net}_fsdp_parallelism") for net in NETS)
    layout["zero_stage"] = 3 if sharded else 1 if shards else 0
    if layout["zero_stage"] != 1:
        layout["dp_replicate"] = data
    dp = data * fsdp * expert
    each, steps = real(t.take("per_device_batch_size", 12.0)), whole(t.take("gradient_accumulation_steps", 1))
    layout["global_batch"] = max(1, round(each * devices) * steps)
    t.follow("global_batch")
    count, repeats = t.take("num_pipeline_microbatches"), t.take("num_pipeline_repeats")
    if pp > 1:
        count = whole(count) if count is not None and int(count) > 0 else pp
        virtual = whole(repeats) if repeats is not None and int(repeats) > 0 else _repeats(t, run, pp)
        layout |= {"virtual_stages": virtual, "schedule": "interleaved" if virtual > 1 else "gpipe"}
        layout["micro_batch"] = max(1, layout["global_batch"] // (dp * count * steps))
    else:
        layout["micro_batch"] = max(1, round(each * tp * cp))
    policy = str(t.take("remat_policy", "full"))
    offloaded = policy == "minimal_offloaded" or t.take("decoder_layer_input") == "offload"
    layout["recompute"] = inverse(REMAT).get(policy, "none" if policy == "minimal_offloaded" else "full")
    if policy not in REMAT.values() and not offloaded:
        t.assume(f"recompute {layout['recompute']}: theirs is the policy {policy}")
    optimizer, parameters = t.take("optimizer_memory_host_offload"), t.take("parameter_memory_host_offload")
    layout["offload"] = (
        "activations" if offloaded else "parameters" if parameters else "optimizer" if optimizer else "none"
    )
    dtype, products = str(t.take("dtype", "bfloat16")), str(t.take("quantization", ""))
    layout["precision"] = (
        "fp8"
        if "fp8" in products
        else "int8"
        if products == "int8"
        else "fp32"
        if dtype == "float32"
        else "bf16"
    )


def _size(t: Theirs, axis: str) -> int:
    """An axis over both networks; -1 takes what is left, which isn't known."""
    size = 1
    for net in NETS:
        key = f"{net}_{axis}_parallelism"
        value = int(t.take(key, 1))
        if value == -1:
            line = f"{key} is what is left of the devices: taken as 1, set layout.devices"
            t.assume(line)
            t.guessed["devices"] = line
        size *= max(value, 1)
    return size


def _repeats(t: Theirs, run: Words, pp: int) -> int:
    layers = (
        (run.get("model") or {}).get("num_hidden_layers", pp) if isinstance(run.get("model"), dict) else pp
    )
    return max(1, int(layers) // (pp * whole(t.values.get("num_layers_per_pipeline_stage", 1))))


def _read_training(t: Theirs, run: Words) -> None:
    optimizer = run.setdefault("optimizer", {})
    name = str(t.take("opt_type", "adamw"))
    optimizer["name"] = name if name in ("adamw", "sgd", "muon") else "adamw"
    if name != optimizer["name"]:
        t.refuse("opt_type", "taken as AdamW: this optimizer isn't here")
    optimizer["betas"] = [real(t.take("adam_b1", 0.9)), real(t.take("adam_b2", 0.95))]
    optimizer["eps"] = real(t.take("adam_eps", 1e-8))
    decays = {key: t.take(key) for key in ("adam_weight_decay", "muon_weight_decay")}
    decay = decays["muon_weight_decay" if name == "muon" else "adam_weight_decay"]
    optimizer["weight_decay"] = real(decay if decay is not None else 0.1)
    if (beta := t.take("muon_beta")) is not None and name == "muon":
        optimizer["momentum"] = real(beta)
    steps = whole(t.take("steps", 150_001))
    put(run, "train.steps", steps)
    total = int(t.take("learning_rate_schedule_steps", -1))
    total = total if total > 0 else steps
    warmup = int(real(t.take("warmup_steps_fraction", 0.1)) * total)
    optimizer.setdefault("lr", 3e-5)
    least = real(t.take("learning_rate_final_fraction", 0.1)) * optimizer["lr"]
    kind, length = str(t.take("lr_schedule_type", "cosine")), max(1, total - warmup)
    late = int(real(t.take("wsd_decay_steps_fraction", 0.1)) * total)
    if kind == "wsd":
        kind, length = ("linear", length) if late >= total - warmup else ("wsd", late)
    put_rates(run, kind, warmup, length, least)
    if (files := t.take("grain_train_files")) is not None:
        parts = [part.rpartition(",") if "," in part else (part, "", "1") for part in str(files).split(";")]
        put(run, "data.train", put_sources([part[0] for part in parts], [part[2] for part in parts]))
    if (held := t.take("grain_eval_files")) is not None and int(t.values.get("eval_interval", -1)) > 0:
        put(run, "data.valid", put_sources(str(held).split(";")))
        put(run, "train.valid_every", whole(t.take("eval_interval")))
    every = whole(t.take("checkpoint_period", 10_000))
    if every < steps:
        put(run, "checkpoint.every", every)
    for key in ("load_parameters_path", "load_full_state_path"):
        t.refuse(key, "weights to start from aren't read: give `init`")
