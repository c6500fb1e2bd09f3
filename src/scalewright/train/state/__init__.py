"""The state that outlives a run's process, and how a run resumes from it.

run_state.py    what a save collects and a resume brings back (optimizer_state.py, group_state.py: the optimizer's)
resume.py       from which checkpoint
changes.py      what differs since, and whether it may; what a run chose stays chosen
claim.py        one run at a time in a folder
"""
