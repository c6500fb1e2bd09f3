"""nanotron: the YAML of run_train.py, both ways.

    words.py   keys that mean the same in both, keys that say nothing about the run
    model.py   model.model_config: a Qwen2 (Llama's blocks with options), dense or a mixture
    run.py     parallelism, tokens, optimizer, data_stages, checkpoints
    files.py   the whole file

Keys are those of its main branch of April 2026 (src/nanotron/config/*.py); older files are read, too.
"""
