"""NeMo 1's YAML for GPT as Megatron's arguments: `trainer`, `model`, `model.optim`, `model.data`.

    trainer.devices x trainer.num_nodes       ranks
    model.activation fast-swiglu              swiglu
    model.bias false                          disable-bias-linear
    model.optim.name mcore_distributed_optim  use-distributed-optimizer
    model.optim.sched CosineAnnealing         lr-decay-style cosine; constant_steps come off its decay

Keys: examples/nlp/language_modeling/conf/megatron_gpt_config.yaml of NeMo and its launcher's files, 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.emit.bridge.fields import precision_of
from scalewright.emit.bridge.read import resolve
from scalewright.emit.emitted import Reading
from scalewright.emit.foreign import UNKNOWN, ForeignKeys, whole
from scalewright.emit.megatron.files import read_arguments
from scalewright.emit.megatron.keys import ASIDE
from scalewright.emit.megatron.model import VOCABULARIES, Arguments
from scalewright.emit.other_training import other_training
from scalewright.emit.rules import put
from scalewright.emit.tables import keys_for, table
from scalewright.spec.common.formatting import flat
from scalewright.spec.presets import is_preset, load_model_spec
from scalewright.spec.question import Unread

TABLE = table("bridge/nemo.yaml")
NAMES = {f"model.{key}": key.replace("_", "-") for key in TABLE["same"]} | TABLE["names"]  # their key -> argument
# What is printed, saved, fused or initialised, and how kernels are chosen
QUIET_SECTIONS = ("name", "run", "defaults", "hydra", "exp_manager", "s3_checkpointing")
QUIET_TRAINER = keys_for("nemo, trainer")
QUIET_OPTIM = keys_for("nemo, optimizer")
QUIET_MODEL = keys_for("nemo, model")
USUAL = TABLE["usual"]
NORMS = {"layernorm": "LayerNorm", "low_precision_layernorm": "LayerNorm", "layernorm1p": "LayerNorm",
         "rmsnorm": "RMSNorm"}  # fmt: skip
GATED = {"swiglu": "swiglu", "fast-swiglu": "swiglu", "squared-relu": "squared-relu"}
OURS = {"geglu": "geglu", "fast-geglu": "geglu"}  # activations that Megatron's arguments have no word for
SHARDED = {"full": "optim_grads_params", "hybrid": "optim_grads_params", "grad": "optim_grads"}
DISTRIBUTED = ("mcore_distributed_optim", "distributed_fused_adam")


def read_nemo(document: Mapping[str, Any]) -> Reading:
    """A NeMo 1 configuration as a run."""
    values = flat(resolve(document))
    arguments: Arguments = {
        flag: value for key, flag in NAMES.items() if (value := values.get(key)) is not None and value is not False
    }  # a dropout of 0.0 equals False, and isn't the default's 0.1
    names = {flag: key for key, flag in NAMES.items()}
    taken = set(NAMES)
    for part in (_network, _optimizer, _precision, _data):
        arguments |= part(values, taken)
    if "num-query-groups" in arguments:
        arguments["group-query-attention"] = True
    foreign = ForeignKeys(arguments, ASIDE)
    foreign.assume("what is silent here has the defaults of Megatron-LM, which NeMo's classes share")
    world = _ranks(values, taken)
    run = read_arguments(foreign, world)
    if (mask := values.get("model.data.reset_attention_mask")) is not None:
        put(run, "data.document_mask", bool(mask))
    if (kind := OURS.get(str(values.get("model.activation")))) is not None:
        run["model"]["mlp_type"] = kind
    unread = [Unread(names.get(key, key), value, why) for key, value, why in foreign.unread()]
    others = [key for key, value in values.items() if key not in taken and not is_quiet(key, value)]
    unread += [Unread(key, values[key], UNKNOWN) for key in others]
    other = other_training(values)
    return Reading("megatron-bridge", run, tuple(unread), tuple(foreign.assumed), foreign.guessed, other)


def _network(values: dict[str, object], taken: set[str]) -> Arguments:
    taken |= {"model.normalization", "model.activation", "model.bias", "model.share_embeddings_and_output_weights"}
    written: Arguments = {}
    norm = str(values.get("model.normalization", "layernorm"))
    written["normalization"] = NORMS.get(norm, "LayerNorm")
    if norm == "layernorm1p":
        written["apply-layernorm-1p"] = True
    activation = str(values.get("model.activation", "gelu"))
    if activation in GATED:
        written[GATED[activation]] = True
    elif activation not in ("gelu", *OURS):
        taken.discard("model.activation")
    if values.get("model.bias", True) is False:
        written["disable-bias-linear"] = True
    if values.get("model.share_embeddings_and_output_weights", True) is False:
        written["untie-embeddings-and-output-weights"] = True
    kind = values.get("model.tokenizer.type")
    if isinstance(kind, str) and is_preset(kind):
        written["padded-vocab-size"] = load_model_spec(kind).vocab_size
    elif isinstance(kind, str) and kind in VOCABULARIES:
        written["tokenizer-type"] = kind
    return written


def _optimizer(values: dict[str, object], taken: set[str]) -> Arguments:
    taken |= {"model.optim.name", "model.optim.betas", "model.fsdp", "model.fsdp_sharding_strategy"}
    written: Arguments = {"lr-decay-style": "cosine"}
    name = str(values.get("model.optim.name", "fused_adam"))
    if name in DISTRIBUTED:
        written["use-distributed-optimizer"] = True
    elif "adam" not in name:
        written["optimizer"] = name
    betas = values.get("model.optim.betas")
    if isinstance(betas, list) and len(betas) == 2:
        written |= {"adam-beta1": betas[0], "adam-beta2": betas[1]}
    if values.get("model.fsdp"):
        strategy = str(values.get("model.fsdp_sharding_strategy", "full"))
        written |= {"use-megatron-fsdp": True, "data-parallel-sharding-strategy": SHARDED.get(strategy, strategy)}
    shape = values.get("model.optim.sched.name", "CosineAnnealing")
    if shape != "CosineAnnealing":
        written["lr-decay-style"] = str(shape)
    constant, steps = values.get("model.optim.sched.constant_steps"), values.get("trainer.max_steps")
    if constant and isinstance(steps, int):
        written["lr-decay-iters"] = steps - whole(constant)
    return written


def _precision(values: dict[str, object], taken: set[str]) -> Arguments:
    taken |= {"trainer.precision", "model.fp8", "model.fp8_e4m3", "model.fp8_hybrid"}
    written = precision_of(str(values.get("trainer.precision", "bf16")))
    if values.get("model.fp8"):
        written |= {"fp8-format": "e4m3" if values.get("model.fp8_e4m3") else "hybrid"}
    return written


def _data(values: dict[str, object], taken: set[str]) -> Arguments:
    taken |= {"model.data.data_prefix", "model.data.data_prefix.train", "model.data.data_prefix.validation"}
    written: Arguments = {}
    train = values.get("model.data.data_prefix", values.get("model.data.data_prefix.train"))
    if train not in (None, "???"):
        written["data-path"] = train
    if (valid := values.get("model.data.data_prefix.validation")) is not None:
        written["valid-data-path"] = valid
    if (length := values.get("model.data.seq_length")) is not None and "model.encoder_seq_length" not in values:
        written["seq-length"] = length
    return written


def _ranks(values: dict[str, object], taken: set[str]) -> int | None:
    taken |= {"trainer.devices", "trainer.num_nodes"}
    devices, nodes = values.get("trainer.devices"), values.get("trainer.num_nodes", 1)
    sizes = [whole(values.get(f"model.{axis}_parallel_size") or 1)
             for axis in ("tensor_model", "pipeline_model", "context")]  # fmt: skip
    if not isinstance(devices, int) or not isinstance(nodes, int) or devices < 1 or nodes < 1:
        return None
    world = devices * nodes
    return world if world % (sizes[0] * sizes[1] * sizes[2]) == 0 else None


def is_quiet(key: str, value: Any) -> bool:
    """Whether a dotted key says nothing about a run, or that it has no such part."""
    if key in USUAL:
        return bool(USUAL[key] == value)
    section, _, rest = key.partition(".")
    first = rest.partition(".")[0]
    if section in QUIET_SECTIONS:
        return True
    if section == "trainer":
        return rest in QUIET_TRAINER
    if rest.startswith("optim."):
        return rest.removeprefix("optim.") in QUIET_OPTIM
    return section == "model" and (first in QUIET_MODEL or rest.startswith(("dist_ckpt_", "cpu_offloading_")))
