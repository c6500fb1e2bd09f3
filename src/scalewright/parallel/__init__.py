"""Splits the work over ranks: one technique, one file, one `apply_*`; all from outside the model.

parallelize.py   the entry: which technique is applied when
mesh.py          coordinates and process groups        blocks.py     the units that techniques work on
tensor.py        tp and sp: matrices cut over ranks    regather.py   sp's inputs, gathered again
functions.py     collectives with a gradient           sums.py       partial gradients, summed
vocabulary.py    cross-entropy of logits cut by tp     weights.py    a rank's part of every parameter
cross_entropy.py the built-in loss                     chunked_loss.py  with the head: no whole logits
logits_loss.py   the loss of a chunk of logits
replicate.py     DDP; bucket.py, half_buckets.py,      shard.py      ZeRO 1 to 3 and HSDP, by FSDP2
                 power_sgd.py: how it is sent          shard_gradients.py: when it gathers, reduces, frees
wire.py          means in few bytes, for islands
pipeline.py      a schedule's actions, run in order    stages.py, messages.py   what a rank holds and sends
backward.py      a backward, whole or in two parts     execute.py    micro-batches: gradients accumulated
recompute.py     activations run again                 budget.py     under a budget of memory
offload_states.py, offload_activations.py   on the host (host.py: host memory on a CPU)
context.py, ring.py, attend.py   cp                    expert.py, overlap_shared_experts.py   ep, etp
compile.py, collectives.py, inputs.py, buffers.py; timers.py, shard_timers.py, timeline.py: where time went
"""
