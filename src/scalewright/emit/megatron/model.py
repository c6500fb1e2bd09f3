"""The network in Megatron-LM's arguments: parts that follow from several keys, both ways.

ours                               theirs (absent: their default)
mlp_type swiglu                    swiglu                       gelu
norm_type rmsnorm                  normalization RMSNorm        LayerNorm
tie_word_embeddings false          untie-embeddings-and-...     tied
qkv_bias, o_bias, mlp_bias false   disable-bias-linear          all have one; add-qkv-bias: q, k and v alone
num_key_value_heads 8 of 32        group-query-attention, num-query-groups 8
"""

from __future__ import annotations

from math import log
from typing import Any

from scalewright.emit.foreign import ForeignKeys, RunKeys, real, whole
from scalewright.emit.megatron.keys import LATENT, MIXTURE, MODEL, PREDICTION
from scalewright.emit.rules import inverse, put
from scalewright.emit.settings import Settings
from scalewright.spec.errors import UserError

Arguments = dict[str, object]  # name without dashes -> value; True: a flag alone
MLP = {"swiglu": "swiglu", "relu2": "squared-relu", "gelu_tanh": "bias-gelu-fusion", "gelu": "no-bias-gelu-fusion"}
GELU = ("gelu", "gelu_tanh")
POSITIONS = {"rope": "rope", "learned": "learned_absolute", "none": "none"}
NORMS = {"rmsnorm": ("RMSNorm", False), "rmsnorm_plus_one": ("RMSNorm", True), "layernorm": ("LayerNorm", False),
         "layernorm_plus_one": ("LayerNorm", True)}  # fmt: skip
# Vocabularies of tokenizers that a script names without their size.
VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000, "BertWordPieceLowerCase": 30522}


def write_model(s: Settings) -> Arguments:
    """Their arguments for the network."""
    written = s.write(MODEL)
    written |= _attention(s) | _positions(s) | _norms(s)
    written |= _mlp(s, "disable-bias-linear" not in written)
    if not s.take("model.tie_word_embeddings"):
        written["untie-embeddings-and-output-weights"] = True
    written["attention-dropout"] = written["hidden-dropout"] = 0.0
    written |= {"tokenizer-type": "NullTokenizer", "vocab-size": s.take("model.vocab_size") - 1}
    s.assume("the vocabulary is padded to a multiple of 128 x tp (--make-vocab-size-divisible-by)")
    if s.model.mtp_layers:
        written |= s.write(PREDICTION)
    if s.model.moe:
        written |= _mixture(s)
    if s.model.mla:
        latent = {"multi-latent-attention": True, "qk-layernorm": True}  # its norms of both latents
        written |= {**latent, **s.write(LATENT)}
    return written


def _mlp(s: Settings, biased: bool) -> Arguments:
    kind = s.model.mlp_type
    if kind == "gelu_tanh" and not biased:
        s.nearly("model.mlp_type", "GELU by erf", "Megatron-LM's tanh form is fused with a bias, and there are none")
        return {}
    flag = s.choose("model.mlp_type", MLP, "Megatron-LM's MLPs are SwiGLU, GELU and squared ReLU")
    return {flag: True} if flag and (biased or kind not in GELU) else {}


def _attention(s: Settings) -> Arguments:
    written: Arguments = {}
    model = s.model
    kv_heads, head_dim = s.take("model.num_key_value_heads"), s.take("model.head_dim")
    if kv_heads != model.num_attention_heads:
        written |= {"group-query-attention": True, "num-query-groups": kv_heads}
    if not model.mla and head_dim * model.num_attention_heads != model.hidden_size:
        written["kv-channels"] = head_dim
    biases = [s.take(f"model.{part}_bias") for part in ("qkv", "o", "mlp")]
    if biases == [True, False, False]:
        written |= {"disable-bias-linear": True, "add-qkv-bias": True}
    elif not any(biases):
        written["disable-bias-linear"] = True
    if model.qk_norm == "head":
        s.take("model.qk_norm")
        written["qk-layernorm"] = True
    window, pattern = s.take("model.sliding_window"), s.take("model.window_pattern")
    if window is not None and any(pattern):
        written["window-size"] = f"{window - 1},0"
        if not all(pattern):
            marks = [str(int(model.window(layer) is not None)) for layer in range(model.num_hidden_layers)]
            written["window-attn-skip-freq"] = f"[{','.join(marks)}]"  # a mark of every layer
    return written


