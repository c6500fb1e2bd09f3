"""What a log states beside its steps: model, layout, devices. A table of lines and one of arguments.

    using world size: 64, data-parallel-size: 1, ...       PLAIN       devices 64, dp 1
      tensor_model_parallel_size ........ 4                ARGUMENTS   tp 4
    --zero_stage 2                                         ARGUMENTS   zero_stage 2
    Config param per_device_batch_size: 24                 ARGUMENTS   micro_batch 24

A fact that is stated twice counts as the last one: a run that begins again may have changed it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Facts = dict[str, Any]
LAYOUT = ("tp", "sp", "pp", "virtual_stages", "dp", "dp_shard", "dp_replicate", "cp", "ep", "etp", "zero_stage",
          "micro_batch", "global_batch", "grad_accum", "seq_len", "precision", "recompute")  # fmt: skip
DIMS = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "mlp_mats", "vocab", "experts", "topk")
BLANK = ("None", "none", "null", "", "[]")


def _whole(text: str) -> int | None:
    text = text.strip().replace(",", "")
    return int(text) if text.isdecimal() and len(text) < 16 else None


def _word(text: str) -> str | None:
    text = text.strip().strip("'\"")
    return None if text in BLANK else text[:200]


def _when(value: Any) -> Callable[[str], Any]:
    """A value that holds where the text is True or 1."""
    return lambda text: value if text.strip() in ("True", "true", "1", "yes") else None


def _recompute(text: str) -> str | None:
    return {"full": "full", "uniform": "full", "block": "full", "selective": "selective",
            "minimal": "selective", "save_nothing": "full"}.get(text.strip())  # fmt: skip


def _floored(text: str) -> int | None:
    """MaxText's per_device_batch_size may be 4.0, and is below one where devices share a sequence."""
    whole, _, rest = text.strip().partition(".")
    return _whole(whole) if set(rest) <= {"0"} else None


Read = tuple[str, Callable[[str], Any]]
ARGUMENTS: Mapping[str, Read] = {
    "world_size": ("devices", _whole), "tensor_model_parallel_size": ("tp", _whole),
    "pipeline_model_parallel_size": ("pp", _whole), "data_parallel_size": ("dp", _whole),
    "context_parallel_size": ("cp", _whole), "expert_model_parallel_size": ("ep", _whole),
    "expert_tensor_parallel_size": ("etp", _whole), "sequence_parallel": ("sp", _when(True)),
    "virtual_pipeline_model_parallel_size": ("virtual_stages", _whole), "micro_batch_size": ("micro_batch", _whole),
    "global_batch_size": ("global_batch", _whole), "seq_length": ("seq_len", _whole),
    "num_layers": ("layers", _whole), "hidden_size": ("hidden", _whole), "num_attention_heads": ("heads", _whole),
    "num_query_groups": ("kv_heads", _whole), "kv_channels": ("head_dim", _whole),
    "ffn_hidden_size": ("ffn", _whole), "padded_vocab_size": ("vocab", _whole), "num_experts": ("experts", _whole),
    "moe_router_topk": ("topk", _whole), "swiglu": ("mlp_mats", _when(3)), "bf16": ("precision", _when("bf16")),
    "fp16": ("precision", _when("fp16")), "recompute_granularity": ("recompute", _recompute),
    "checkpoint_activations": ("recompute", _when("full")), "activations_checkpoint_method": ("recompute", _recompute),
    "zero_stage": ("zero_stage", _whole), "use_distributed_optimizer": ("zero_stage", _when(1)),
    "train_batch_size": ("global_batch", _whole), "train_micro_batch_size_per_gpu": ("micro_batch", _whole),
    "per_device_train_batch_size": ("micro_batch", _whole), "gradient_accumulation_steps": ("grad_accum", _whole),
    "max_seq_len": ("seq_len", _whole), "max_target_length": ("seq_len", _whole),
    "per_device_batch_size": ("micro_batch", _floored), "model_name_or_path": ("model", _word),
    "model_name": ("model", _word), "remat_policy": ("recompute", _recompute), "num_devices": ("devices", _whole),
    "intermediate_size": ("ffn", _whole), "num_hidden_layers": ("layers", _whole),
    "num_key_value_heads": ("kv_heads", _whole), "vocab_size": ("vocab", _whole),
    "ici_tensor_parallelism": ("tp", _whole), "pp": ("pp", _whole), "tp": ("tp", _whole), "cp": ("cp", _whole),
    "dp": ("dp", _whole), "ep": ("ep", _whole), "etp": ("etp", _whole), "dp_shard": ("dp_shard", _whole),
    "dp_replicate": ("dp_replicate", _whole), "microbatches": ("grad_accum", _whole),
}  # fmt: skip
DOTTED = re.compile(r"(\w{1,80}) \.{3,200} ?([^\n]{0,300})")
FLAG = re.compile(r"--([\w-]{1,80})[ =](?!--)(\S{1,300})")
CONFIG = re.compile(r"Config param (\w{1,80}): ([^\n]{0,300})")
JSON = re.compile(r'"(\w{1,80})": "?([\w./-]{1,200})"?,?$')
EQUALS = re.compile(r"\b(\w{1,40})=(\d{1,12})\b")
PARALLEL = re.compile(r"\b(data|context|tensor|pipeline|expert)-(?:model-)?parallel[- ]size: (\d{1,9})")


