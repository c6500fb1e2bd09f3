"""Text to tokens to batches: prepared once, read by number, resumable at every point. Numpy, no torch.

prepare    text ──► token shards                         prepare.py and the files that it names
read       shards, Megatron, .npy, raw ──► TokenStore     readers.py, shards.py, tokens.py
batch      sample number ──► Batch                        dataset.py: order.py, mixture.py, packing.py
"""
