"""Pipeline schedules as data, one idea a file; `spec/schedule.py` is the door.

kinds.py         a record of every kind: its order, stages, bubble, activations alive
one_f_one_b.py   GPipe, 1F1B, interleaved, ZB-H1: stages go round the ranks
fold.py          ZBV, DualPipeV, DualPipe: a rank holds an early and a late stage
build.py         schedule.py, action.py: every rank's actions, and the sizes that a kind runs
clock.py         when every action starts and ends
bubble.py        the published idle times, also of unequal ranks; activations alive
"""
