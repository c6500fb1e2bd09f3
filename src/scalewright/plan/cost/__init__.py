"""The formulas, over arrays: seconds and bytes of every row of a table; `evaluate.py` is the entry point.

requests   table.py (units.py)    requests as arrays, and what is priced once
           columns.py             what all parts of a step read, one number a row
operators  work.py, parts.py      a rank's operators; parts that are recomputed or kept in 8 bits
           kernels.py             a roofline's seconds, efficiency by shape (kernel_table.py)
           cpu_kernels.py         seconds by the curves of a CPU
           switch_effects.py      what switches and trainers change: CUDA graphs, fp8, dispatchers, modules
transfers  volumes.py             what a rank sends in a step (shares.py, padded.py); exchange.py: cp and ep;
                                  usual_volumes.py: of other trainers
           links.py               their seconds (collectives.py); bytes_by_axis.py: as users count
           price_list.py          both by kind of device; host.py: launches; cpu.py: processes of one machine
a step     timeline.py            microbatch.py, pipeline.py, data_parallel.py, optimizer.py; band.py
memory     memory.py              states.py, activations.py, memory_kinds.py; memory_band.py: how sure
           own_memory.py          the same of this package's trainer, moment by moment
"""
