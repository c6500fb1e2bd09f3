"""Bytes of a run: weights, gradients and optimizer states by recipe and ZeRO stage; a GPT's activations.

    bytes a parameter            weights  gradients  optimizer   sum
    16 bits, Adam (ZeRO, 2019)      2         2         12        16     12: fp32 master 4, two moments 8
    with fp32 gradients             2         4         12        18     Megatron's bf16
    in 32 bits                      4         4          8        16
    the scaling book's              2         0          8        10     no master, no gradients at rest

    ZeRO stage   0: none of it shared out   1: optimizer   2: and gradients   3: and weights
                                                                      Rajbhandari et al. 2020 §3.1, §5
    activations of a layer, dropout   s b h x                            recomputed
    tensor parallel t                 10 + 24/t + 5 a s / (h t)          nothing
    with sequence parallelism         34/t + 5 a s / (h t)               nothing
    ... with selective                the same without 5 a s / (h t)     attention's core
    full                              2                                  the whole layer
                                                                         Korthikanti et al. 2022, table 2

s tokens, b sequences, h hidden, a heads; 16 bits. These are a recipe's bytes and GPT's count (an MLP of 4 h
with GELU, masks of dropout). What this package's trainer holds, tensor by tensor, is in `spec/memory.py`,
what a Llama's block keeps in `spec.operators.activation_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import activation_bytes, dropout_bytes


@dataclass(frozen=True)
class ModelStates:
    """Bytes on one device."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """All three."""
        return self.weights + self.gradients + self.optimizer


def model_states(
    parameters: float,
    weights: float = 2.0,
    gradients: float = 2.0,
    optimizer: float = 12.0,
    zero_stage: int = 0,
    ranks: int = 1,
    model_parallel: int = 1,
) -> ModelStates:
    """Bytes on each device; `weights`, `gradients`, `optimizer` are bytes a parameter.

    `model_parallel`: ways of tensor and pipeline parallelism, which cut everything evenly. `ranks`: those
    that share what the stage shares out.
    """

    def held(each: float, from_stage: int) -> float:
        return each * parameters / model_parallel / (ranks if zero_stage >= from_stage else 1)

    return ModelStates(held(weights, 3), held(gradients, 2), held(optimizer, 1))


def saved_bytes(tokens: float, width: int, layers: int, tensors: int, element: float = 2.0) -> float:
    """Bytes of activations when every layer keeps `tensors` of [tokens, width] (scaling book, part 4)."""
    return element * tensors * tokens * width * layers


@dataclass(frozen=True)
class RunMemory:
    """Bytes of a whole run over all its devices, and of the devices that it needs."""

    states: ModelStates
    checkpoints: float
    capacity: float
    model_parallel: int

    @property
    def total(self) -> float:
        """States and activation checkpoints together."""
        return self.states.total + self.checkpoints

    @property
    def devices(self) -> float:
        """Devices whose memory holds it all once."""
        return self.total / self.capacity

    @property
    def per_device(self) -> float:
        """Bytes on each, cut by model parallelism alone."""
        return self.total / self.model_parallel

    @property
    def fits(self) -> bool:
        """Whether model parallelism alone makes room for it."""
        return self.per_device <= self.capacity


def run_memory(
    parameters: float,
    capacity: float,
    tokens: float = 0.0,
    width: int = 0,
    layers: int = 0,
    tensors: int = 0,
    weights: float = 2.0,
    gradients: float = 0.0,
    optimizer: float = 8.0,
    model_parallel: int = 1,
) -> RunMemory:
    """The memory of one copy of a model in training, with `tensors` checkpoints of every layer for `tokens`.

    The scaling book's estimate (part 6): sharded evenly, gradients not at rest.
    """
    states = model_states(parameters, weights, gradients, optimizer)
    return RunMemory(states, saved_bytes(tokens, width, layers, tensors), capacity, model_parallel)


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
    hidden: int, heads: int, seq_len: int, tp: int = 1, sequence_parallel: bool = False, recompute: Kept = "none"
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
    return (whole - gpt_activation_bytes(hidden, heads, seq_len, 1, recompute="selective")) / (seq_len * hidden)


def nested_inputs(layers: int, group: int | None = None) -> float:
    """Block inputs alive where only every k-th is kept: k + L / k, least at k = sqrt(L) (Chen et al. 2016 §3.2)."""
    every = group or max(1, round(layers**0.5))
    return every + layers / every
