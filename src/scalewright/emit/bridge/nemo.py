"""NeMo 1's YAML for GPT as Megatron's arguments: `trainer`, `model`, `model.optim`, `model.data`.

    trainer.devices x trainer.num_nodes       ranks
    model.activation fast-swiglu              swiglu
    model.bias false                          disable-bias-linear
    model.optim.name mcore_distributed_optim  use-distributed-optimizer
    model.optim.sched CosineAnnealing         lr-decay-style cosine; constant_steps come off its decay

Keys: examples/nlp/language_modeling/conf/megatron_gpt_config.yaml of NeMo, 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.emit.bridge.fields import precision_of
from scalewright.emit.bridge.interpolation import resolve
from scalewright.emit.bridge.nemo_words import DISTRIBUTED, GATED, NAMES, NORMS, OURS, SHARDED, is_quiet
from scalewright.emit.emitted import Reading
from scalewright.emit.megatron.model import VOCABULARIES, Arguments
from scalewright.emit.megatron.read import read_arguments
from scalewright.emit.megatron.words import ASIDE
from scalewright.emit.numbers import whole
from scalewright.emit.rules import put
from scalewright.emit.theirs import Theirs
from scalewright.spec.presets import is_preset, load_model_spec
from scalewright.spec.question import Unread
from scalewright.spec.text.dotted import flat


def read_nemo(document: Mapping[str, Any]) -> Reading:
    """A NeMo 1 configuration as a run."""
    values = flat(resolve(document))
    arguments: Arguments = {
        flag: values[key] for key, flag in NAMES.items() if values.get(key) not in (None, False)
    }
    names = {flag: key for key, flag in NAMES.items()}
    taken = set(NAMES)
    for part in (_network, _optimizer, _precision, _data):
        arguments |= part(values, taken)
    if "num-query-groups" in arguments:
        arguments["group-query-attention"] = True
    theirs = Theirs(arguments, ASIDE)
    theirs.assume("what is silent here has the defaults of Megatron-LM, which NeMo's classes share")
    world = _ranks(values, taken)
    run = read_arguments(theirs, world)
    if (mask := values.get("model.data.reset_attention_mask")) is not None:
        put(run, "data.document_mask", bool(mask))
    if (kind := OURS.get(str(values.get("model.activation")))) is not None:
        run["model"]["mlp_type"] = kind
    unread = [Unread(names.get(key, key), value, why) for key, value, why in theirs.unread()]
    unread += [
        Unread(key, value, "not a setting that a run of ours has")
        for key, value in values.items()
        if key not in taken and not is_quiet(key, value)
    ]
    return Reading("megatron-bridge", run, tuple(unread), tuple(theirs.assumed), theirs.guessed)


def _network(values: dict[str, Any], taken: set[str]) -> Arguments:
    taken |= {
        "model.normalization",
        "model.activation",
        "model.bias",
        "model.share_embeddings_and_output_weights",
    }
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


def _optimizer(values: dict[str, Any], taken: set[str]) -> Arguments:
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
        written |= {
            "use-megatron-fsdp": True,
            "data-parallel-sharding-strategy": SHARDED.get(strategy, strategy),
        }
    shape = values.get("model.optim.sched.name", "CosineAnnealing")
    if shape != "CosineAnnealing":
        written["lr-decay-style"] = str(shape)
    constant, steps = values.get("model.optim.sched.constant_steps"), values.get("trainer.max_steps")
    if constant and isinstance(steps, int):
        written["lr-decay-iters"] = steps - whole(constant)
    return written


def _precision(values: dict[str, Any], taken: set[str]) -> Arguments:
    taken |= {"trainer.precision", "model.fp8", "model.fp8_e4m3", "model.fp8_hybrid"}
    written = precision_of(str(values.get("trainer.precision", "bf16")))
    if values.get("model.fp8"):
        written |= {"fp8-format": "e4m3" if values.get("model.fp8_e4m3") else "hybrid"}
    return written


def _data(values: dict[str, Any], taken: set[str]) -> Arguments:
    taken |= {"model.data.data_prefix", "model.data.data_prefix.train", "model.data.data_prefix.validation"}
    written: Arguments = {}
    train = values.get("model.data.data_prefix", values.get("model.data.data_prefix.train"))
    if train not in (None, "???"):
        written["data-path"] = train
    if (valid := values.get("model.data.data_prefix.validation")) is not None:
        written["valid-data-path"] = valid
    if (
        length := values.get("model.data.seq_length")
    ) is not None and "model.encoder_seq_length" not in values:
        written["seq-length"] = length
    return written


def _ranks(values: dict[str, Any], taken: set[str]) -> int | None:
    taken |= {"trainer.devices", "trainer.num_nodes"}
    devices, nodes = values.get("trainer.devices"), values.get("trainer.num_nodes", 1)
    sizes = [int(values.get(f"model.{axis}_parallel_size") or 1)
             for axis in ("tensor_model", "pipeline_model", "context")]  # fmt: skip
    if not isinstance(devices, int) or not isinstance(nodes, int) or devices < 1 or nodes < 1:
        return None
    world = devices * nodes
    return world if world % (sizes[0] * sizes[1] * sizes[2]) == 0 else None
