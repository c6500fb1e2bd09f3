"""Arguments of trainers that a log prints: a table from their words to ours.

  tensor_model_parallel_size ........ 4                DOTTED      tp 4
--zero_stage 2                                         FLAG        zero_stage 2
Config param per_device_batch_size: 24                 CONFIG      micro_batch 24
"hidden_size": 3072,                                   JSON        hidden 3072
Building device mesh with parallelism: pp=2, tp=4      EQUALS      pp 2, tp 4
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Facts = dict[str, Any]
LAYOUT = (
    "tp", "sp", "pp", "virtual_stages", "dp", "dp_shard", "dp_replicate", "cp", "ep", "etp", "zero_stage",
    "micro_batch", "global_batch", "grad_accum", "seq_len", "precision", "recompute",
)  # fmt: skip
DIMS = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "mlp_mats", "vocab", "experts", "topk")
BLANK = ("None", "none", "null", "", "[]")


def whole(text: str) -> int | None:
    text = text.strip().replace(",", "")
    return int(text) if text.isdecimal() and len(text) < 16 else None


def word(text: str) -> str | None:
    text = text.strip().strip("'\"")
    return None if text in BLANK else text[:200]


def when(value: Any) -> Callable[[str], Any]:
    """A value that holds where the text is True or 1."""
    return lambda text: value if text.strip() in ("True", "true", "1", "yes") else None


def recomputed(text: str) -> str | None:
    return {"full": "full", "uniform": "full", "block": "full", "selective": "selective",
            "minimal": "selective", "save_nothing": "full"}.get(text.strip())  # fmt: skip


def floored(text: str) -> int | None:
    """MaxText's per_device_batch_size may be 4.0, and is below one where devices share a sequence."""
    count, _, rest = text.strip().partition(".")
    return whole(count) if set(rest) <= {"0"} else None


Read = tuple[str, Callable[[str], Any]]
ARGUMENTS: Mapping[str, Read] = {
    "world_size": ("devices", whole), "tensor_model_parallel_size": ("tp", whole),
    "pipeline_model_parallel_size": ("pp", whole), "data_parallel_size": ("dp", whole),
    "context_parallel_size": ("cp", whole), "expert_model_parallel_size": ("ep", whole),
    "expert_tensor_parallel_size": ("etp", whole), "sequence_parallel": ("sp", when(True)),
    "virtual_pipeline_model_parallel_size": ("virtual_stages", whole),
    "micro_batch_size": ("micro_batch", whole), "global_batch_size": ("global_batch", whole),
    "seq_length": ("seq_len", whole), "num_layers": ("layers", whole), "hidden_size": ("hidden", whole),
    "num_attention_heads": ("heads", whole), "num_query_groups": ("kv_heads", whole),
    "kv_channels": ("head_dim", whole), "ffn_hidden_size": ("ffn", whole),
    "padded_vocab_size": ("vocab", whole), "num_experts": ("experts", whole),
    "moe_router_topk": ("topk", whole), "swiglu": ("mlp_mats", when(3)),
    "bf16": ("precision", when("bf16")), "fp16": ("precision", when("fp16")),
    "recompute_granularity": ("recompute", recomputed),
    "checkpoint_activations": ("recompute", when("full")),
    "activations_checkpoint_method": ("recompute", recomputed), "zero_stage": ("zero_stage", whole),
    "use_distributed_optimizer": ("zero_stage", when(1)), "train_batch_size": ("global_batch", whole),
    "train_micro_batch_size_per_gpu": ("micro_batch", whole),
    "per_device_train_batch_size": ("micro_batch", whole),
    "gradient_accumulation_steps": ("grad_accum", whole), "max_seq_len": ("seq_len", whole),
    "max_target_length": ("seq_len", whole), "per_device_batch_size": ("micro_batch", floored),
    "model_name_or_path": ("model", word), "model_name": ("model", word),
    "remat_policy": ("recompute", recomputed), "num_devices": ("devices", whole),
    "intermediate_size": ("ffn", whole), "num_hidden_layers": ("layers", whole),
    "num_key_value_heads": ("kv_heads", whole), "vocab_size": ("vocab", whole),
    "ici_tensor_parallelism": ("tp", whole), "pp": ("pp", whole), "tp": ("tp", whole), "cp": ("cp", whole),
    "dp": ("dp", whole), "ep": ("ep", whole), "etp": ("etp", whole), "dp_shard": ("dp_shard", whole),
    "dp_replicate": ("dp_replicate", whole), "microbatches": ("grad_accum", whole),
}  # fmt: skip
DOTTED = re.compile(r"(\w{1,80}) \.{3,200} ?([^\n]{0,300})")
FLAG = re.compile(r"--([\w-]{1,80})[ =](?!--)(\S{1,300})")
CONFIG = re.compile(r"Config param (\w{1,80}): ([^\n]{0,300})")
JSON = re.compile(r'"(\w{1,80})": "?([\w./-]{1,200})"?,?$')
EQUALS = re.compile(r"\b(\w{1,40})=(\d{1,12})\b")
PARALLEL = re.compile(r"\b(data|context|tensor|pipeline|expert)-(?:model-)?parallel[- ]size: (\d{1,9})")


def arguments(pattern: re.Pattern[str]) -> Callable[[str], Facts]:
    """Reads each argument that the pattern matches; dashes in a name count as underscores."""

    def read(text: str) -> Facts:
        facts: Facts = {}
        for match in pattern.finditer(text):
            key, convert = ARGUMENTS.get(match[1].replace("-", "_"), ("", word))
            if key and (value := convert(match[2])) is not None:
                facts[key] = value
        return facts

    return read
