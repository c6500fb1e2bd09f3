"""Search of every legal layout of a run: the best with predictions, the others with reasons.

    axes.py, fixed.py          legal values of the axes, fixed values      -->  space.py: arrays of rows
    pricer.py, objective.py    prices of rows, the goal and its score      -->  branch_and_bound.py
    unusual.py, precisions.py  what needs a margin; what fewer bits would gain
    shortage.py, choices.py    layouts to show, those beyond the trainer or the memory; results: Choice, Plan
    compare.py, why_not.py     the other layouts           scaling.py, run_file.py   counts; the YAML for `train`

`search.py` combines them: `from scalewright.plan.search.search import search`.
"""
