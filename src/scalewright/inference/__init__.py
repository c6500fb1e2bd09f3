"""What serving a model takes: memory, prefill and decode time, latency and throughput under a load, money, layouts.

ask.py          names and flags to a question
setup.py        one replica as plain numbers: what a rank reads, multiplies, sends and holds
"""
