"""Ranks that wait for one that doesn't come: who it is, where it is, and when to give up.

watchdog.py    a thread beside each rank's training: does the rank get on?
    │ no                   patience.py: how long that may take
board.py       a side channel, which needs none of the collectives that are stuck
    │          every rank posts its position
position.py    what a rank waits in, what it has begun before, and its line of source
    │
verdict.py     positions -> the rank that the others wait for, and a sentence
    │          process.py: its host and pid; stacks.py: what every rank leaves in the run's folder
broken.py      a rank that has gone: what the others began last
"""
