"""Bytes of weights, gradients and optimizer states, by recipe, ZeRO stage and ranks.

    bytes a parameter            weights  gradients  optimizer   sum
    16 bits, Adam (ZeRO, 2019)      2         2         12        16     12: fp32 master 4, two moments 8
    with fp32 gradients             2         4         12        18     Megatron's bf16
    in 32 bits                      4         4          8        16
    the scaling book's              2         0          8        10     no master, no gradients at rest

    ZeRO stage   0: none of it shared out   1: optimizer   2: and gradients   3: and weights

Rajbhandari et al. 2020 §3.1 and §5. These are a recipe's bytes; what this package's own trainer holds, tensor
by tensor, is in `spec/memory.py`, and what a plan's worst rank holds in `plan/cost/memory.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


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
