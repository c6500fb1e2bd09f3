"""Exports of Nsight Compute (`ncu --csv`): how near each kernel is to the device's limits, and to which.

table.py    the CSV's forms, and metrics by their names
answer.py   what binds a kernel, the causes and the JSON's keys
"""
