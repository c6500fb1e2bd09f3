"""torchtitan, both ways: a Python module for 0.3, TOML before it.

    ours ──► dotted keys of 0.2 ──► toml.py     [parallelism] tensor_parallel_degree = 8         0.1, 0.2
                                ──► python.py   parallelism=ParallelismConfig(tensor_..=8, ...)  0.3

    keys.py      keys that mean the same, their defaults, and the names that older releases had for them
    layout.py    parallelism, recomputation, precision, offloading
    training.py  optimizer, learning rate, data, saves; and its keys, read as a run
    flavors.py   models that it has by name
    *.txt        functions that make any other decoder of its parts, whose calls have literals alone, so that they are
                 read back without being run: decoder (GQA, dense or experts; parts of models/qwen3), latent (MLA; of
                 models/deepseek_v3), own_model (0.2: arguments of the same classes), and where names are imported from

Releases 0.1.0, 0.2.2 and 0.3.0 were read (2026-11).
"""
