"""Labs: a question, an experiment on this machine's processes, and what a formula expects of it.

labs.yaml          the question, the formula with its source, what to change, an exercise       lab.py
    └─► experiments/NAME.py: run(bench)       measures: ranks, runs, clocks, counted bytes      bench.py
            └─► Outcome: values beside what is expected of them, pictures                      outcome.py
                    └─► the answer: what holds, what differs, or that the machine was too busy  answer.py
"""
