"""Checkpoints in an object store: a run's folder under a URL, with the same names as on a disk.

    s3://bucket/run/checkpoints/step-00000400/   as locally (checkpoint/format.py): without COMMIT it does not exist
    s3://bucket/run/parts/00000400-00003         rank 3 has put its files of that step; gone once COMMIT is there
    s3://bucket/run/RUN_ID, run.yaml, tokenizer.json, ...    whose place it is, and what a run's folder has beside saves

upload.py   behind a run's saves    restore.py   onto an empty disk
bring.py    a model's place as a folder of this node    look.py   what is there, and whether it is sound
"""
