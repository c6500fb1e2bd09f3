"""MaxText: a YAML beside its base.yml, both ways.

ours                    theirs (product of the axes: the devices)
zero_stage 0, 1         data; 1 with shard_optimizer_over_data
zero_stage 3            fsdp = dp_shard / ep, data = dp_replicate
tp, sp                  tensor_sequence with sp, tensor without
ep                      expert, over which dense parameters are sharded, too; experts are split over tp
pp, virtual_stages      stage, num_pipeline_repeats: all forwards come before the backwards (gpipe)
cp                      context, over which parameters are sharded, too
micro_batch             per_device_batch_size = micro_batch / (tp x cp): every device counts
recompute               remat_policy: selective minimal, none minimal_with_context

Keys and conditions are those of 0.2.5 (src/maxtext/configs/{base.yml,types.py}).
"""

from __future__ import annotations

from scalewright.emit.maxtext.read import read, recognises
from scalewright.emit.maxtext.write import write

__all__ = ["read", "recognises", "write"]
