"""How a job ended: by what its output says of memory, signals, schedulers, exceptions, hangs and hardware.

lines ──signs──► events, each a rank's ──► the first cause; what follows from it stands behind it
"""
