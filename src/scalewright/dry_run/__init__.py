"""`train --dry-run`: what every rank would hold, send and compute, without the devices.

    run.yaml --equal_ranks.py--> groups of like ranks --rehearse.py--> one step of one rank of each group
                                                                     |
        does it fit the cluster? <-- dry_run.py: per group, FLOPs, traffic, memory by kind

`rehearse.py` runs the trainer's own program of one rank on tensors without numbers, under `watch.py`, which counts
collectives, FLOPs and live bytes (`live_bytes.py`); `no_numbers.py` makes operators keep what they keep on a GPU, and
stands in where a rank would look at numbers. `replay.py` makes a few micro-batches stand for a whole step of a
pipeline. `fits_here.py` is another entry: before a run starts, does it fit this machine? The commands pass it to
`train`, which imports nothing from here.
"""
