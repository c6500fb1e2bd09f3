"""Rows of a table of measured runs as requests: the columns' conventions, and what a blank cell stands for.

    id, framework, model, layers, hidden, ..., tp, pp, mbs, gbs, ... --> Request (+ what was assumed), or
    why not

A blank is filled by the rules of the table's own notes (vocabulary 51,200, heads of 128, micro-batch 1 with a
pipeline, ...) and each is named in `assumed`. `source` and `id` are never looked at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from scalewright.plan.chips import Chip, chip_of
from scalewright.plan.frameworks import Framework, find_framework
from scalewright.plan.request import SCHEDULES, Request, auto_precision
from scalewright.spec.cluster import load_cluster
from scalewright.spec.errors import UserError, unknown
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import is_preset, load_model_spec
from scalewright.spec.shapes import new_preset
from scalewright.spec.tensors import count

ZERO = {"none": 0, "ddp": 0, "zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3, "0": 0,
"1": 1,
        "2": 2, "3": 3}  # fmt: skip
WHOLE = ("ici_fsdp", "slices", "etp")
NUMBERS = (*WHOLE, "node_gbps", "power_w", "capacity")
BLANKS = ("", "unknown", "none", "null")  # as is "nan"


class Blanks(list[str]):
    """The assumptions made for one row."""

    def fill(self, row: Mapping[str, Any], key: str, value: int, why: str = "") -> int:
        """The cell as a whole number, or `value`, noted."""
        found = number(row, key)
        if found is not None:
            return int(found)
        self.append(f"{key} {value}" + (f" ({why})" if why else ""))
        return value


def number(row: Mapping[str, Any], key: str) -> float | None:
    """A cell as a number; None for a blank. Raises UserError for anything else."""
    text = row.get(key)
    if text is None or text == "":
        return None
    try:
        value = float(text)
    except (TypeError, ValueError):
        if str(text).strip().lower() in BLANKS:
            return None
        raise UserError(f"{key} is {text!r}", "row", "give a number, or leave it blank") from None
    if value != value and isinstance(text, str):
        return None  # "nan" is how some tables write a blank
    if not math.isfinite(value) or value < 0 or value > 1e15:
        raise UserError(f"{key} is {text}", "row", "give a finite number of a sensible size")
    return value


def text(row: Mapping[str, Any], key: str) -> str:
    """A cell as text; "" for a blank."""
    value = row.get(key)
    return "" if value is None else str(value).strip()


def request_of(row: Mapping[str, Any]) -> Request:
    """The request of a row; raises UserError with the reason where the row can't be expressed."""
    _check_sizes(row)
    assumed = Blanks()
    options = read_options(text(row, "options"))
    model = _model(row, assumed)
    framework = find_framework(text(row, "framework") or "unknown", text(row, "software_version") or None)
    if not framework.known:
        assumed.append("framework (not known: its date's usual trainer)")
    chip = _chip(text(row, "device"), options.get("node_gbps"))
    seq = assumed.fill(row, "seq", 4096 if model.context >= 4096 else model.context)
    sizes = _layout(row, framework, chip.kind, assumed, options)
    _check_layout(model, sizes, seq)
    precision = text(row, "precision").lower() or ("fp16" if framework.year < 2022 else "bf16")
    if not text(row, "precision"):
        assumed.append(f"precision {precision}")
    precision = auto_precision(chip, precision)
    chip.peak(precision)  # raises when the device can't
    recompute = _recompute(text(row, "recompute").lower(), framework)
    if recompute == "unknown":
        assumed.append("recompute (the least that fits)")
    flash = {"1": True, "0": False, "true": True, "false": False}.get(text(row, "flash").lower())
    if flash is None and framework.attention in ("unfused", "softmax"):
        assumed.append("flash 0 (the trainer's default of its date)")
    chunks = int(sizes["chunks"])
    schedule = options.get("schedule", "").lower().replace("_", "-") or (
        "interleaved" if chunks > 1 else "1f1b"
    )
    if schedule not in SCHEDULES:
        raise unknown("schedule", schedule, SCHEDULES, "row")
    return Request(
        model, chip, framework, precision, seq, int(sizes["devices"]), int(sizes["tp"]), bool(sizes["sp"]),
        int(sizes["pp"]), chunks, schedule, int(sizes["cp"]), "ring", int(sizes["ep"]), int(sizes["etp"]),
        int(sizes["replicate"]), int(sizes["zero"]), int(sizes["micro_batch"]), sizes["micros"], recompute,
        1.0, "all" if "offload" in text(row, "framework").lower() else "none", None, flash, options,
        tuple(assumed),
    )  # fmt: skip


