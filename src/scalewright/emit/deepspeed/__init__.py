"""DeepSpeed: ds_config.json, a training script and config.json; its JSON read back.

    write.py      the files; ds_config.json as `spec/deepspeed.py` has it
    read.py       a JSON as a run; optimizers and schedulers by name, and keys that say nothing about a run

Words are those of DeepSpeed 0.16 to 0.19 (deepspeed/runtime/config.py, zero/config.py, read 2026-11).
"""
