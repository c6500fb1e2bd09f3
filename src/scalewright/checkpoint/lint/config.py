"""config.json: what engines choose a model's class, its positions and its cache by.

vLLM takes the class from `architectures`, transformers from `model_type`; head sizes, windows and RoPE decide how long
and how right a model attends. Keys of RoPE moved: rope_theta and rope_scaling until transformers 4, rope_parameters
since; where a file has both, engines of different age read different ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scalewright.checkpoint.lint.folder import CONFIG, Export, problem, warn
from scalewright.spec.errors import Finding
from scalewright.spec.families import FAMILIES
from scalewright.spec.families.common import defaults

ORIGINAL = "original_max_position_embeddings"
SCALED = {  # kinds of RoPE scaling, and what each needs
    "default": (), "linear": ("factor",), "dynamic": ("factor",), "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"), "su": ("short_factor", "long_factor"), "mrope": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL),
    "proportional": (),
}  # fmt: skip
USUAL_THETA, USUAL_CONTEXT = 10_000, 8192  # of classes that have none; beyond it no model that was published has that


def check(export: Export) -> Iterator[Finding]:
    """Findings about config.json."""
    if CONFIG not in export.files:
        yield problem(CONFIG, "missing", "there is none", "give a Hugging Face folder, or write it by `convert`")
    if CONFIG not in export.json:
        return
    c = export.config
    yield from _names(export)
    yield from _heads(c)
    rope = export.spec.rope if export.spec is not None and export.spec.positions == "rope" else None
    yield from _rope(c, rope is not None and rope.theta == USUAL_THETA and rope.scaling is None)
    yield from _windows(c)
    size = c.get("vocab_size")
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        ids = c.get(key) if isinstance(c.get(key), list) else [c.get(key)]
        for number in ids or ():
            known = number is None or (key == "pad_token_id" and number == -1)  # -1: none, in files of old
            if not known and not (type(number) is int and isinstance(size, int) and 0 <= number < size):
                yield problem(
                    CONFIG, key, f"{key} {number!r} is no id below vocab_size {size}", f"set {key} to a token's id"
                )


def _names(export: Export) -> Iterator[Finding]:
    whole = export.json[CONFIG]
    kind, classes = whole.get("model_type"), whole.get("architectures")
    if not isinstance(kind, str):
        yield problem(CONFIG, "model_type", "no model_type: nothing says which model this is", "add it, such as llama")
    if not (isinstance(classes, list) and classes and all(isinstance(name, str) for name in classes)):
        yield problem(CONFIG, "architectures", "no architectures: vLLM and SGLang choose the class by it",
                       "add it, such as [LlamaForCausalLM]")  # fmt: skip
        return
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family and family.architecture and not export.wrapped and family.architecture not in classes:
        what = f"architectures {classes} isn't the class of model_type {kind}, {family.architecture}"
        yield problem(CONFIG, "architectures", what, f"set it to [{family.architecture}]")
    if family is None and not export.wrapped and isinstance(kind, str):
        what = f"family {kind} isn't known here: names and shapes of its tensors weren't checked"
        yield Finding("config", "family", "note", what, where=CONFIG)


def _heads(c: Mapping[str, Any]) -> Iterator[Finding]:
    width, heads, kv = (c.get(key) for key in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    # a class may have a head_dim of its own
    usual: Mapping[str, Any] = defaults().get(str(c.get("model_type")), {"head_dim": "unknown"})
    stated = c.get("head_dim") or usual.get("head_dim") or "kv_lora_rank" in c
    if type(width) is int and type(heads) is int and not stated and (heads <= 0 or width % heads):
        what = f"no head_dim, and {heads} heads don't divide hidden_size {width}"
        yield problem(CONFIG, "head_dim", what, "add head_dim")
    if type(heads) is int and type(kv) is int and (kv <= 0 or heads % kv):
        what = f"num_key_value_heads {kv} doesn't divide num_attention_heads {heads}"
        yield problem(CONFIG, "num_key_value_heads", what, "set both as the model was trained")


def _rope(c: Mapping[str, Any], usual: bool) -> Iterator[Finding]:
    old, new = c.get("rope_scaling"), c.get("rope_parameters")
    if isinstance(new, dict) and {"full_attention", "sliding_attention"} & new.keys():
        parts = [part for part in new.values() if isinstance(part, dict)]
    else:
        parts = [part for part in (old, new) if isinstance(part, dict) and part]
        theta = new.get("rope_theta") if isinstance(new, dict) else None
        if None not in (theta, c.get("rope_theta")) and theta != c["rope_theta"]:
            what = f"rope_theta is {c['rope_theta']}, and {theta} in rope_parameters"
            yield problem(CONFIG, "rope_theta", what, "keep the one that was trained")
        if len(parts) == 2 and (differing := [key for key in parts[0] if parts[1].get(key, parts[0][key])
                                              != parts[0][key]]):  # fmt: skip
            what = f"rope_scaling and rope_parameters differ in {', '.join(differing)}"
            yield problem(CONFIG, "rope_scaling", what, "remove the one that wasn't trained")
        context, unset = c.get("max_position_embeddings"), theta is None and c.get("rope_theta") is None
        if usual and unset and isinstance(context, int) and context > USUAL_CONTEXT:
            what = f"no rope_theta for {context} positions: engines take 10,000"
            yield warn(CONFIG, "rope_theta", what, "add the one that was trained")
    for part in parts:
        kind = part.get("rope_type", part.get("type"))
        if kind not in SCALED:
            what = f"RoPE of type {kind!r}, which no engine has" if kind else "scaled RoPE without a rope_type"
            yield problem(CONFIG, "rope_scaling", what, f"set rope_type to one of {', '.join(SCALED)}")
        elif lacking := [key for key in SCALED[kind] if part.get(key, c.get(key)) is None]:
            what = f"RoPE of type {kind} without {', '.join(lacking)}"
            yield problem(CONFIG, "rope_scaling", what, "add what is missing")


def _windows(c: Mapping[str, Any]) -> Iterator[Finding]:
    window, kinds, layers = c.get("sliding_window"), c.get("layer_types"), c.get("num_hidden_layers")
    if window and not (type(window) is int and window > 0):  # transformers writes 0 where none is used
        yield problem(CONFIG, "sliding_window", f"sliding_window is {window!r}", "give tokens, or null for none")
    if kinds is None:
        return
    if not isinstance(kinds, list) or len(kinds) != layers:
        count = len(kinds) if isinstance(kinds, list) else "no list"
        what = f"layer_types names {count} layers of {layers}"
        yield problem(CONFIG, "layer_types", what, "name each layer once, or remove the key")
    elif "sliding_attention" in kinds and not window:
        what = "layer_types has sliding_attention, and no sliding_window is set"
        yield problem(CONFIG, "sliding_window", what, "set the window that was trained, in tokens")
