"""The network: one plain decoder from small parts, and the way in and out of Hugging Face's files.

decoder.py   the network, or the layers of one stage    block.py    attention and MLP around a residual stream
attention.py, mlp.py, norm.py, rope.py, moe.py      context.py  what tokens see, and rotary tables
visible.py   which keys a query sees, and tiles      attend.py   attention of parts, forward and backward
rows.py      packed rows, windows, caps, ALiBi       gpu_rows.py the same by a GPU's kernels
cache.py     keys and values while generating        init.py     first values of the weights
load.py      a model from a folder or a preset       python.py   a user's own nn.Module
huggingface.py, companions.py   read and write their files        names.py   where each tensor lies in them
torch_private.py   private names of torch, all of them
"""
