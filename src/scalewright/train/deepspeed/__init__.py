"""`engine: deepspeed`: a run's model, data, metrics and checkpoints, and DeepSpeed's engine for its steps.

    check.py        what DeepSpeed can't do with a run, refused before a process starts; no torch
    build.py        network, DeepSpeed's engine around it, state: what `train/engine.py` asks of an engine
    initialize.py   DeepSpeed itself: imported here alone, its logs kept off stdout
    runners.py      micro-batches forward and backward: DeepSpeedEngine, and PipelineEngine's train_batch
    stages.py       the decoder as a PipelineModule's layers
    step.py         one optimizer step, with the report that the loop reads
    weights.py      every weight and its moments in fp32, out of DeepSpeed's flat partitions and back
    state.py        checkpoints of this tool's format, from those

Both engines write the same checkpoint, so that either goes on where the other stopped, on any layout.
"""
