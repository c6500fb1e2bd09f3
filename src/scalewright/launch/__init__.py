"""Starts a run's processes, each with its rank. The only folder that reads the environment.

detect.py      who started this process, by the table of starters.py, and what an environment must not say
rank.py        this process's rank, and the ranks of its node; rendezvous.py: where they meet, told by MPI
local.py       starts N workers here, which begin.py and fork_server.py make; deaths.py: which one's end is told
child.py       the runs of a sweep
regroup.py     workers that go on without those that died, and take new ones in
stop.py        the signals and the clock that ask a run to save
agent.py       torchrun, with signals and an exit code for schedulers; over_ssh.py: a script on several hosts
job.py         a run, its nodes and its site: what targets/ write scripts and manifests from
in_every_rank.py   a command in every process of a started world
ray_worker.py  a rank of Ray's, whose command exits_with_parent.py
preflight/     what would fail, hang or be slow, found before a start
capture/       a user's own command, recorded
settings.py    variables of libraries that are written or passed on
"""
