"""The guard against bad numbers: losses and gradients that aren't finite, and spikes.

on the device   decide.py    is the update taken, and how is its gradient scaled?
                │            spikes.py: what is unusual; scale.py: the loss scale of fp16
on the host     health.py    events, lines, and the end of a run
                ├─ suspect.py   which weight, output or gradient went bad first
                └─ rewind.py    back to a checkpoint, and on without the samples of a spike
"""
