"""Starts a run's processes, each with its rank. The only folder that reads the environment.

rank.py    this process's rank: from torchrun's, Slurm's or MPI's variables
local.py   starts N workers here and reports one error (fork_server.py, child.py; killed.py: out of memory)
settings.py   variables of libraries that are written or passed on
"""
