"""torchtitan's TOML: written for 0.1 and 0.2, read from 2024 on.

[parallelism]                           [training]                      2024
tensor_parallel_degree = 8              tensor_parallel_degree = 8
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from scalewright.emit.command_lines import nodes_of, torchrun_by_variables
from scalewright.emit.emitted import Emitted, Reading
from scalewright.emit.python_code import Call, spelled
from scalewright.emit.settings import Settings
from scalewright.emit.tables import text_of
from scalewright.emit.torchtitan.keys import OLDER, V01, renamed
from scalewright.emit.torchtitan.layout import Keys, write_layout
from scalewright.emit.torchtitan.model import Network, decoder_spec, write_model
from scalewright.emit.torchtitan.training import read_values, write_training
from scalewright.spec.common.formatting import counted, flat
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec

TITLE = "torchtitan"
FILE, MODULE = "titan.toml", "own_model.py"
GONE = ("float8", "mx")  # sections of 0.1 and before
PRESET_FOR = re.compile(r"preset for (\d{1,6})\b[^\n]*GPU")


def write(s: Settings, release: str) -> Emitted:
    """The TOML, and a module where the model is none of theirs; raises UserError."""
    network = write_model(s, release)
    keys = {**_model(network, s), **write_layout(s, release), **write_training(s, release)}
    if release == "0.1":
        keys = {V01.get(key, key): value for key, value in keys.items()}
    nodes, each = nodes_of(s.layout.devices)
    start = torchrun_by_variables(s.layout.devices, f"-m torchtitan.train --job.config_file {FILE}")
    command = ("PYTHONPATH=. " if network.call else "") + start
    head = [
        f"# Written by `scalewright emit torchtitan`: torchtitan {release}, {nodes} x {counted(each, 'devices')}.",
        f"# NOTE: this toml config is a preset for {counted(s.layout.devices, 'GPUs')}.",
    ]
    files = {FILE: "\n".join([*head, *_sections(keys), ""])}
    if network.call is not None:
        s.network = ModelSpec.parse(decoder_spec(network.call.values, {}))
        files[MODULE] = own_model(network, f"Written by `scalewright emit torchtitan` for {release}")
    return s.emitted(TITLE, "torchtitan", release, files, command)


def _model(network: Network, s: Settings) -> Keys:
    custom = network.call is not None
    keys: Keys = {"job.description": s.run.name, "model.name": "own" if custom else network.name,
                  "model.flavor": network.flavor or "own", "model.hf_assets_path": "./assets/hf/tokenizer"}  # fmt: skip
    return {**keys, "experimental.custom_import": MODULE.removesuffix(".py")} if custom else keys


def _sections(keys: Keys) -> list[str]:
    """Lines of TOML; a section's keys stand together, in their order."""
    sections: dict[str, dict[str, object]] = {}
    for key, value in keys.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, {})[name] = value
    lines: list[str] = []
    for section, values in sections.items():
        lines += ["", f"[{section}]", *(f"{name} = {_value(value)}" for name, value in values.items())]
    return lines


def _value(value: Any) -> str:
    if isinstance(value, float):
        text = f"{value:.12g}"
        return text if set(text) & set(".en") else f"{text}.0"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML takes no bare DEL


def read(document: Mapping[str, Any], text: str) -> Reading:
    """A TOML file of any release as a run."""
    values = flat(document)
    older = any(key in values for key in OLDER) or any(part in document for part in GONE)
    match = PRESET_FOR.search(text)
    world = int(match[1]) if match else None
    notes = [f"devices {world}, of the file's own comment"] if world else []
    return read_values(renamed(values), world, "0.1" if older else "0.2", notes)


def own_model(network: Network, title: str) -> str:
    """The module of 0.2 that registers arguments of its classes under the name `own`."""
    assert network.call is not None
    given = dict(network.call.values)
    moe, dense = given.pop("moe", None), given.pop("dense_layers", [])
    if network.name == "qwen3" and dense:
        how = "emit it for torchtitan 0.3, which has both kinds of layers"
        raise UserError("torchtitan 0.2's Qwen3 has experts in every layer", "model.moe", how)
    more = "from torchtitan.models.moe import MoEArgs\n" if moe else ""
    make = {"llama3": _llama_args, "qwen3": _qwen_args, "deepseek_v3": _deepseek_args}[network.name]
    call = make(given, moe, dense)
    scaled = isinstance(call.values.get("rope_scaling_args"), Call)
    classes = call.name + (", RoPEScalingArgs" if scaled else "")
    return text_of("torchtitan/own_model.txt").format(
        title=title, module=network.name, classes=classes, more=more, args=spelled(call)
    )


def _llama_args(given: dict[str, Any], moe: Any, dense: list[int]) -> Call:
    """TransformerModelArgs; its hidden size is a multiple of the one that we want, with a factor below it."""
    for key in ("head_dim", "qk_norm", "tied"):
        given.pop(key, None)
    hidden, context = given.pop("hidden_dim"), given.pop("context")
    scaling = given.pop("rope_scaling", None) or {"scaling_factor": 1.0}
    two_thirds = int(2 * 4 * given["dim"] / 3)
    return Call("TransformerModelArgs", {
        **given, "max_seq_len": context, "multiple_of": hidden,
        "ffn_dim_multiplier": min(1.0, round(hidden / two_thirds * 0.999, 3)),
        "rope_scaling_args": Call("RoPEScalingArgs", scaling),
    })  # fmt: skip


def _qwen_args(given: dict[str, object], moe: Any, dense: list[int]) -> Call:
    context, tied = given.pop("context"), given.pop("tied", False)
    values = {**given, "qk_norm": given.get("qk_norm", False), "max_seq_len": context, "enable_weight_tying": tied}
    if moe:
        values |= {"moe_enabled": True, "moe_inter_dim": moe["hidden_dim"], "moe_args": _moe_args(moe)}
    return Call("Qwen3ModelArgs", values)


def _deepseek_args(given: dict[str, Any], moe: Any, dense: list[int]) -> Call:
    hidden, context = given.pop("hidden_dim"), given.pop("context")
    latent, scaling = given.pop("latent"), given.pop("rope_scaling", None) or {"rope_factor": 1.0}
    return Call("DeepSeekV3ModelArgs", {
        **given, "inter_dim": hidden, "max_seq_len": context, "n_dense_layers": len(dense),
        "moe_inter_dim": moe["hidden_dim"], "moe_args": _moe_args(moe), **latent, **scaling,
    })  # fmt: skip


def _moe_args(moe: dict[str, Any]) -> Call:
    return Call("MoEArgs", {
        "num_experts": moe["num_experts"], "num_shared_experts": moe["shared_dim"] // moe["hidden_dim"],
        "top_k": moe["top_k"], "score_func": moe["score"], "route_norm": moe["normalize"],
        "route_scale": moe["scale"], "num_expert_groups": moe["groups"],
        "num_limited_groups": moe["top_groups"], "score_before_experts": False,
        "load_balance_coeff": moe["bias_rate"],
    })  # fmt: skip
