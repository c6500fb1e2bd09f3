"""Where did the time go, and what would help? Reads traces that people already have; needs no torch.

diagnose.py      which files are meant, and by whom   traces/       Kineto's JSON as columns, of any size
                 they are read                        intervals.py  sets of time, in whole nanoseconds
breakdown.py     compute, exposed communication and   steps.py      the GPU's windows of the steps
                 copies, idle: parts that add up      phases.py     forward, backward, optimizer; layers
idle.py          why a GPU stood idle                 kernels.py    which kernels took the time
host_function.py where its host was meanwhile
collectives.py   the same collective on every rank: transfer apart from waiting, clocks aligned
stragglers.py    which ranks the others waited for, and what kept those
replay.py        how long it would have taken with a part of it changed
ranks.py         all of this for the ranks of a run
run_folder.py    a run's folder, whole: its steps, traces, metrics and the dumps of a hang
verdicts.py      causes with evidence, fix and gain   answer.py     the keys of `diagnose --json`
"""

from scalewright.packages import make_callable

make_callable(__name__, "scalewright.api")
