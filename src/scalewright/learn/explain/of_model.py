"""Quantities of a run's model: sizes, parameters, bytes of its weights.

Bytes are of 16 bits a number where nothing else is said.
"""

from __future__ import annotations

from functools import cached_property
from math import log

from scalewright.learn.explain.asked_run import AskedRun
from scalewright.spec.model import MoE


class ModelQuantities(AskedRun):
    """What a model has, whatever runs it."""

    @property
    def model_name(self) -> str:
        """As its preset or file calls it."""
        source = self.question.run.model
        return source if isinstance(source, str) and "/" not in source else self.model.name

    @property
    def parameters(self) -> int:
        return self.sizes.total

    @property
    def active_parameters(self) -> int:
        return self.sizes.active

    @property
    def layers(self) -> int:
        return self.model.num_hidden_layers

    @property
    def hidden(self) -> int:
        return self.model.hidden_size

    @property
    def width(self) -> int:
        """Of an MLP's inside."""
        return self.model.intermediate_size

    @property
    def heads(self) -> int:
        return self.model.num_attention_heads

    @property
    def kv_heads(self) -> int:
        return self.model.kv_heads

    @property
    def head_dim(self) -> int:
        return self.model.dim_per_head

    @property
    def vocabulary(self) -> int:
        return self.model.vocab_size

    @property
    def experts(self) -> int | None:
        return self.model.moe.num_experts if self.model.moe else None

    @property
    def top_k(self) -> int | None:
        return self.model.moe.top_k if self.model.moe else None

    @property
    def moe(self) -> MoE | None:
        return self.model.moe

    @property
    def theta(self) -> float:
        """Of rotary positions."""
        return self.model.rope.theta

    @property
    def qkv_width(self) -> int:
        """Columns of the three projections together."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def compute_optimal_tokens(self) -> float:
        """20 for each parameter (Hoffmann et al. 2022)."""
        return 20.0 * self.parameters

    @property
    def compute_optimal_flops(self) -> float:
        return 6.0 * self.active_parameters * self.compute_optimal_tokens

    @property
    def uniform_nats(self) -> float:
        """Cross-entropy of a guess that knows nothing."""
        return log(self.vocabulary)

    @property
    def mlp_shape(self) -> tuple[int, int]:
        """Of an MLP's matrix."""
        return self.width, self.hidden

    @property
    def weight_bytes(self) -> int:
        """In 16 bits."""
        return 2 * self.parameters

    @cached_property
    def block_parameters(self) -> int:
        """Of one block."""
        from scalewright.spec.tensors import block_tensors

        return sum(tensor.size for tensor in block_tensors(self.model, self.layers - 1))

    @property
    def active_bytes(self) -> int:
        """Of the weights that work on a token, in 16 bits."""
        return 2 * self.active_parameters

    @property
    def checkpoint_bytes(self) -> float:
        """Master weights and Adam's moments."""
        return 12.0 * self.parameters
