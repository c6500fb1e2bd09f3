"""`engine: deepspeed`: a run's model, data, metrics and checkpoints, and DeepSpeed's engine for its steps.

    check.py        what DeepSpeed can't do with a run, refused before a process starts; no torch
    build.py        network, DeepSpeed's engine around it, state, steps: what `train/engine.py` asks of an engine
    initialize.py   DeepSpeed itself: imported here alone, its logs kept off stdout
    runners.py      micro-batches forward and backward: DeepSpeedEngine, or a PipelineModule's train_batch
    weights.py      every weight and its moments in fp32, out of DeepSpeed's flat partitions and back

Both engines write the same checkpoint, so that either goes on where the other stopped, on any layout.
"""