def _positions(s: Settings) -> Arguments:
    kind = s.choose("model.positions", POSITIONS, "Megatron-LM's positions are RoPE, learned ones or none")
    if kind is None:
        return {}
    s.take("model.learned_positions")
    written: Arguments = {"position-embedding-type": kind}
    if kind != "rope":
        return written
    written["rotary-base"] = round(s.take("model.rope.theta"))  # theirs is a whole number
    if (fraction := s.take("model.rope.fraction")) != 1:
        written["rotary-percent"] = fraction
    if s.take("model.rope.interleaved") and not s.model.mla:
        written["rotary-interleaved"] = True
    scaling = s.model.rope.scaling
    if scaling is not None and scaling.kind == "llama3" and not s.model.mla:
        s.take_all("model.rope.scaling.")
        written |= {"use-rope-scaling": True, "rope-scaling-factor": scaling.factor}
    elif s.model.mla and (scaling is None or scaling.kind == "yarn"):
        written |= _yarn(s)
    return written


def _yarn(s: Settings) -> Arguments:
    """YaRN of latent attention, which is its default, with a factor of 40 in Megatron-Bridge: 1 is none.

    The last three are fields of Megatron-Bridge's alone; Megatron-LM has their defaults.
    """
    s.take("model.query_scale"), s.take_all("model.rope.scaling.")
    scaling = s.model.rope.scaling
    if scaling is None:
        return {"rope-type": "yarn", "rotary-scaling-factor": 1.0}
    return {
        "rope-type": "yarn", "rotary-scaling-factor": scaling.factor, "mscale": scaling.mscale or 1.0,
        "mscale-all-dim": scaling.mscale_all_dim or 0.0,
        "original-max-position-embeddings": scaling.original_context or s.model.context,
        "beta-fast": scaling.beta_fast, "beta-slow": scaling.beta_slow,
    }  # fmt: skip


def _norms(s: Settings) -> Arguments:
    norm = s.choose("model.norm_type", NORMS, "Megatron-LM's norms are RMSNorm and LayerNorm")
    if norm is None:
        return {}
    return {"normalization": norm[0], **({"apply-layernorm-1p": True} if norm[1] else {})}


def _mixture(s: Settings) -> Arguments:
    moe = s.model.moe
    assert moe is not None
    written = s.write(MIXTURE)
    s.take_each("model.moe", "num_shared_experts", "shared_intermediate_size", "first_k_dense", "every", "dense_layers")
    if moe.num_shared_experts:
        written["moe-shared-expert-intermediate-size"] = moe.shared_size
    if s.take("model.moe.shared_gate"):
        written["moe-shared-expert-gate"] = True
    sparse = [int(s.model.parts(i)[1] == "experts") for i in range(s.model.num_hidden_layers)]
    if not all(sparse):
        written["moe-layer-freq"] = f"([{','.join(map(str, sparse))}])"
    if not s.take("model.moe.normalize_top_k") and moe.score == "softmax":
        written["moe-router-pre-softmax"] = True  # weights of all experts before the choice, not renormalised
    largest = 1 if moe.score == "softmax" else 2  # of a group, which it is chosen by (model/router.py)
    if moe.groups > moe.top_groups and moe.top_k // moe.top_groups != largest:
        why = "Megatron-LM chooses a group by the sum of its top_k / top_groups largest scores"
        s.nearly("model.moe.groups", f"by {moe.top_k // moe.top_groups} scores", why)
    rate = s.take("train.balance.bias_rate")
    if moe.router_bias and moe.score == "softmax":
        s.drop("model.moe.router_bias", "Megatron-LM has one beside sigmoid scores alone")
    elif s.take("model.moe.router_bias"):
        written |= {"moe-router-enable-expert-bias": True, "moe-router-bias-update-rate": rate}
    balanced = s.run.train.balance.loss > 0
    written["moe-router-load-balancing-type"] = "seq_aux_loss" if balanced else "none"
    return written | {"moe-token-dispatcher-type": "alltoall", "moe-grouped-gemm": True}


