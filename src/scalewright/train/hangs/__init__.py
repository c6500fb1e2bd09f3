"""Ranks that wait for one that doesn't come: who it is, where it is, and when to give up.

watchdog.py   a thread beside each rank's training: does the rank get on?
board.py      a side channel, which needs none of the collectives that are stuck; who is behind, by all positions
position.py   what a rank waits in, what it has begun before, and its line of source
process.py    its host and pid, its stacks in the run's folder, and what ranks began last when one has gone
"""
