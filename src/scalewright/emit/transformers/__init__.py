"""Transformers' Trainer: training_args.json, a training script and config.json; its arguments read back.

    arguments.py   the files, and arguments (JSON or YAML) as a run
    schedule.py    learning rates and optimizers in its words, both ways, and in Axolotl's and LLaMA-Factory's

Words are those of transformers 5.23 (transformers/training_args.py, optimization.py, read 2026-11).
"""
