"""The network in nanotron's `model_config`, both ways: its Qwen2, which is Llama's with more options.

ours                       theirs
mlp_type swiglu            hidden_act silu            the activation of the gate
window_pattern [true]      sliding_window_size        of every layer with RoPE
moe, all layers sparse     moe_config; experts are intermediate_size wide, split over tp, top-k before softmax
num_shared_experts 1       enable_shared_expert       of the same width, with a gate
"""

from __future__ import annotations

from scalewright.emit.foreign import ForeignKeys, RunKeys, real, whole
from scalewright.emit.rules import Fixed, Words, inverse, put, words_for
from scalewright.emit.settings import Settings

CONFIG = "model.model_config."
MODEL = words_for("nanotron, model")
MIXTURE = words_for("nanotron, mixture")
TITLE = "nanotron"
ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_pytorch_tanh"}
FIXED = (
    Fixed("model.norm_type", ("rmsnorm",), "nanotron's norms are RMSNorm"),
    Fixed("model.positions", ("rope",), "nanotron has rotary positions"),
)
OTHERS = {"is_mamba_config": "Mamba 1", "is_starcoder2_config": "StarCoder2"}


def write_model(s: Settings) -> Words:
    """Dotted keys of the network."""
    written = s.write(MODEL)
    written[CONFIG + "intermediate_size"] = s.take_dense_width()
    s.take_head_dim(TITLE)
    why = "nanotron's MLPs have a gate: SwiGLU or GeGLU"
    written[CONFIG + "hidden_act"] = s.choose("model.mlp_type", ACTIVATIONS, why, "swiglu")
    s.write(FIXED)
    s.take_scaling(TITLE, "")
    window = s.take("model.sliding_window") if s.model.window_pattern == (True,) else None
    if window is not None:
        s.take("model.window_pattern")
    elif any(s.model.window_pattern):
        s.drop("model.window_pattern", "nanotron's window is that of every layer")
    z_loss = s.take("train.z_loss")
    masked = s.states("data.document_mask") and s.take("data.document_mask")
    written |= {
        CONFIG + "is_qwen2_config": True, CONFIG + "sliding_window_size": window,
        CONFIG + "rope_scaling": None, CONFIG + "initializer_range": 0.02, CONFIG + "pad_token_id": None,
        CONFIG + "use_cache": True, CONFIG + "_attn_implementation": "flash_attention_2",
        CONFIG + "_use_qkv_packed": bool(masked), CONFIG + "_use_doc_masking": bool(masked),
        CONFIG + "z_loss_enabled": z_loss > 0, CONFIG + "z_loss_coefficient": z_loss or 1e-4,
    }  # fmt: skip
    return written | (_mixture(s) if s.model.moe else {CONFIG + "moe_config": None})


def _mixture(s: Settings) -> Words:
    moe = s.model.moe
    assert moe is not None
    written = s.write(MIXTURE)
    sparse = [i for i in range(s.model.num_hidden_layers) if s.model.parts(i)[1] == "experts"]
    s.take_each("model.moe", "first_k_dense", "every", "dense_layers", "moe_intermediate_size", "score")
    if moe.moe_intermediate_size != s.model.intermediate_size and not s.is_all_sparse():
        why = "nanotron's experts are as wide as its dense MLPs"
        s.nearly("model.moe.moe_intermediate_size", str(s.model.intermediate_size), why)
    shared = moe.num_shared_experts == 1 and moe.shared_gate and moe.shared_size == moe.moe_intermediate_size
    if shared:
        s.take_each("model.moe", "num_shared_experts", "shared_intermediate_size", "shared_gate")
    elif moe.num_shared_experts:
        why = "nanotron's shared expert is as wide as the others, and has a gate"
        s.drop("model.moe.num_shared_experts", why)
    return written | {
        CONFIG + "moe_config.layers": [-1] if s.is_all_sparse() else sparse,
        CONFIG + "moe_config.enable_shared_expert": shared,
        CONFIG + "moe_config.token_dispatcher_type": "alltoall",
    }


def read_model(t: ForeignKeys, run: RunKeys) -> None:
    """The network of a file; a kind that isn't one of ours is left out, with the reason."""
    for mark, kind in OTHERS.items():
        if CONFIG + mark in t:
            t.refuse(CONFIG + mark, f"{kind} isn't a network that a run of ours has")
            return
    if CONFIG + "num_hidden_layers" not in t:
        return
    t.read(MODEL, run)
    model = run["model"]
    model["intermediate_size"] = whole(t.take(CONFIG + "intermediate_size", 11008))
    why = "taken as silu: this activation isn't here"
    model["mlp_type"] = t.choose(CONFIG + "hidden_act", inverse(ACTIVATIONS), "silu", "swiglu", why)
    model["norm_type"] = "rmsnorm"
    model.setdefault("norm_eps", 1e-6)  # models_config.py
    if (window := t.take(CONFIG + "sliding_window_size")) is not None:
        every = model.get("rope_every_not")  # its layers without RoPE have no window either
        pattern = [True] * (every - 1) + [False] if every else [True]
        model |= {"sliding_window": whole(window), "window_pattern": pattern}
    if t.take(CONFIG + "interleaved_rotary"):  # its name before
        put(run, "model.rope.interleaved", True)
    t.refuse(CONFIG + "rope_scaling", "nanotron's attention doesn't apply it")
    if t.values.get(CONFIG + "z_loss_enabled"):
        put(run, "train.z_loss", real(t.values.get(CONFIG + "z_loss_coefficient", 1e-4)))
    if (masked := t.take(CONFIG + "_use_doc_masking")) is not None:
        put(run, "data.document_mask", bool(masked))
    if t.values.get("model.init_method.use_mup"):
        t.refuse("model.init_method.use_mup", "rates and weights by width (muP) aren't here")
    t.refuse("model.init_method.path", "weights to start from aren't read: give `init`")
    _read_mixture(t, run)


def _read_mixture(t: ForeignKeys, run: RunKeys) -> None:
    if CONFIG + "moe_num_experts" in t:  # LLaMoE, of examples/moe
        experts, chosen = t.take(CONFIG + "moe_num_experts"), t.take(CONFIG + "num_experts_per_tok", 1)
        t.take(CONFIG + "is_llamoe_config"), t.take(CONFIG + "moe_capacity_factor")  # it drops no tokens
        run["model"]["moe"] = _experts(run["model"], whole(experts), whole(chosen))
        return
    if CONFIG + "moe_config.num_experts" not in t:
        return
    t.read(MIXTURE, run)
    model = run["model"]
    moe = model["moe"] = _experts(model, model["moe"]["num_experts"], model["moe"].get("top_k", 2))
    layers = t.take(CONFIG + "moe_config.layers")
    if isinstance(layers, list) and layers != [-1]:
        dense = sorted(set(range(model["num_hidden_layers"])) - {whole(layer) for layer in layers})
        leading = dense == list(range(len(dense)))
        moe |= {"first_k_dense": len(dense)} if leading else {"dense_layers": dense}
    if t.take(CONFIG + "moe_config.enable_shared_expert"):
        moe |= {"num_shared_experts": 1, "shared_gate": True}


def _experts(model: Words, experts: int, chosen: int) -> dict[str, object]:
    return {"num_experts": experts, "top_k": chosen, "moe_intermediate_size": model["intermediate_size"]}