def _arguments(pattern: re.Pattern[str]) -> Callable[[str], Facts]:
    """Reads each argument that the pattern matches; dashes in a name count as underscores."""

    def read(text: str) -> Facts:
        facts: Facts = {}
        for match in pattern.finditer(text):
            key, convert = ARGUMENTS.get(match[1].replace("-", "_"), ("", _word))
            if key and (value := convert(match[2])) is not None:
                facts[key] = value
        return facts

    return read


def _plain(pattern: str, *keys: str, convert: Callable[[str], Any] = _whole) -> Callable[[str], Facts]:
    """Reads the groups of a pattern as these facts; a group that took no part is left out."""
    compiled = re.compile(pattern)

    def read(text: str) -> Facts:
        match = compiled.search(text)
        groups = zip(keys, match.groups(), strict=True) if match else ()
        return {key: value for key, group in groups if group and (value := convert(group)) is not None}

    return read


def _world(text: str) -> Facts:
    axes = {"data": "dp", "context": "cp", "tensor": "tp", "pipeline": "pp", "expert": "ep"}
    return _plain(r"world size: (\d{1,9})", "devices")(text) | {
        axes[match[1]]: int(match[2]) for match in PARALLEL.finditer(text)
    }


def _groups(text: str) -> Facts:
    """The size of an axis from the ranks of its first group: NeMo prints them all."""
    match = re.search(r"All (tensor|pipeline|context|expert) (?:model )?parallel group ranks: \[\[([\d, ]*)\]", text)
    axes = {"tensor": "tp", "pipeline": "pp", "context": "cp", "expert": "ep"}
    return {axes[match[1]]: match[2].count(",") + 1} if match else {}


def _data_group(text: str) -> Facts:
    match = re.search(r"has data parallel group ?: \[([\d, ]*)\]", text)
    return {"dp": match[1].count(",") + 1} if match else {}


def _mesh(text: str) -> Facts:
    """`Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]`, of torchtitan; `dp` was the shards then."""
    match = re.search(r"-D device mesh with \[([\w', ]{1,200})\], \[([\d, ]{1,100})\]", text)
    if match is None:
        return {}
    names, sizes = re.findall(r"\w+", match[1]), [int(size) for size in match[2].split(",") if size.strip()]
    devices = 1
    for size in sizes:
        devices *= size
    return {"devices": devices} | {
        name: size for name, size in zip(names, sizes, strict=False) if name in LAYOUT
    }


def _folder(text: str) -> Facts:
    """A checkpoint's name of Megatron-DeepSpeed: `ds_stage2_nl32_hs4096_mb8_seq4096_gb768_pp1_tp2_fp16`."""
    keys = {"stage": "zero_stage", "nl": "layers", "hs": "hidden", "mb": "micro_batch", "seq": "seq_len",
            "gb": "global_batch", "pp": "pp", "tp": "tp"}  # fmt: skip
    name = text[text.find("ds_stage") + 3 :].split("/")[0].split(" ")[0]
    parts = (re.fullmatch(r"([a-z]+)(\d{1,9})", part) for part in name.split("_"))
    facts: Facts = {keys[part[1]]: int(part[2]) for part in parts if part and part[1] in keys}
    precision = re.search(r"_(fp16|bf16|fp32)\b", name)
    return facts | ({"precision": precision[1]} if precision else {})


def _titan_checkpointing(text: str) -> Facts:
    match = re.search(r"Applied (full|selective) activation checkpointing", text)
    return {"recompute": match[1]} if match else {}