# The largest that a cell may say: beyond it is a slip of the pen.
MOST = {
    "layers": 2000, "hidden": 10**6, "heads": 10**5, "kv_heads": 10**5, "head_dim": 10**5, "ffn": 10**7,
    "vocab": 10**8, "seq": 10**8, "experts": 10**5, "topk": 10**4, "n_devices": 10**7, "mbs": 10**6,
    "gbs": 10**9, "vpp": 10**4, "tp": 10**5, "pp": 10**5, "cp": 10**5, "ep": 10**5,
}  # fmt: skip


def _check_sizes(row: Mapping[str, Any]) -> None:
    """Raises UserError for a size that is no whole number between what it may be at least and at most."""
    for key, most in MOST.items():
        value = number(row, key)
        least = 0 if key in ("experts", "topk", "vpp") else 1
        if value is not None and (value != int(value) or not least <= value <= most):
            raise UserError(f"{key} is {value:g}", "row", f"give a whole number from {least} to {most}")


def _check_layout(model: ModelSpec, sizes: Mapping[str, float], seq: int) -> None:
    """Raises UserError for a layout that the model can't be cut into."""
    layers, heads = model.num_hidden_layers, model.num_attention_heads
    if sizes["pp"] > layers:
        raise UserError(f"pp {sizes['pp']:g} is more than {layers} layers", "row", f"use pp {layers} or less")
    if sizes["tp"] > heads:
        raise UserError(f"tp {sizes['tp']:g} is more than {heads} heads", "row", f"use tp {heads} or less")
    if sizes["cp"] > seq:
        raise UserError(f"cp {sizes['cp']:g} is more than {seq} tokens", "row", "use a smaller cp")
    experts = model.moe.num_experts if model.moe else 1
    if sizes["ep"] > experts:
        raise UserError(
            f"ep {sizes['ep']:g} is more than {experts} experts", "row", f"use ep {experts} or less"
        )


def read_options(cell: str) -> dict[str, str]:
    """`key=value;key=value` as a dict; raises UserError where a number isn't one."""
    found: dict[str, str] = {}
    for part in cell.split(";"):
        key, _, word = part.partition("=")
        if key.strip():
            found[key.strip()] = word.strip()
    for key in NUMBERS:
        value = number(found, key) if key in found else 1.0
        if value is None or value <= 0 or (key in WHOLE and value != int(value)):
            raise UserError(f"option {key} is '{found[key]}'", "row", "give a number above 0")
    return found


def has_no_layout(row: Mapping[str, Any]) -> bool:
    """Whether the row says nothing of how the run was split."""
    return not any(text(row, key) for key in ("dp", "tp", "pp"))


@lru_cache(maxsize=512)
def _chip(device: str, gbps: str | None) -> Chip:
    if not device:
        raise UserError("no device is given", "row", "fill the column `device`")
    return chip_of(load_cluster(device), float(gbps) if gbps else None)


# -- the model ------------------------------------------------------------------------------------


def _model(row: Mapping[str, Any], assumed: Blanks) -> ModelSpec:
    keys = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "mlp_mats", "vocab", "experts",
    "topk",
            "params_b", "seq")  # fmt: skip
    cells = tuple(number(row, key) for key in keys)
    model, notes = _build(text(row, "model"), cells)
    assumed += notes
    return model


def known_name(name: str) -> str:
    """A published name as presets write it: `Llama-3-70B (truncated to 12 layers)` -> `llama-3-70b`."""
    plain = re.sub(r"\(.*?\)", "", name).strip().lower().replace(" ", "-").replace("_", "-")
    return re.sub(r"^llama-?(\d)", r"llama-\1", plain)


