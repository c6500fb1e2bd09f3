"""The field's closed forms, as its textbooks and papers print them: one function each, with its source.

    roofline.py     FLOPs against bytes: ridge point, critical batch, a matrix product's floor
    laws.py         6 N D, MFU and HFU, days of training, tokens of a batch
    training.py     the same from a model's operators: attention's share, FLOP/s that a step reached
    states.py       weights, gradients and optimizer states by ZeRO stage; what a run needs at least
    activations.py  bytes of a GPT block by recomputation and tensor parallelism
    pipelines.py    the bubble as each paper divides it
    links.py        rings, trees and tori by alpha and beta
    traffic.py      numbers that a step sends, by the papers of each parallelism
    sharding.py     when communication binds: batch, width and ways of FSDP and tensor parallelism
    datasheet.py    a data sheet's numbers from the parts they are made of

These are the rules of thumb to check a plan against by hand; the planner prices shapes, links and kernels
(`plan/cost/`). Where `spec/` has the arithmetic already (operators, counts, schedules, placement), these
functions call it. `tests/truth` holds all of them against published answers.
"""
