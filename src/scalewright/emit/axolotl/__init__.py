"""Axolotl's YAML, both ways; its words are the Trainer's, and own ones for the layout and the data.

dp_replicate, dp_shard    dp_replicate_size, dp_shard_size
tp, cp                    tensor_parallel_size, context_parallel_size
zero_stage 2, 3           fsdp_version 2, fsdp_config.reshard_after_forward       1: deepspeed
batch                     micro_batch_size, gradient_accumulation_steps
samples                   rows/, made by make_inputs.py, in their order (curriculum_sampling)

Words are those of Axolotl 0.19 (src/axolotl/utils/schemas/*.py, read 2026-11). It ignores keys that it
doesn't have.
"""

from __future__ import annotations

from scalewright.emit.axolotl.read import read, recognises
from scalewright.emit.axolotl.write import write

__all__ = ["read", "recognises", "write"]
