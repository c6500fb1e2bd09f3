"""The planner: time and memory of a layout, from its operators, schedule and topology.

inputs    request.py (defaults.py)   a layout asked: model, device, trainer      chips.py, curves.py  devices
          frameworks.py, switches.py   trainers: habits, what they run; options of a run
          constants.py + data/        numbers that no data sheet has, fitted or published    features.py  never measured
formulas  cost/       seconds and bytes of many layouts       rows/       rows of tables as requests
          predict.py, stages.py, explain.py   one layout's prediction, its pipeline stages, the reasons
on top    search/     the best of all layouts                 fitting/    errors on measured runs; the fit
          ask.py, answer.py, ablation.py, whole_run.py        from a user's arguments to the whole answer
          records.py  types of the keys of an answer           columnar.py  rows of dataclasses of columns

The functions take arrays: a single layout is a table of one row.
"""

from scalewright.packages import make_callable

make_callable(__name__, "scalewright.api")
