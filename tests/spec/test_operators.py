"""Operators: one list whose sums are the field's known formulas."""

from __future__ import annotations

import pytest

from scalewright.spec.block import attention_pairs
from scalewright.spec.flops import flops_per_token, forward_flops, recompute_flops
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import activation_bytes, dropout_bytes, operator_groups, operators
from scalewright.spec.presets import load_model_spec, model_presets
from scalewright.spec.tensors import count, tensors

ONE = Layout()
ONE_OF_A_FAMILY = list({spec.family: name for name, spec in model_presets().items()}.values())


def gpt(layers: int, hidden: int, heads: int, vocab: int = 51200) -> ModelSpec:
    return load_model_spec("gpt3-175b").replace(
        num_hidden_layers=layers, hidden_size=hidden, intermediate_size=4 * hidden, num_attention_heads=heads,
        num_key_value_heads=heads, head_dim=hidden // heads, vocab_size=vocab,
    )  # fmt: skip


# -- the list itself --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ONE_OF_A_FAMILY)
def test_the_operators_weights_are_the_model_s_tensors(name: str) -> None:
    model = load_model_spec(name)
    weights = [t for o in operators(model, ONE, 64) for t in o.weights]
    assert set(weights) == set(tensors(model))
    twice = [t for t in weights if weights.count(t) > 1] if len(weights) < 1000 else []
    assert {t.name for t in twice} <= {"embed.weight"}  # a tied head multiplies by it again


@pytest.mark.parametrize(
    "name",
    ["llama-3.1-8b", "gemma-3-1b", "deepseek-v2-lite", "gpt-oss-20b", "smollm3-3b", "nemotron-h-8b", "gemma-4-31b"],
)
def test_groups_have_the_same_sums_as_the_list(name: str) -> None:
    model, layout = load_model_spec(name), Layout(devices=4, tp=2, pp=2)
    for layers in (range(model.num_hidden_layers), range(3), range(5, model.num_hidden_layers)):
        every = operators(model, layout, 4096, layers=layers)
        groups = operator_groups(model, layout, 4096, layers=layers)
        for field in ("flops", "flops_causal", "flops_weight", "read", "written", "saved", "saved_full"):
            assert sum(getattr(o, field) for o in every) == pytest.approx(
                sum(n * getattr(o, field) for o, n in groups), rel=1e-12
            )


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "deepseek-v3", "qwen3-30b-a3b", "nemotron-h-8b", "qwen3-next-80b-a3b"]
)
@pytest.mark.parametrize(
    "layout",
    [
        Layout(devices=8, tp=8),
        Layout(devices=8, tp=4, sp=False, cp=2),
        Layout(devices=8, cp=4, tp=2),
        Layout(devices=8, ep=8, tp=2),
        Layout(devices=8, ep=2, etp=4, tp=4),
    ],
    ids=["tp", "tp-cp", "cp", "ep", "etp"],
)
def test_ranks_share_the_matmuls_exactly(name: str, layout: Layout) -> None:
    """Over all ranks each FLOP is done once, except copies: KV heads beyond tp, MLA without sp."""
    model = load_model_spec(name)
    if layout.ep > 1 and model.moe is None:
        pytest.skip("no experts")
    alone = sum(n * o.flops for o, n in operator_groups(model, ONE, 4096))
    here = sum(n * o.flops for o, n in operator_groups(model, layout, 4096))
    sequences = layout.dp * layout.micro_batch
    repeated = 0.0
    if model.kv_heads < layout.tp and not model.mla:
        kv = [o for o in operators(model, ONE, 4096) if o.name.endswith(("attention.k", "attention.v"))]
        repeated = sum(o.flops for o in kv) * sequences * (layout.tp / model.kv_heads - 1)
    if model.mla and layout.tp > 1 and not layout.sp:
        down = [o for o in operators(model, layout, 4096) if o.name.endswith("_down")]
        repeated = sum(o.flops for o in down) * (layout.tp - 1) * layout.cp * layout.dp
    assert here * layout.devices == pytest.approx(alone * sequences + repeated, rel=1e-9)


def test_stages_add_up() -> None:
    model = load_model_spec("gemma-2-2b")
    whole = operators(model, ONE, 512)
    cut = operators(model, ONE, 512, layers=range(7)) + operators(model, ONE, 512, layers=range(7, 26))
    assert whole == cut
    assert (cut[0].name, cut[-1].name) == ("embed", "loss")


