"""Starts a run's processes, each with its rank. The only folder that reads the environment.

detect.py      who started this process, by the table of starters.py (source.py: what one of them says)
contradictions.py   what an environment must not say; nodes.py: Slurm's lists of hosts
rank.py        this process's rank, and the ranks of its node; rendezvous.py: where they meet, told by MPI
local.py       starts N workers here and reports one error (fork_server.py, child.py; killed.py: no memory)
stop.py        the signals and the clock that ask a run to save; attempt.py: the scheduler's job, for events
agent.py       torchrun, with signals and an exit code for schedulers; over_ssh.py: a script on several hosts
job.py         a run, its nodes and its site: what targets/ write scripts and manifests from
in_every_rank.py   a command in every process of a started world
ray_worker.py  a rank of Ray's, whose command exits_with_parent.py
preflight/     what would fail, hang or be slow, found before a start
capture/       a user's own command, recorded
settings.py    variables of libraries that are written or passed on
"""
