"""Splits the work over ranks: one technique, one file, one `apply_*`; all from outside the model.

parallelize.py   the entry: which technique is applied when; compilation, and a user's buffers
mesh.py          coordinates and process groups        stages.py     a rank's stages, and their blocks
tensor.py        tp and sp: matrices cut over ranks    weights.py    a rank's parameters, their gradients
functions.py     collectives with a gradient           owners.py     whole matrices, each on one rank
cross_entropy.py the loss, of logits cut by tp, too    chunked_loss.py  with the head: no whole logits
replicate.py     DDP; bucket.py, power_sgd.py: how     shard.py      ZeRO 1 to 3 and HSDP, by FSDP2
                 gradients are sent                    shard_gradients.py: when it gathers, reduces, frees
wire.py          means in few bytes, for islands
pipeline.py      a schedule's actions, run in order    messages.py   what a rank sends
backward.py      a backward, whole or in two parts     execute.py    micro-batches: gradients accumulated
recompute.py     activations run again                 offload_states.py, offload_activations.py   on the host
context.py, ring.py   cp                               expert.py     ep, etp
collectives.py, inputs.py; timers.py: where time went
"""
