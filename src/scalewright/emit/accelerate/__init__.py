"""Accelerate: accelerate_config.yaml, a training script and config.json; its YAML read back.

    write.py    the files
    read.py     a configuration as a run
    words.py    keys that both have, those that say nothing about a run, and names of strategies

Words are those of Accelerate 1.10 to 1.15 (accelerate/commands/config/config_args.py, commands/launch.py,
read 2026-11).
"""
