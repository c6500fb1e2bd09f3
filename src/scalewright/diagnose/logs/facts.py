"""What a log states beside its steps: model, layout, devices. A table of lines.

    using world size: 64, data-parallel-size: 1, ...       devices 64, dp 1
    CUDA capacity: NVIDIA H100 with 94.99GiB memory        device NVIDIA H100

A fact that is stated twice counts as the last one: a run that begins again may have changed it. Arguments are read by
the trainers' own readers (emit/printed.py); here they get the words of an answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from scalewright.spec.common.formatting import flat
from scalewright.spec.model import GATED
from scalewright.spec.question import Question

Facts = dict[str, Any]
LAYOUT = (
    "tp", "sp", "pp", "virtual_stages", "dp", "dp_shard", "dp_replicate", "cp", "ep", "etp", "zero_stage",
    "micro_batch", "global_batch", "grad_accum", "seq_len", "precision", "recompute",
)  # fmt: skip
DIMS = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "mlp_mats", "vocab", "experts", "topk")
SHORT = {  # keys of a run -> these words
    "model.num_hidden_layers": "layers", "model.hidden_size": "hidden", "model.num_attention_heads": "heads",
    "model.num_key_value_heads": "kv_heads", "model.head_dim": "head_dim", "model.intermediate_size": "ffn",
    "model.vocab_size": "vocab", "model.mlp_type": "mlp_mats", "model.moe.num_experts": "experts",
    "model.moe.top_k": "topk", "model.moe.moe_intermediate_size": "ffn", "model.name": "model",
    "data.seq_len": "seq_len", "layout.accumulation": "grad_accum",
    **{f"layout.{key}": key for key in ("devices", *LAYOUT)},
}  # fmt: skip
AXES = {"data": "dp", "context": "cp", "tensor": "tp", "pipeline": "pp", "expert": "ep"}
PARALLEL = re.compile(r"\b(data|context|tensor|pipeline|expert)-(?:model-)?parallel[- ]size: (\d{1,9})")


def short(arguments: Mapping[str, Any]) -> Facts:
    """Dotted keys of a run in the words of facts; a gated MLP has three matrices, a plain one two."""
    facts = {SHORT[key]: value for key, value in arguments.items() if key in SHORT}
    if "mlp_mats" in facts:
        facts["mlp_mats"] = 3 if facts["mlp_mats"] in GATED else 2
    return facts


def facts_of(run: Question) -> Facts:
    """A whole run as facts, but for its name and what was only guessed."""
    layout = {**run.layout.dump(), "dp": run.layout.dp}
    left_out = {*run.guessed, *(() if run.model.moe else ("ep", "etp"))}
    known = {key: layout[key] for key in layout.keys() - left_out if isinstance(layout[key], (int, str))}
    keys = flat({"model": run.model.dump(), "layout": known, "data": {"seq_len": run.seq_len}})
    return short({key: value for key, value in keys.items() if value is not None and key != "model.name"})


def whole(text: str) -> int | None:
    text = text.strip().replace(",", "")
    return int(text) if text.isdecimal() and len(text) < 16 else None


def _plain(pattern: str, *keys: str, convert: Callable[[str], Any] = whole) -> Callable[[str], Facts]:
    """Reads the groups of a pattern as these facts; a group that took no part, or isn't one, is left out."""
    compiled = re.compile(pattern)

    def read(text: str) -> Facts:
        match = compiled.search(text)
        groups = zip(keys, match.groups(), strict=True) if match else ()
        return {key: value for key, group in groups if group is not None and (value := convert(group)) is not None}

    return read


def _members(text: str) -> int:
    """How many ranks a list has: `0, 8, 16`."""
    return text.count(",") + 1


def _world(text: str) -> Facts:
    axes = {AXES[match[1]]: int(match[2]) for match in PARALLEL.finditer(text)}
    return _plain(r"world size: (\d{1,9})", "devices")(text) | axes


def _groups(text: str) -> Facts:
    """The size of an axis from the ranks of its first group: NeMo prints them all."""
    match = re.search(r"All (tensor|pipeline|context|expert) (?:model )?parallel group ranks: \[\[([\d, ]*)\]", text)
    return {AXES[match[1]]: _members(match[2])} if match else {}


def _mesh(text: str) -> Facts:
    """`Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]`, of torchtitan; `dp` was the shards then."""
    match = re.search(r"-D device mesh with \[([\w', ]{1,200})\], \[([\d, ]{1,100})\]", text)
    if match is None:
        return {}
    names, sizes = re.findall(r"\w+", match[1]), [int(size) for size in match[2].split(",") if size.strip()]
    axes = {name: size for name, size in zip(names, sizes, strict=False) if name in LAYOUT}
    return {"devices": math.prod(sizes)} | axes


