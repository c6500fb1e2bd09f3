"""The formulas, over arrays: seconds and bytes of every row of a table; `evaluate.py` is the door.

units.py, table.py    requests as arrays         work.py    the operators of a rank
volumes.py (shares.py, padded.py)                what a rank sends      traffic.py   its bytes by axis
kernels.py (kernel_table.py)                     seconds of an operator; cpu.py: by curves
links.py (collectives.py)                        seconds of a transfer; cpu.py: by curves
columns.py            what all parts of a step read, one number a row
timeline.py           one step: microbatch.py (exchange.py), pipeline.py, data_parallel.py, optimizer.py
memory.py             the bytes held: states.py, activations.py           band.py   how sure
own_memory.py         the same of this package's trainer, moment by moment
"""
