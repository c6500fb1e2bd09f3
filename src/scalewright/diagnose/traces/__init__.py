"""Traces of profilers as columns.

trace.py        the columns, whoever recorded them   kinds.py   what a kernel does, by its name
kineto.py       PyTorch's profiler: events to columns  nsys.py     Nsight Systems' SQLite exports
json_array.py   events of a JSON file of any size      unpack.py   its bytes, unzipped, up to damage
"""