def _folder(text: str) -> Facts:
    """A checkpoint's name of Megatron-DeepSpeed: `ds_stage2_nl32_hs4096_mb8_seq4096_gb768_pp1_tp2_fp16`."""
    keys = {"stage": "zero_stage", "nl": "layers", "hs": "hidden", "mb": "micro_batch", "seq": "seq_len",
            "gb": "global_batch", "pp": "pp", "tp": "tp"}  # fmt: skip
    name = text[text.find("ds_stage") + 3 :].split("/")[0].split(" ")[0]
    parts = (re.fullmatch(r"([a-z]+)(\d{1,9})", part) for part in name.split("_"))
    facts: Facts = {keys[part[1]]: int(part[2]) for part in parts if part and part[1] in keys}
    precision = re.search(r"_(fp16|bf16|fp32)\b", name)
    return facts | ({"precision": precision[1]} if precision else {})


def _finetuned(text: str) -> Facts:
    match = re.search(r"out/(?:finetune|pretrain)/(lora-|qlora-)?([\w.-]{1,80})/", text)
    return {"model": match[2] + (" (LoRA)" if match[1] else "")} if match else {}


def _steps_per_second(text: str) -> Facts:
    """The summary at the end of a run, of Hugging Face's trainer."""
    match = re.search(r"train_steps_per_second'?\s{0,20}[:=]\s{0,20}'?(\d{1,9}(?:\.\d{1,9})?)", text)
    return {"mean_step_s": 1 / float(match[1])} if match and float(match[1]) > 0 else {}


PROGRESS = re.compile(r"\d/\d{1,12} \[[\d:]{4,12}<[\d:?]{1,12}, {1,4}(\d{1,9}(?:\.\d{1,6})?)(s/it|it/s)")


def _progress(text: str) -> Facts:
    """tqdm's smoothed time of a step: `24/1752 [01:04<1:22:08,  2.88s/it]`."""
    match = PROGRESS.search(text)
    if match is None or not float(match[1]) > 0:
        return {}
    return {"mean_step_s": float(match[1]) if match[2] == "s/it" else 1 / float(match[1])}


FACTS: tuple[tuple[str, Callable[[str], Facts]], ...] = (  # a mark -> what its line states
    ('"transformers_version": ', _plain(r'"transformers_version": "([\w.+-]{1,40})"', "version", convert=str.strip)),
    ("world size: ", _world),
    (" for parameters ", lambda text: {"precision": "bf16" if "bfloat16" in text else "fp16"}
     if "torch.bfloat16" in text or "torch.float16" in text else {}),
    (" to constant ", _plain(r"number of micro-?batches to constant (\d{1,9})", "grad_accum")),
    ("tensor model parallel with size ", _plain(r"parallel with size (\d{1,9})", "tp")),
    ("pipeline model parallel with size ", _plain(r"parallel with size (\d{1,9})", "pp")),
    ("parallel group ranks: [[", _groups),
    ("has data parallel group", _plain(r"has data parallel group ?: \[([\d, ]*)\]", "dp", convert=_members)),
    (", MEMBER: ", _plain(r", MEMBER: \d+/(\d{1,9})", "devices")),
    ("raining starts at step ", _plain(
        r"local batch size:? (\d{1,9}).{1,40}global batch size:? (\d{1,9}).{1,60}sequence length:? (\d{1,9})",
        "micro_batch", "global_batch", "seq_len")),
    ("-D device mesh with ", _mesh),
    ("Building ", _plain(r"Building (\w{2,40} \d[\w.]{0,20}) with ", "model", convert=str)),
    (" activation checkpointing to the model",
     _plain(r"Applied (full|selective) activation checkpointing", "recompute", convert=str)),
    ("Applied FSDP to the model", lambda text: {"zero_stage": 3}),
    ("Float8 training active", lambda text: {"precision": "fp8"}),
    ("NVIDIA ", _plain(
        r"(NVIDIA (?:GeForce )?[A-Z][\w-]{1,30}(?: \d{1,4}GB| HBM\d\w?| PCIe| NVL| SXM\d){0,3})\b",
        "device", convert=str)),
    ("on TPU_", _plain(r"on TPU_(\d{1,6})\(", "device_index")),
    ("Instantaneous batch size per device", _plain(r"per device = ([\d,]{1,12})", "micro_batch")),
    ("Total train batch size (w.", _plain(r"accumulation\) = ([\d,]{1,12})", "global_batch")),
    ("Gradient Accumulation steps", _plain(r"steps = ([\d,]{1,12})", "grad_accum")),
    ("ds_stage", _folder),
    ("out/finetune/", _finetuned),
    ("out/pretrain/", _finetuned),
    ("s/it", _progress),
    ("it/s", _progress),
    ("train_steps_per_second", _steps_per_second),
    ("DeepSpeed info: version=", _plain(r"version=([\w.+-]{1,40})", "version", convert=str.strip)),
)  # fmt: skip
AGAIN = ("- arguments -", "***** Running training *****")  # a run that begins, once more where steps came before
