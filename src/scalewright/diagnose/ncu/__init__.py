"""Exports of Nsight Compute (`ncu --csv`): how near each kernel is to the device's limits, and to which.

table.py    the CSV's forms, and metrics by their names      bounds.py   what binds a kernel, from its metrics
answer.py   the JSON's keys and the causes
"""