# -- FLOPs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2-124m", "llama-3.1-8b", "palm-540b", "gemma-7b", "bloom-560m", "qwen3-4b"])
@pytest.mark.parametrize("seq_len", [128, 2048])
def test_palm_s_rule(name: str, seq_len: int) -> None:
    """6 N + 12 L H Q T over the full square (PaLM, appendix B); N counts what multiplies."""
    m = load_model_spec(name)
    multiplies = [t for t in tensors(m) if len(t.shape) == 2 and t.name != "positions.weight"]
    n = sum(t.size for t in multiplies if t.role != "embedding" or t.tied_to)
    attention = 12 * m.num_hidden_layers * m.num_attention_heads * m.dim_per_head * seq_len
    assert flops_per_token(m, seq_len, causal=False) == pytest.approx(6 * n + attention, rel=1e-12)


def test_published_flops() -> None:
    # nanoGPT's transformer_sizing: GPT-2 124M, 1024 tokens, full square
    assert forward_flops(load_model_spec("gpt2-124m"), 1024, causal=False) == 291648307200
    # Zhao et al. 2025 (Insights into DeepSeek-V3), table 2, at 4096 tokens with half the square; 1.2%: three
    # digits are printed, and its formula differs in norms and the diagonal
    for name, gflops in (("llama-3.1-405b", 2448), ("deepseek-v3", 250), ("deepseek-v2", 155)):
        assert flops_per_token(load_model_spec(name), 4096) == pytest.approx(gflops * 1e9, rel=0.012)
    # PaLM 540B: 238.3K tokens/s on 6144 chips of 275e12 is 46.2% (printed to three digits)
    mfu = 238.3e3 * flops_per_token(load_model_spec("palm-540b"), 2048, causal=False) / (6144 * 275e12)
    assert mfu == pytest.approx(0.462, rel=0.003)
    # MT-NLG 530B: 65.43K tokens/s on 2240 A100 is 30.2%
    mfu = 65.43e3 * flops_per_token(load_model_spec("mt-nlg-530b"), 2048, causal=False) / (2240 * 312e12)
    assert mfu == pytest.approx(0.302, rel=0.004)


def test_attention_passes_the_matmuls_at_eight_widths() -> None:
    """For F = 4 D (three matrices of it) and MHA, attention over the full square wins above T = 8 D."""
    m = load_model_spec("llama-2-7b").replace(num_key_value_heads=32, intermediate_size=4 * 4096, num_hidden_layers=1)
    for seq_len, more in ((8 * 4096 - 64, False), (8 * 4096 + 64, True)):
        ops = [o for o in operators(m, ONE, seq_len) if o.layer == 0]
        core = sum(o.flops for o in ops if o.kind == "attention")
        assert (core > sum(o.flops for o in ops if o.kind == "linear")) == more


