"""What serving a model takes: memory, prefill and decode time, latency and throughput under a load, money, layouts.

question    ask.py      from a user's arguments        rows.py, data/names.yaml    from rows of tables
            counts.py   what a model holds and does    setup.py   one replica as plain numbers, per rank
formulas    cost.py     seconds of prefill and of a step, bytes of caches    load.py   rates and latencies under a load
            constants.py + data/    engines, formats, and numbers that no data sheet has    spread.py   how sure it is
answer      answer.py   the keys of --json    evidence.py   the nearest measured runs    batch.py   of many rows
            search.py, layouts.py   the cheapest layout, the usual one
            score.py, fit.py   errors on measured runs; `python -m scalewright.inference.fit` fits the constants

The formulas take arrays: a single layout is a table of one row.
"""

from scalewright.packages import make_callable

make_callable(__name__, "scalewright.api")