@lru_cache(maxsize=4096)
def _build(name: str, cells: tuple[float | None, ...]) -> tuple[ModelSpec, tuple[str, ...]]:
    """A model of a name and the cells of its dims; what is blank is taken from the name, else assumed."""
    layers, hidden, heads, kv, head_dim, ffn, mats, vocab, experts, top_k, billions, seq = cells
    found = _preset(known_name(name))
    if found is not None and (hidden is None or int(hidden) == found.hidden_size):
        changes: dict[str, Any] = {"context": int(seq or found.context)}
        if layers:
            changes["num_hidden_layers"] = int(layers)
        if vocab:
            changes["vocab_size"] = int(vocab)
        notes = () if hidden else (f"dims of {found.name} (from the model's name)",)
        return found.replace(**changes), notes
    blanks: list[str] = []
    if hidden is None:
        if billions is None:
            raise UserError(
                f"model '{name}' is unknown and has no dims", "row", "give layers, hidden, heads, ffn"
            )
        if not 1e-4 <= billions <= 1e5:
            raise UserError(
                f"params_b is {billions:g}", "row", "give billions of parameters, 0.0001 to 100000"
            )
        blanks.append(f"shape of a usual model of {billions:g}B parameters")
        return _of_size(billions, int(seq or 2048)), tuple(blanks)
    width = int(hidden)
    if vocab is None:
        blanks.append("vocab 51200")
    if heads is None:
        heads = _usual_heads(width)
        blanks.append(f"heads {heads} (of {width // heads})")
    gated = (mats or (3 if kv and heads and kv < heads else 2)) >= 3
    if mats is None:
        blanks.append(f"mlp_mats {3 if gated else 2}")
    if ffn is None:
        blanks.append("ffn of the usual ratio")
    size = int(ffn or (width * 8 // 3 if gated else 4 * width))
    count_heads = int(heads)
    keys: dict[str, Any] = {
        "name": name or "model", "family": "llama" if gated else "gpt2",
        "vocab_size": int(vocab or 51200), "hidden_size": width, "intermediate_size": size,
        "num_attention_heads": count_heads, "num_key_value_heads": int(kv or count_heads),
        "head_dim": int(head_dim or max(2, width // count_heads // 2 * 2)), "context": int(seq or 2048),
        "mlp_type": "swiglu" if gated else "gelu", "norm_type": "rmsnorm" if gated else "layernorm",
        "positions": "rope" if gated else "learned",
    }  # fmt: skip
    if experts and (top_k or 2) > experts:
        raise UserError(f"topk {top_k or 2:g} is more than {experts:g} experts", "row", "make them agree")
    if experts:
        keys["moe"] = {"num_experts": int(experts), "top_k": int(top_k or 2), "moe_intermediate_size": size}
    return _finish(keys, layers, billions, blanks)


def _usual_heads(width: int) -> int:
    """Heads of about 128: of the multiples of 16 that divide the width, the one nearest to width / 128."""
    fits = [n for n in range(16, width // 32 + 1, 16) if width % n == 0]
    return min(fits, key=lambda n: abs(n - width / 128)) if fits else max(1, width // 128)


def _finish(
    keys: dict[str, Any], layers: float | None, billions: float | None, blanks: list[str]
) -> tuple[ModelSpec, tuple[str, ...]]:
    """Layers and whether the head is tied, by what the parameter count says where it isn't written."""
    if layers is None:
        if billions is None:
            raise UserError("layers and params_b are both blank", "row", "fill one of them")
        one, two = (count(ModelSpec.parse({**keys, "num_hidden_layers": n})).total for n in (1, 2))
        layers = max(1, round((billions * 1e9 - one) / (two - one)) + 1)
        blanks.append(f"layers {layers} (from params_b)")
    if layers > MOST["layers"]:
        raise UserError(f"params_b {billions:g} of these dims are {layers:g} layers", "row", "check the dims")
    keys["num_hidden_layers"] = int(layers)
    tied = ModelSpec.parse({**keys, "tie_word_embeddings": True})
    plain = ModelSpec.parse({**keys, "tie_word_embeddings": False})
    if billions is None:
        return (tied if keys["mlp_type"] == "gelu" else plain), tuple(blanks)
    far = [abs(count(model).total - billions * 1e9) for model in (tied, plain)]
    return (tied if far[0] < far[1] or keys["mlp_type"] == "gelu" else plain), tuple(blanks)


@lru_cache(maxsize=512)
def _preset(name: str) -> ModelSpec | None:
    """The published model of this name; never a path or an address."""
    guesses = (name, name.replace("llama-3-405b", "llama-3.1-405b"), name.replace("-instruct", ""))
    return next((load_model_spec(guess) for guess in guesses if is_preset(guess)), None)


@lru_cache(maxsize=256)
def _of_size(billions: float, seq: int) -> ModelSpec:
    return new_preset(billions * 1e9, "llama", 32000).replace(context=seq)


# -- the layout -----------------------------------------------------------------------------------


def _recompute(word: str, framework: Framework) -> str:
    """Published tables say `selective` for attention's inside (Korthikanti et al. 2022), or XLA's policy."""
    if word in ("none", "0", "false"):
        return "none"
    if word == "full":
        return "full"
    if word == "selective":
        return framework.selective
    return "unknown"


def _layout(
    row: Mapping[str, Any], framework: Framework, kind: str, assumed: Blanks, options: Mapping[str, str]
) -> dict[str, float]:
    """Sizes of the axes and the batch, blanks filled."""
    devices = assumed.fill(row, "n_devices", 256)
    if devices < 1:
        raise UserError(f"n_devices is {devices}", "row", "give a whole number of devices, 1 or more")
    sizes = {key: max(1, assumed.fill(row, key, 1)) for key in ("tp", "pp", "cp")}
    product = sizes["tp"] * sizes["pp"] * sizes["cp"]
    if product > devices or devices % product:
        raise UserError(
            f"tp x pp x cp = {product} does not divide n_devices {devices}", "row", "make the sizes agree"
        )
    dp = devices // product
    given = number(row, "dp")
    if given and int(given) != dp:
        raise UserError(
            f"dp {int(given)} x {product} is not n_devices {devices}", "row", "make the sizes agree"
        )
    ep = max(1, int(number(row, "ep") or 1))
    zero = _zero(text(row, "sharding").lower(), framework, kind, assumed)
    batch = number(row, "gbs")
    micro = number(row, "mbs")
    if micro is None:
        each = (batch or 4 * dp) / dp
        micro = 1 if sizes["pp"] > 1 else max(n for n in (1, 2, 4) if n <= max(1.0, each))
        assumed.append(f"mbs {micro}")
    if batch is None:
        batch = micro * dp * max(4 * sizes["pp"] if sizes["pp"] > 1 else 1, 1)
        assumed.append(f"gbs {int(batch)}")
    if micro < 1 or batch < 1:
        raise UserError(f"mbs {micro:g} and gbs {batch:g} must be 1 or more", "row", "give other numbers")
    replicate = 1
    inner = options.get("ici_fsdp")
    if inner and int(inner) < dp:
        replicate = max(1, dp // int(inner))
    elif options.get("slices") and dp % int(options["slices"]) == 0:
        replicate = int(options["slices"])
    sp = number(row, "sp")
    chunks = number(row, "vpp")
    if chunks is None and sizes["pp"] > 1:
        assumed.append("vpp 1")
    return {
        **sizes, "devices": devices, "ep": ep, "etp": int(options.get("etp", 1) or 1), "zero": zero,
        "micro_batch": micro, "micros": max(1.0, batch / (micro * dp)), "replicate": replicate,
        "chunks": max(1, int(chunks or 1)) if sizes["pp"] > 1 else 1,
        "sp": bool(sp) if sp is not None else sizes["tp"] > 1 and framework.year >= 2023,
    }  # fmt: skip


def _zero(word: str, framework: Framework, kind: str, assumed: Blanks) -> int:
    if word in ZERO:
        return ZERO[word]
    if word:
        raise UserError(f"sharding is '{word}'", "row", "use one of " + ", ".join(ZERO))
    zero = 3 if kind == "tpu" else min(1, framework.zero) if framework.zero < 3 else 3
    assumed.append("sharding " + {0: "none", 1: "zero1", 3: "fsdp"}[zero])
    return zero
