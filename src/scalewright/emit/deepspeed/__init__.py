"""DeepSpeed: ds_config.json, a training script and config.json; its JSON read back.

    write.py      the files
    config.py     ds_config.json of a run
    read.py       a JSON as a run
    words.py      optimizers and schedulers by name, and keys that say nothing about a run

Words are those of DeepSpeed 0.16 to 0.19 (deepspeed/runtime/config.py, zero/config.py, read 2026-11).
"""
