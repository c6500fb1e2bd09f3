"""How a job ended: by what its output says of memory, signals, schedulers, exceptions, hangs and hardware.

lines ──signs.py, signs.yaml──► events.py: events, hang.py ──► ending.py: the first cause, and what follows
"""
