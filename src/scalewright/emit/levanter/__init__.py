"""Levanter: the YAML of `python -m levanter.main.train_lm --config_path`, both ways.

ours                       theirs
zero_stage 3, 0            trainer.fsdp_axis embed, null
dp_replicate               trainer.replica_ici_axis_size
tp                         trainer.tensor_parallel_axes [mlp, heads], model_axis_size
micro_batch                trainer.per_device_parallelism
recompute full, none       model.gradient_checkpointing true, false; `offload` keeps its inputs in host memory
wsd                        optimizer.lr_schedule linear, with `decay` steps

It has no pipeline and no context parallelism; its trainer takes all devices of its hosts. Keys are those of
September 2025 (src/levanter/{trainer,models/llama,models/mixtral,optim/config}.py), before it moved to marin.
"""

from __future__ import annotations

from scalewright.emit.levanter.read import read, recognises
from scalewright.emit.levanter.write import write

__all__ = ["read", "recognises", "write"]
