"""Activation bytes of a GPT (Korthikanti et al. 2022, table 2), from the operators that the planner prices.

    a layer, 16 bits, dropout         s b h x                                   recomputed
    tensor parallel t                 10 + 24/t + 5 a s / (h t)                 nothing
    with sequence parallelism         34/t + 5 a s / (h t)                      nothing
    ... with selective                the same without 5 a s / (h t)            attention's core
    full                              2                                         the whole layer

s tokens, b sequences, h hidden, a heads. It is GPT's count: an MLP of 4 h with GELU, and masks of dropout; a
Llama's block keeps other tensors, which `spec.operators.activation_bytes` counts.
"""

from __future__ import annotations

from typing import Literal

from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import activation_bytes, dropout_bytes

Kept = Literal["none", "selective", "full"]


def gpt(hidden: int, heads: int, layers: int, vocab: int = 51200, positions: int = 2048) -> ModelSpec:
    """A GPT-2 style decoder: learned positions, biases, LayerNorm, a GELU MLP of 4 h, a tied head."""
    return ModelSpec.parse({
        "family": "gpt2", "hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "vocab_size": vocab, "context": positions, "positions": "learned",
        "learned_positions": positions, "mlp_type": "gelu", "norm_type": "layernorm", "qkv_bias": True,
        "o_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
    })  # fmt: skip


def gpt_activation_bytes(
    hidden: int,
    heads: int,
    seq_len: int,
    layers: int,
    batch: int = 1,
    tp: int = 1,
    sequence_parallel: bool = False,
    recompute: Kept = "none",
    embedding_mask: bool = False,
) -> float:
    """Bytes that one device keeps of `layers` blocks for the backward; `recompute` as the table above has it.

    `embedding_mask` adds the byte an element that dropout after the embedding keeps, as nanotron's playbook
    does. "selective" is Megatron's: attention's core only.
    """
    model = gpt(hidden, heads, layers + 2)  # with a block at either end, so that none has embedding or head
    layout = Layout(devices=tp, tp=tp, sp=sequence_parallel, micro_batch=batch, precision="bf16")
    blocks = range(1, layers + 1)
    kind: Literal["none", "core", "full"] = "core" if recompute == "selective" else recompute
    kept = activation_bytes(model, layout, seq_len, layers=blocks, attention="unfused", recompute=kind)
    if recompute != "full":  # the masks outside attention stay; those of its scores go with the core
        scores: Literal["unfused", "fused"] = "unfused" if recompute == "none" else "fused"
        kept += dropout_bytes(model, layout, seq_len, attention=scores) * layers / (layers + 2)
    return kept + (batch * seq_len * hidden if embedding_mask else 0)


def gpt_activation_share(
    hidden: int,
    heads: int,
    seq_len: int,
    tp: int = 1,
    sequence_parallel: bool = False,
    recompute: Kept = "none",
) -> float:
    """A layer's activations over those of tensor parallelism alone (Korthikanti et al. 2022, figure 7)."""
    base = gpt_activation_bytes(hidden, heads, seq_len, 1, tp=tp)
    return gpt_activation_bytes(hidden, heads, seq_len, 1, 1, tp, sequence_parallel, recompute) / base


def core_saving(hidden: int, heads: int, seq_len: int) -> float:
    """The share of a layer's activations that selective recomputation saves (Korthikanti et al. 2022 §5)."""
    return 1 - gpt_activation_share(hidden, heads, seq_len, recompute="selective")


def core_term(hidden: int, heads: int, seq_len: int) -> float:
    """5 a s / h: bytes that attention's core keeps, in units of s b h."""
    whole = gpt_activation_bytes(hidden, heads, seq_len, 1)
    return (whole - gpt_activation_bytes(hidden, heads, seq_len, 1, recompute="selective")) / (
        seq_len * hidden
    )
