"""The limits of this machine: ranks, memory, and the time of a comparison.

    seconds = steps x 2 optimizers x (control + layout) x 6 x active parameters x tokens of a step / FLOP/s
    bytes   = 16 x parameters x copies that the layout holds at once + logits of every rank

Rough on purpose: a comparison is to answer in a minute or two, and a small model shows a wrong layout as well
as a large one.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from scalewright.launch.local import cores
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import count

RUNS = 4  # control and layout, each with the run's optimizer and with SGD
SECONDS = 120.0
CPU_RANKS = 8  # that a small machine runs at once without trouble
CORE_RATE = 1e10  # FLOP/s of one core in fp32, of the small products that a rank's part is made of
GPU_RATE = 1e13  # FLOP/s of one GPU in fp32
STATE_BYTES = 16  # fp32: parameter, gradient, two moments


@dataclass(frozen=True)
class MachineLimits:
    """The limits of a comparison."""

    ranks: int
    rate: float  # FLOP/s in all
    memory: float  # bytes in all
    device_memory: float  # bytes that one rank may take


def find_limits(device: str) -> MachineLimits:
    """The limits of this machine; raises UserError when there is no such device."""
    if device == "cpu":
        free = 0.5 * psutil.virtual_memory().available
        return MachineLimits(max(CPU_RANKS, cores()), CORE_RATE * cores(), free, free)
    import torch

    if not torch.cuda.is_available():
        raise UserError("torch can't use cuda on this machine", "--device", "use cpu")
    gpus = torch.cuda.device_count()
    free = 0.7 * min(torch.cuda.mem_get_info(index)[0] for index in range(gpus))
    return MachineLimits(gpus, GPU_RATE * gpus, free * gpus, free)


def too_large(model: ModelSpec, layout: Layout, seq_len: int, steps: int, limits: MachineLimits) -> bool:
    """Whether comparing this model under this layout would take too long or too much memory."""
    parameters = count(model)
    seconds = 6.0 * parameters.active * layout.global_batch * seq_len * steps * RUNS / limits.rate
    if layout.zero_stage == 3:
        copies = layout.dp_replicate * layout.cp
    else:
        copies = layout.dp * layout.cp
    logits = 12.0 * layout.micro_batch * seq_len * model.vocab_size
    activations = 80.0 * layout.micro_batch * seq_len * model.hidden_size * model.num_hidden_layers
    control = STATE_BYTES * parameters.total + logits + activations
    whole = STATE_BYTES * parameters.total * copies + (logits + activations) * layout.dp
    return seconds > SECONDS or control > limits.device_memory or whole > limits.memory
