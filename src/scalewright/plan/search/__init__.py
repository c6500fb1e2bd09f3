"""Every legal layout of a run is searched; the best come with predictions, the others with reasons.

    axes.py, fixed.py          which layouts there are, which were asked for     -->  space.py: arrays of rows
    pricer.py, objective.py    bounds and prices of rows; what is made small     -->  finder.py: the search
    choices.py                 what was found: Choice, Plan
    pareto.py, losers.py       the front; who nearly won
    compare.py, why_not.py     why not the others        shortage.py     what is lacking where nothing fits
    scaling.py                 on other device counts    run_file.py     what `train` takes

`search.py` puts them together: `from scalewright.plan.search.search import search`.
"""
