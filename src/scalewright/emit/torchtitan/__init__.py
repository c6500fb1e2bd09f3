"""torchtitan, both ways: a Python module for 0.3, TOML before it.

    ours ──► dotted keys of 0.2 ──► toml.py     [parallelism] tensor_parallel_degree = 8         0.1, 0.2
                                ──► python.py   parallelism=ParallelismConfig(tensor_..=8, ...)  0.3

    keys.py      keys that mean the same, their defaults, and the names that older releases had for them
    layout.py    parallelism, recomputation, precision, offloading
    training.py  optimizer, learning rate, data, saves; and its keys, read as a run
    flavors.py   models that it has by name
    decoder.py   functions that make any other decoder of its parts

Releases 0.1.0, 0.2.2 and 0.3.0 were read (2026-11).
"""
