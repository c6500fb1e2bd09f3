"""GPT-NeoX: the YAML of deepy.py, both ways; dense models (its mixtures aren't written).

ours                          theirs
mlp width of SwiGLU, GeGLU    intermediate_size / 3: transformer.py halves two thirds of it
pp 1                          pipe_parallel_size 0, without DeepSpeed's pipeline engine
warmup_steps                  warmup, a share of lr_decay_iters, which counts the warm-up in
zero_stage 2, 3 with pp       1: DeepSpeed's pipeline engine refuses more
vocab_size                    its tokenizer's, padded

Keys with `-` are the same as with `_`. They are those of its main branch of May 2026
(megatron/neox_arguments/{neox_args,deepspeed_args}.py).
"""

from __future__ import annotations

from scalewright.emit.gpt_neox.read import read, recognises
from scalewright.emit.gpt_neox.write import write

__all__ = ["read", "recognises", "write"]
