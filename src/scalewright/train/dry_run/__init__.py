"""`train --dry-run`: the real program of every rank, on tensors without numbers, counted.

dry_run.py      which ranks, how long, what comes out
│               alike.py: ranks that do the same are played once
rehearse.py     plays one rank; gpu_forms.py: what operators keep on a GPU
│               pieces.py, replay.py: a few micro-batches stand for a whole step of a pipeline
verdict.py      does it fit the cluster?
preflight.py    before a run starts: does it fit this machine?
"""
