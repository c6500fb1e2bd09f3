"""What a log states beside its steps: model, layout, devices. The lines are those of the table in facts.yaml.

    using world size: 64, data-parallel-size: 1, ...       devices 64, dp 1
    CUDA capacity: NVIDIA H100 with 94.99GiB memory        device NVIDIA H100

A fact that is stated twice counts as the last one: a run that begins again may have changed it. Arguments are read by
the trainers' own readers (emit/printed.py); here they get the words of an answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scalewright.spec.base import read_yaml
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
AXES = {"data": "dp", "context": "cp", "tensor": "tp", "pipeline": "pp", "expert": "ep", "model": "tp"}
PARALLEL = re.compile(r"\b(?:(data|context|tensor|pipeline|expert)-(?:model-)?|(model)-)parallel[- ]size: (\d{1,9})")


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
    axes = {AXES[match[1] or match[2]]: int(match[3]) for match in PARALLEL.finditer(text)}
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


def _devices(text: str) -> Facts:
    """The product of `parallelism: pp=1, dp_replicate=1, dp_shard=2, cp=2, tp=1, ep=1`: experts take ranks of these."""
    axes = re.findall(r"\b(?:pp|dp|dp_replicate|dp_shard|cp|tp)=(\d{1,9})", text)
    return {"devices": math.prod(map(int, axes))} if axes else {}


NAMED = {
    "stage": "zero_stage", "zero": "zero_stage", "nl": "layers", "hs": "hidden", "mb": "micro_batch",
    "mbs": "micro_batch", "seq": "seq_len", "gb": "global_batch", "gbs": "global_batch",
    **{axis: axis for axis in ("tp", "pp", "dp", "cp", "ep")},
}  # fmt: skip


def folder(text: str) -> Facts:
    """A run's name in a path: `ds_stage2_nl32_hs4096_mb8_seq4096_gb768_pp1_tp2_fp16`, `logs/7b-tp4-pp2-mbs1`."""
    for name in re.split(r"[/\s'\"]", text[:2000]):
        parts = re.findall(r"(?:^|[_.-])([a-z]{2,5})(\d{1,9})(?=[_.-]|$)", name)
        facts: Facts = {NAMED[word]: int(size) for word, size in parts if word in NAMED}
        if len(facts) > 1:
            precision = re.search(r"[_-](fp16|bf16|fp32)\b", name)
            return facts | ({"precision": precision[1]} if precision else {})
    return {}


def _finetuned(text: str) -> Facts:
    match = re.search(r"out/(?:finetune|pretrain)/(lora-|qlora-)?([\w.-]{1,80})/", text)
    return {"model": match[2] + (" (LoRA)" if match[1] else "")} if match else {}


def _steps_per_second(text: str) -> Facts:
    """The summary at the end of a run, of Hugging Face's trainer."""
    match = re.search(r"train_steps_per_second'?\s{0,20}[:=]\s{0,20}'?(\d{1,9}(?:\.\d{1,9})?)", text)
    return {"mean_step_s": 1 / float(match[1])} if match and float(match[1]) > 0 else {}


PROGRESS = re.compile(r"\d/\d{1,12} \[[\d:]{4,12}<[\d:?]{1,12}, {1,4}(\d{1,9}(?:\.\d{1,6})?)(s/it|it/s)")


def progress(text: str) -> Facts:
    """tqdm's smoothed time of a step: `24/1752 [01:04<1:22:08,  2.88s/it]`."""
    match = PROGRESS.search(text) if "s/it" in text or "it/s" in text else None
    if match is None or not float(match[1]) > 0:
        return {}
    return {"mean_step_s": float(match[1]) if match[2] == "s/it" else 1 / float(match[1])}


def _parameters(text: str) -> Facts:
    typed = "torch.bfloat16" in text or "torch.float16" in text
    return {"precision": "bf16" if "bfloat16" in text else "fp16"} if typed else {}


READERS: dict[str, Callable[[str], Facts]] = {
    "world": _world, "parameters": _parameters, "groups": _groups, "mesh": _mesh, "devices": _devices,
    "finetuned": _finetuned, "steps_per_second": _steps_per_second,
}  # fmt: skip
AS: dict[str, Callable[[str], Any]] = {"whole": whole, "word": str, "number": float, "members": _members}


def _reader(row: Mapping[str, Any]) -> Callable[[str], Facts]:
    """What reads the lines of a row of facts.yaml."""
    if "pattern" in row:
        return _plain(row["pattern"], *row["facts"], convert=AS[row.get("as", "whole")])
    return READERS[row["read"]] if "read" in row else lambda text: dict(row["states"])


FACTS = [  # a mark -> what its line states
    (mark, _reader(row)) for row in read_yaml(Path(__file__).with_name("facts.yaml")) for mark in row["marks"]
]
PATHS = ("ds_stage", "output_dir", "tensorboard", "--save ", "--save=", "checkpoint", "log_dir", "Logging to")
AGAIN = ("- arguments -", "***** Running training *****")  # a run that begins, once more where steps came before
