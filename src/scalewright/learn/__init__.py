"""The field's closed forms, as its textbooks and papers print them: one function each, with its source.

    roofline.py       FLOPs against bytes: ridge point, critical batch; a data sheet's numbers
    laws.py           6 N D, MFU and HFU, days of training, tokens of a batch
    training.py       the same from a model's operators; the bubble as each paper divides it
    memory.py         weights, gradients and optimizer states by ZeRO stage; a GPT block's activations
    communication.py  numbers that a step sends; rings, trees and tori; when communication binds
    attention.py      KV cache, bytes of stored and of tiled attention, positions
    inference.py      batches, guesses, what fits beside the weights
    numerics.py       number formats by their bits; errors of sums; quantized bytes
    scaling.py        steps over batch size; a law's loss
    speedup.py        Amdahl, Gustafson, efficiency
    gpu.py            warps, occupancy, tiles and waves
    systems.py        lines, switches, files, steps
    explain/          `scalewright explain`: the field's words, with these functions' numbers for one's own run

These are the rules of thumb to check a plan against by hand; the planner prices shapes, links and kernels
(`plan/cost/`). Where `spec/` has the arithmetic already (operators, counts, schedules, placement), these
functions call it. `tests/truth` holds all of them against published answers.
"""