def read_model(t: ForeignKeys, run: RunKeys) -> None:
    """The network of their arguments, with their defaults where they are silent."""
    if "num-layers" not in t and "hidden-size" not in t:
        return
    t.read((*MODEL, *PREDICTION), run)
    model = run.setdefault("model", {})
    swiglu = bool(t.take("swiglu"))
    fused = t.take("bias-gelu-fusion", True) and not t.take("no-bias-gelu-fusion")
    gelu = "gelu_tanh" if fused and not t.values.get("disable-bias-linear") else "gelu"
    model["mlp_type"] = "swiglu" if swiglu else "relu2" if t.take("squared-relu") else gelu
    hidden, heads = model.get("hidden_size"), model.get("num_attention_heads")
    if "intermediate_size" not in model and hidden:  # arguments.py: 4 h, and 8/3 h in steps of 64 when gated
        model["intermediate_size"] = int(4 * hidden * 2 / 3 / 64) * 64 if swiglu else 4 * hidden
    if (channels := t.take("kv-channels")) is not None:
        model["head_dim"] = whole(channels)
    grouped, groups = t.take("group-query-attention"), t.take("num-query-groups")
    model["num_key_value_heads"] = whole(groups) if grouped and groups else heads
    model["tie_word_embeddings"] = not t.take("untie-embeddings-and-output-weights")
    _read_biases(t, model)
    _read_positions(t, model)
    name, plus_one = t.take("normalization", "LayerNorm"), bool(t.take("apply-layernorm-1p"))
    model["norm_type"] = inverse(NORMS).get((name, plus_one), "layernorm")
    if t.take("qk-layernorm"):
        model["qk_norm"] = "head"
    _read_window(t, model)
    _read_vocabulary(t, model)
    _read_mixture(t, run)
    if t.take("multi-latent-attention"):
        t.read(LATENT, run)
        if model.get("qk_norm") is None:
            t.assume("norms of both latents: theirs has them by --qk-layernorm")
        model |= {"norm_type": "rmsnorm", "positions": "rope"}
        for key in ("head_dim", "qk_norm"):
            model.pop(key, None)
        _read_yarn(t, model)


def _read_biases(t: ForeignKeys, model: dict[str, object]) -> None:
    bias, qkv = not t.take("disable-bias-linear"), bool(t.take("add-qkv-bias"))
    model |= {"qkv_bias": bias or qkv, "o_bias": bias, "mlp_bias": bias}
    for key in ("attention-dropout", "hidden-dropout"):
        if real(value := t.take(key, 0.1)) > 0:
            t.assume(f"{key} {value} is left out: models here train without dropout")


def _read_positions(t: ForeignKeys, model: dict[str, object]) -> None:
    why = "positions of this kind aren't known here: taken as RoPE"
    model["positions"] = "rope"
    if t.take("embed-layernorm"):
        model["embedding_norm"] = True
    if not t.take("use-rotary-position-embeddings"):
        positions = inverse(POSITIONS) | {"alibi": "alibi"}  # Megatron-DeepSpeed's
        model["positions"] = t.choose("position-embedding-type", positions, "learned_absolute", "rope", why)
    base, fraction = t.take("rotary-base"), t.take("rotary-percent")
    interleaved = bool(t.take("rotary-interleaved"))
    if model["positions"] != "rope":
        return
    rope: dict[str, object] = {"theta": real(base) if base is not None else 10000.0}
    if fraction is not None:
        rope["fraction"] = real(fraction)
    if interleaved:
        rope["interleaved"] = True
    if t.take("use-rope-scaling"):
        factor = real(t.take("rope-scaling-factor", 8.0))
        rope["scaling"] = {"kind": "llama3", "factor": factor, "original_context": 8192}
    model["rope"] = rope


def _read_yarn(t: ForeignKeys, model: dict[str, Any]) -> None:
    """RoPE of latent attention, whose pairs are neighbours: YaRN where `rope-type` isn't set."""
    rope = model.setdefault("rope", {})
    rope |= {"interleaved": True, "scaling": None}
    kind, factor = t.take("rope-type", "yarn"), real(t.take("rotary-scaling-factor", 1.0))
    mscale, everywhere = real(t.take("mscale", 1.0)), real(t.take("mscale-all-dim", 0.0))
    numbers: dict[str, object] = {
        "original_context": whole(t.take("original-max-position-embeddings", 4096)),
        "beta_fast": real(t.take("beta-fast", 32.0)), "beta_slow": real(t.take("beta-slow", 1.0)),
        "factor": factor, "mscale": mscale, "mscale_all_dim": everywhere,
    }  # fmt: skip
    if kind != "yarn" or factor <= 1:
        return
    if not everywhere and mscale != 1:
        numbers["attention_factor"] = 0.1 * mscale * log(factor) + 1
    rope["scaling"] = {"kind": "yarn", **numbers}
    if everywhere:
        size = model["mla"]["qk_nope_head_dim"] + model["mla"]["qk_rope_head_dim"]
        model["query_scale"] = size**-0.5 * (0.1 * everywhere * log(factor) + 1) ** 2


