"""Compares a layout with one device: the same steps, loss, gradients and weights; `compare.py` is the door.

setup.py (layouts.py, models.py)   both runs, small enough for this machine
result.py                          when their numbers count as equal
diloco_control.py                  the control of runs with islands: DiLoCo in one process
"""