@pytest.mark.parametrize(("seq_len", "window"), [(1, None), (7, 3), (8, 4), (7, 100)])
def test_pairs_that_windows_side_by_side_leave(seq_len: int, window: int | None) -> None:
    size = window or seq_len
    left = sum(1 for q in range(seq_len) for k in range(q + 1) if q // size == k // size)
    assert attention_pairs(seq_len, window, chunks=True) == left


@pytest.mark.parametrize(("seq_len", "window"), [(1, None), (7, None), (7, 3), (7, 100), (64, 1)])
def test_pairs_that_the_mask_leaves(seq_len: int, window: int | None) -> None:
    left = sum(1 for q in range(seq_len) for k in range(q + 1) if window is None or q - k < window)
    assert attention_pairs(seq_len, window) == left


def test_causal_attention_is_half_and_windows_are_less() -> None:
    fused = operators(load_model_spec("mistral-7b-v0.3"), ONE, 8192)
    core = next(o for o in fused if o.kind == "attention")
    # 8 sequences would be fa-flops: 4 b s^2 h d, halved; the diagonal adds 1/s
    assert core.flops == 4 * 8192**2 * 32 * 128
    assert core.masked == pytest.approx(0.5, rel=2 / 8192)
    windowed = next(o for o in operators(load_model_spec("mistral-7b-v0.1"), ONE, 8192) if o.kind == "attention")
    assert windowed.flops_causal == pytest.approx(4 * (8192 * 4096 - 4096**2 / 2) * 32 * 128, rel=1e-3)
    assert windowed.flops == core.flops


def test_active_experts_count_once_each() -> None:
    """A mixture's FLOPs are 6 x the active parameters that multiply, within its norms and scores (0.1%)."""
    m = load_model_spec("qwen3-30b-a3b")
    matmuls = flops_per_token(m, 1, causal=True) - 12 * m.num_hidden_layers * m.num_attention_heads * m.dim_per_head
    assert matmuls == pytest.approx(6 * count(m).active_without_input, rel=1e-3)


# -- activations ------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [1, 8])
def test_korthikanti(t: int) -> None:
    """Korthikanti et al. 2022, table 2: bytes of a layer, 16 bit, with dropout's terms added to ours."""
    h, a, s, b, layers = 6144, 64, 2048, 4, 48
    m = gpt(layers, h, a)

    def per_layer(sp: bool, recompute: str) -> float:
        layout = Layout(devices=t, tp=t, sp=sp if t > 1 else False, micro_batch=b, precision="bf16")
        ops = [o for o in operators(m, layout, s, attention="unfused") if o.layer == 1]
        if recompute == "full":
            return sum(o.saved_full for o in ops)
        drop = dropout_bytes(m, layout, s) / layers
        square = 3 * a * s * s * b / t
        if recompute == "core":
            return sum(o.saved - o.saved_core for o in ops) + drop - square
        return sum(o.saved for o in ops) + drop

    sbh, scores = s * b * h, 5 * a * s / h
    assert per_layer(False, "none") == pytest.approx(sbh * (10 + 24 / t + scores / t))
    assert per_layer(True, "none") == pytest.approx(sbh * (34 + scores) / t)
    assert per_layer(False, "core") == pytest.approx(sbh * (10 + 24 / t))
    assert per_layer(True, "core") == pytest.approx(sbh * 34 / t)
    assert per_layer(False, "full") == pytest.approx(2 * sbh)


def test_korthikanti_figure_7() -> None:
    """The shares of the tensor-parallel baseline that the figure shows for 22B (66.84, 49.42, 16.18%)."""
    m = gpt(1, 6144, 64)
    plain, cut = (Layout(devices=8, tp=8, sp=sp, micro_batch=4, precision="bf16") for sp in (False, True))

    def layer(layout: Layout, core: bool) -> float:
        ops = [o for o in operators(m, layout, 2048, attention="unfused") if o.layer == 0]
        kept = sum(o.saved - (o.saved_core if core else 0) for o in ops)
        return kept + dropout_bytes(m, layout, 2048, attention="fused" if core else "unfused")

    base = layer(plain, False)
    assert 100 * layer(cut, False) / base == pytest.approx(66.84, rel=0.012)
    assert 100 * layer(plain, True) / base == pytest.approx(49.42, rel=0.012)
    assert 100 * layer(cut, True) / base == pytest.approx(16.18, rel=0.012)


def test_recompute_kinds_keep_less_and_less() -> None:
    m = load_model_spec("llama-3.1-8b")

    def kept(recompute: object) -> float:
        return activation_bytes(m, Layout.parse({"recompute": recompute, "precision": "bf16"}), 4096)

    none, selective, full = kept("none"), kept("selective"), kept("full")
    assert full < selective < none
    tokens, inside = 4096, 32
    # Llama: the input, q, k, v, the two of the MLP, and the outputs of o and down
    widths = 4096 + 4096 + 1024 + 1024 + 2 * 14336 + 2 * 4096
    outside = 2 * tokens * 2 * 4096 + 4 * tokens * 128256  # the final norm's in and out; fp32 probabilities
    assert selective == pytest.approx(inside * tokens * 2 * widths + outside)
    assert full == pytest.approx(inside * tokens * 2 * 4096 + outside)
    assert kept({"every": 2}) == pytest.approx((none + full) / 2)
    assert kept({"every": 1}) == full
    assert full <= kept({"budget": 0.5}) <= none
    assert kept({"budget": 0}) == full
    assert kept({"budget": 1}) == none


def test_bytes_and_flops_of_recomputation() -> None:
    m = load_model_spec("llama-3.1-8b")
    full = Layout(recompute="full")
    inside = sum(o.flops_causal for o in operators(m, ONE, 4096) if 0 <= o.layer < 32)
    core = sum(o.flops_causal for o in operators(m, ONE, 4096) if o.kind == "attention")
    assert recompute_flops(m, full, 4096) == pytest.approx(inside)
    assert recompute_flops(m, Layout(recompute="selective"), 4096) == pytest.approx(core)
    assert recompute_flops(m, Layout.parse({"recompute": {"every": 4}}), 4096) == pytest.approx(inside / 4)
    assert recompute_flops(m, ONE, 4096) == 0


def test_fp32_activations_are_twice_as_large() -> None:
    m = load_model_spec("llama-3.1-8b")
    layers = range(1, 31)  # without the loss, which is in fp32 anyway
    half = activation_bytes(m, Layout(precision="bf16"), 1024, layers=layers)
    logarithms = 30 * 1024 * 32 * 4  # the softmax's, in fp32 anyway
    assert activation_bytes(m, Layout(precision="fp32"), 1024, layers=layers) == 2 * half - logarithms
