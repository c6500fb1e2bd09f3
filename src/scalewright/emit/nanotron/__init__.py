"""nanotron: the YAML of run_train.py, both ways.

    model.py   model.model_config: a Qwen2 (Llama's blocks with options), dense or a mixture
    run.py     the file: parallelism, tokens, optimizer, data_stages, checkpoints

Keys are those of its main branch of April 2026 (src/nanotron/config/*.py); older files are read, too.
"""
