"""The field's closed forms, as its textbooks and papers print them: one function each, with its source.

    roofline.py       FLOPs against bytes: ridge point, critical batch; a data sheet's numbers
    laws.py           6 N D, MFU and HFU, days of training, tokens of a batch
    training.py       the same from a model's operators; the bubble as each paper divides it
    memory.py         weights, gradients and optimizer states by ZeRO stage; a GPT block's activations
    communication.py  numbers that a step sends; rings, trees and tori; when communication binds

These are the rules of thumb to check a plan against by hand; the planner prices shapes, links and kernels
(`plan/cost/`). Where `spec/` has the arithmetic already (operators, counts, schedules, placement), these
functions call it. `tests/truth` holds all of them against published answers.
"""
