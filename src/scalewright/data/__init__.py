"""Text to tokens to batches: prepared once, read by number, resumable at every point. Numpy, no torch.

prepare   prepare.py: inputs.py, plan.py, sample.py, pieces.py, workers.py, encode.py, join.py
          documents.py, seams.py: text    tokenizer.py, word_encoder.py    metadata.py
read      readers.py, shards.py, tokens.py, check.py: any maker's token files as one TokenStore
batch     dataset.py: sample number to Batch (batch.py), so a resume needs one number    packing.py, prefetch.py
          mixture.py: several sources, and samples that a run passes over
own data  custom.py: items.py, sources.py, reading.py              stand_in.py: for dry runs
"""
