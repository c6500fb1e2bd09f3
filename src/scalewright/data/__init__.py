"""Text to tokens to batches: prepared once, read by number, resumable at every point. Numpy, no torch.

prepare   prepare.py: inputs.py, plan.py, sample.py, pieces.py, workers.py, encode.py, join.py
          documents.py (bad_lines.py, corpora.py)    tokenizer.py, word_encoder.py  progress.py, statistics.py
read      readers.py, shards.py, tokens.py: any maker's token files as one TokenStore    identity.py
batch     dataset.py: sample number to Batch (batch.py), so a resume needs one number
          order.py: shuffled without a table    packing.py, prefetch.py
          mixture.py, mixture_positions.py: several sources    left_out.py: samples that a run passes over
own data  custom.py: items.py, sources.py, indexed.py, reading.py              stand_in.py: for dry runs
"""
