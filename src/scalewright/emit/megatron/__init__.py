"""Megatron-LM: the arguments of pretrain_gpt.py, both ways.

    keys.py     keys that mean the same in both
    model.py    the network: what follows from several keys
    layout.py   parallelism, recomputation, precision, offloading
    training.py optimizer, learning rate, data, saves
    files.py    a run script; a command line, a script, a test's YAML or printed arguments as a run

Words are those of Megatron Core 0.16 to 0.19 (megatron/training/arguments.py, read 2026-11).
"""