def _read_window(t: ForeignKeys, model: dict[str, object]) -> None:
    window, pattern = t.take("window-size"), t.take("window-attn-skip-freq")
    if window is None:
        return
    first = window[0] if isinstance(window, list) else str(window).strip("()").split(",")[0]
    model["sliding_window"] = whole(first) + 1
    marks = _listed(pattern)
    if len(marks) == 1 and marks[0] > 1:  # every n-th layer has none
        marks = [1] * (marks[0] - 1) + [0]
    model["window_pattern"] = [mark != 0 for mark in marks] if marks else [True]


def _read_vocabulary(t: ForeignKeys, model: dict[str, object]) -> None:
    kind, size = t.take("tokenizer-type"), t.take("vocab-size")
    padded = t.take_first("padded-vocab-size", "pad-vocab-size-to")
    if size is not None:
        model["vocab_size"] = whole(size) + (kind == "NullTokenizer")  # its end of a document is one more
    elif padded is not None:
        model["vocab_size"] = whole(padded)
    else:
        kind = kind or ("GPT2BPETokenizer" if "merge-file" in t else None)
        model["vocab_size"] = VOCABULARIES.get(str(kind), 128256)
        t.assume(f"vocab_size {model['vocab_size']}, of {kind or 'an unnamed tokenizer'}: set model.vocab_size")


def _read_mixture(t: ForeignKeys, run: RunKeys) -> None:
    counts = t.values.get("num-experts")
    if isinstance(counts, list) and len(set(counts)) > 1:
        what = f"layers with different numbers of experts ({', '.join(dict.fromkeys(counts))}) aren't known here"
        raise UserError(what, "num-experts", "give one number: scalewright read --argv ...")
    if counts in (None, "None"):
        t.take("num-experts")
        return
    t.values["num-experts"] = counts[0] if isinstance(counts, list) else counts
    t.read(MIXTURE, run)
    model = run["model"]
    moe = model["moe"]
    moe.setdefault("top_k", 2)
    moe.setdefault("moe_intermediate_size", model["intermediate_size"])
    if (shared := t.take("moe-shared-expert-intermediate-size")) is not None:
        moe |= {"num_shared_experts": 1, "shared_intermediate_size": whole(shared)}
    if t.take("moe-shared-expert-gate"):
        moe["shared_gate"] = True
    sparse = _listed(t.take("moe-layer-freq"))
    if len(sparse) == 1 and sparse[0] > 1:  # every n-th layer, the first among them
        sparse = [int(i % sparse[0] == 0) for i in range(model["num_hidden_layers"])]
    if dense := [i for i, mark in enumerate(sparse) if not mark]:
        leading = dense == list(range(len(dense)))
        moe |= {"first_k_dense": len(dense)} if leading else {"dense_layers": dense}
    unnormalized = bool(t.take("moe-router-pre-softmax"))
    moe["normalize_top_k"] = moe["top_k"] > 1 if moe.get("score") == "sigmoid" else not unnormalized
    rate = t.take("moe-router-bias-update-rate")
    if t.take("moe-router-enable-expert-bias"):
        moe["router_bias"] = True
        put(run, "train.balance.bias_rate", real(rate if rate is not None else 1e-3))
    if t.take("moe-router-load-balancing-type", "aux_loss") == "none":
        put(run, "train.balance.loss", 0.0)


def _listed(value: Any) -> list[int]:
    """`([0]*3+[1]*58)`, `[1,1,0]` or `2` as whole numbers; nothing where it is no such text."""
    numbers: list[int] = []
    if value is None:
        return numbers
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    for part in text.replace(" ", "").strip("()").split("+"):
        items, _, times = part.partition("]*")
        digits = [item for item in items.strip("[]").split(",") if item]
        if not all(item.isdecimal() for item in digits) or (times and not times.isdecimal()):
            return []
        numbers += [int(item) for item in digits] * (min(int(times), 10_000) if times else 1)
    return numbers
