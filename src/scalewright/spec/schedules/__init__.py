"""Pipeline schedules as data, one idea a file; `spec/schedule.py` is the door.

kinds.py         a record of every kind: its order, stages, bubble, activations alive
one_f_one_b.py   GPipe, 1F1B, interleaved, ZB-H1: stages go round the ranks
fold.py          ZBV, DualPipeV, DualPipe: a rank holds an early and a late stage
build.py         schedule.py, messages.py, action.py: every rank's actions
check.py         sizes that a kind runs
clock.py         when every action starts and ends    unequal.py  in closed form, for unequal ranks
bubble.py        the published idle times             memory.py   activations alive       picture.py   as text
"""
