"""Tables of a pipeline's operations: which worker, stage or operation slows the job, by a what-if.

table.py      a parquet file as arrays          kinds.py     what the operations are called, as data
order.py      what each operation waits for     clock.py     when each begins and ends, with other durations
slowdown.py   the what-ifs                      verdicts.py  their causes        answer.py   the JSON's keys
"""
