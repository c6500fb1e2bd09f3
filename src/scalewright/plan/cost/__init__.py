"""The formulas, over arrays: seconds and bytes of every row of a table; `evaluate.py` is the entry point.

requests   table.py, units.py     requests as arrays, and what is priced once
           facts.py, habits.py    a number a unit: of devices and operators; of trainers, by a run's switches
           columns.py             the same a row: what all parts of a step read
operators  work.py                a rank's operators; parts that are recomputed or kept in 8 bits
           kernels.py             a roofline's seconds, efficiency by shape
           cpu_kernels.py         seconds by the curves of a CPU
transfers  volumes.py             what a rank sends in a step (padded.py), by axis; exchange.py: cp, ep;
                                  usual_volumes.py: of other trainers
           links.py               their seconds
           price_list.py          both by kind of device, and launches; cpu.py: processes of one machine
a step     timeline.py            microbatch.py, pipeline.py, optimizer.py
memory     memory.py              states.py, activations.py; what is called memory, and how sure
           own_memory.py          the same of this package's trainer, moment by moment
"""
