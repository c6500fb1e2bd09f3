"""Exports of Nsight Compute (`ncu --csv`): table.py reads one, answer.py has what binds each kernel."""
