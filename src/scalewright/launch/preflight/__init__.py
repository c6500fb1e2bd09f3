"""Looks at a start before it happens: what would fail, hang or be slow, with the way to mend it.

    look.py   environment, machine ─┐
    ask.py    run, job, place      ─┼─► Facts ──► rules ──► Findings ──► doctor --launch, launch, train
    (train)   what nodes reported  ─┘

facts.py       the value that rules look at          rule.py     what a rule and a finding are
rules.py       all rules, and how they are run       ask.py      facts of a start, and of a job
variables.py   left from debugging, without effect   network.py  addresses, ports, interfaces
fabric.py      InfiniBand, EFA, GPUDirect            limits.py   shared memory, locked memory, cores
storage.py     room, and who sees the folder         jobs.py     tasks, options, images, restarts
timing.py      time limits, timeouts, clocks         nodes.py    what differs between nodes
"""
