"""litgpt: the YAML of `litgpt pretrain --config`, both ways.

ours                       theirs
zero_stage 3               always, on more than one device: FSDP that shards in a node and replicates
dp_replicate               num_nodes (HYBRID_SHARD is hard-coded, Lightning-AI/litgpt#1731)
steps                      train.max_tokens = steps x global_batch x seq_len
lr_schedule constant       a cosine that ends at the rate where it begins
mlp_type gelu_tanh         mlp_class_name GptNeoxMLP, gelu_approximate tanh

It has no tensor, pipeline, context or expert parallelism in training, and no recomputation. Keys are those of
0.5.13 (litgpt/{pretrain,args,config}.py).
"""

from __future__ import annotations

from scalewright.emit.litgpt.read import read, recognises
from scalewright.emit.litgpt.write import write

__all__ = ["read", "recognises", "write"]
