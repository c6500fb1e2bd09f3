"""What is to be run, on what, and how it is split: plain, validated data that knows no torch.

a run       run.py (guard.py, diloco.py, sweep.py, user_code.py)   base.py, scalars.py, errors.py: strict data
            question.py: a run as it is asked about                capabilities.py: what trainers have
a model     model.py, presets.py (shapes.py, huggingface.py), families/
            tensors.py: every tensor    operators.py, block.py (primitives.py), flops.py: operators, FLOPs
a layout    layout.py, layout_check.py                         grid.py, groups.py: ranks and groups
            trains.py: what `train` runs                       schedule.py, schedules/: pipelines
its costs   placement.py: which part of each tensor            memory.py, optimizers.py: bytes a rank holds
            volumes.py, compress.py: bytes that a rank sends   recompute_budget.py: what a block keeps
hardware/   devices, clusters, links                           common/  numbers as words, files, JSON lines
"""
