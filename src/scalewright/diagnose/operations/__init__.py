"""Tables of a pipeline's operations: which worker, stage or operation slows the job, by a what-if.

table.py   a parquet file as arrays, and what the operations are called
order.py   what each operation waits for     slowdown.py   the what-ifs     answer.py   causes, the JSON's keys
"""
