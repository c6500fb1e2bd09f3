"""Search of every legal layout of a run: the best with predictions, the others with reasons.

    axes.py, fixed.py          legal values of the axes, fixed values      -->  space.py: arrays of rows
    pricer.py, objective.py    prices of rows, the score to minimise       -->  finder.py: branch and bound
    goal.py                    what is to be found                         choices.py: results: Choice, Plan
    simplest.py, pareto.py     layouts to show, Pareto front   losers.py, compare.py, why_not.py   the others
    scaling.py                 other device counts             out_of_reach.py  faster, of other trainers
    run_file.py                the YAML for `train`            shortage.py   missing memory if nothing fits

`search.py` combines them: `from scalewright.plan.search.search import search`.
"""
