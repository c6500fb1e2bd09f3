"""Megatron-Bridge: a recipe in Python, and the YAML of its overrides and of NeMo before it.

    fields.py         Megatron's arguments as fields of ConfigContainer, both ways
    files.py          a recipe: the arguments of emit/megatron as fields; what is recognised
    read.py           overrides, recipes, and tests' `trainer.strategy.*`: fields as arguments
    nemo.py           NeMo 1's YAML as arguments

Megatron's own readers make a run of the arguments.
"""
