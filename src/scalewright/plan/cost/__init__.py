"""The formulas, over arrays: seconds and bytes of every row of a table; `evaluate.py` is the door.

units.py, table.py    requests as arrays         work.py    the operators of a rank
kernels.py (kernel_table.py), collectives.py     seconds of an operator, of an exchange; cpu.py: by curves
columns.py            what all parts of a step read, one number a row
timeline.py           one step: microbatch.py (exchange.py), pipeline.py, data_parallel.py, optimizer.py
traffic.py            the bytes sent by axis; own_traffic.py (padded.py): of this package's trainer
memory.py             the bytes held: states.py, activations.py           band.py   how sure
own_memory.py         the same of this package's trainer, moment by moment
"""
