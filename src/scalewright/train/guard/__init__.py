"""The guard against bad numbers: losses and gradients that aren't finite, and spikes.

on the device   decide.py    is the update taken, and how is its gradient scaled? (spikes.py: what is unusual)
on the host     health.py    events, lines, the end of a run, or back to a checkpoint and on without a spike's samples
                suspect.py   which weight, output or gradient went bad first
"""