def _titan_model(text: str) -> Facts:
    """`Building llama3 8B with TransformerModelArgs(...)`."""
    match = re.search(r"Building (\w{2,40} \d[\w.]{0,20}) with ", text)
    return {"model": match[1]} if match else {}


def _finetuned(text: str) -> Facts:
    match = re.search(r"out/(?:finetune|pretrain)/(lora-|qlora-)?([\w.-]{1,80})/", text)
    return {"model": match[2] + (" (LoRA)" if match[1] else "")} if match else {}


def _tpu(text: str) -> Facts:
    match = re.search(r"on TPU_(\d{1,6})\(", text)
    return {"device_index": int(match[1])} if match else {}


def _nvidia(text: str) -> Facts:
    match = re.search(r"(NVIDIA (?:GeForce )?[A-Z][\w-]{1,30}(?: \d{1,4}GB| HBM\d\w?| PCIe| NVL| SXM\d){0,3})\b", text)
    return {"device": match[1]} if match else {}


class Fact(NamedTuple):
    """A kind of line: its mark in bytes, and what it states."""

    mark: bytes
    read: Callable[[str], Facts]


FACTS: tuple[Fact, ...] = (
    Fact(b" ....", _arguments(DOTTED)),
    Fact(b"--tensor-model-parallel-size ", _arguments(FLAG)),
    Fact(b"--model_name_or_path ", _arguments(FLAG)),
    Fact(b"--per_device_train_batch_size ", _arguments(FLAG)),
    Fact(b"Config param ", _arguments(CONFIG)),
    Fact(b'"hidden_size": ', _arguments(JSON)),
    Fact(b'"num_hidden_layers": ', _arguments(JSON)),
    Fact(b'"num_attention_heads": ', _arguments(JSON)),
    Fact(b'"num_key_value_heads": ', _arguments(JSON)),
    Fact(b'"intermediate_size": ', _arguments(JSON)),
    Fact(b'"vocab_size": ', _arguments(JSON)),
    Fact(b'"transformers_version": ', _plain(r'"transformers_version": "([\w.+-]{1,40})"', "version", convert=_word)),
    Fact(b"arallelism: ", _arguments(EQUALS)),
    Fact(b"world size: ", _world),
    Fact(b" for parameters ", lambda text: {"precision": "bf16" if "bfloat16" in text else "fp16"}
         if "torch.bfloat16" in text or "torch.float16" in text else {}),
    Fact(b" to constant ", _plain(r"number of micro-?batches to constant (\d{1,9})", "grad_accum")),
    Fact(b"model parallel with size ", lambda text: _plain(r"tensor model parallel with size (\d{1,9})", "tp")(text)
         | _plain(r"pipeline model parallel with size (\d{1,9})", "pp")(text)),
    Fact(b"parallel group ranks: [[", _groups),
    Fact(b"has data parallel group", _data_group),
    Fact(b", MEMBER: ", _plain(r", MEMBER: \d+/(\d{1,9})", "devices")),
    Fact(b"raining starts at step ", _plain(
        r"local batch size:? (\d{1,9}).{1,40}global batch size:? (\d{1,9}).{1,60}sequence length:? (\d{1,9})",
        "micro_batch", "global_batch", "seq_len")),
    Fact(b"-D device mesh with ", _mesh),
    Fact(b"Building ", _titan_model),
    Fact(b" activation checkpointing to the model", _titan_checkpointing),
    Fact(b"Applied FSDP to the model", lambda text: {"zero_stage": 3}),
    Fact(b"Float8 training active", lambda text: {"precision": "fp8"}),
    Fact(b"NVIDIA ", _nvidia),
    Fact(b"on TPU_", _tpu),
    Fact(b"Instantaneous batch size per device", _plain(r"per device = ([\d,]{1,12})", "micro_batch")),
    Fact(b"Total train batch size (w.", _plain(r"accumulation\) = ([\d,]{1,12})", "global_batch")),
    Fact(b"Gradient Accumulation steps", _plain(r"steps = ([\d,]{1,12})", "grad_accum")),
    Fact(b"ds_stage", _folder),
    Fact(b"out/finetune/", _finetuned),
    Fact(b"out/pretrain/", _finetuned),
    Fact(b"DeepSpeed info: version=", _plain(r"version=([\w.+-]{1,40})", "version", convert=_word)),
)  # fmt: skip
AGAIN = (b"- arguments -", b"***** Running training *****")  # a run that begins, once more where steps came before
