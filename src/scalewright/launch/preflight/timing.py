"""Times that must fit into each other: a save into what the scheduler and the watchdogs leave for it.

start ── steps ── save_before_s ──► time limit: the scheduler kills          seconds of a save:
                  └── save ──┘                                               measured, or bytes / rate
start_s   start, save, validation        steady_s   any step, and what InfiniBand retries within it
"""

from __future__ import annotations

from scalewright.launch.preflight.facts import Facts
from scalewright.launch.preflight.rule import RuleFailure, Subject
from scalewright.spec.common.formatting import counted

SUBJECT = Subject("timing")
FAST = 5e9  # bytes/s of a node into a shared file system: few are faster, so what takes longer surely does
SAVES = "docs/checkpoints.md: 4 bytes a parameter and the optimizer's; Slurm docs, sbatch: --signal"
# NCCL user guide: a lost packet is sent again after 4.096 µs * 2^timeout, so many times
RETRY_S, RETRY_TIMEOUT, RETRIES = 4.096e-6, 20, 7
MANY_RANKS, SLOW_START_S = 2048, 1200.0
SOON_S = 120.0  # a start takes a minute or two
SKEW_S = 120.0


def _save_s(facts: Facts) -> tuple[float, str] | None:
    """Seconds of a save, and how that is known; None where it isn't."""
    run = facts.run
    if run is None or not run.saves:
        return None
    if run.last_save_s is not None:
        return run.last_save_s, f"the last save took {run.last_save_s:.0f} s"
    if run.save_bytes is None:
        return None
    seconds = run.save_bytes / (FAST * facts.place.nodes)
    return seconds, f"a save of {run.save_bytes / 2**30:,.0f} GiB takes {seconds:,.0f} s even at 5 GB/s a node"


@SUBJECT.rule("no-time-to-save", "warn", "the time before the limit is shorter than a save", SAVES,
              needs=("a run that saves",))  # fmt: skip
def no_time_to_save(facts: Facts) -> RuleFailure | None:
    save, before = _save_s(facts), facts.site.save_before_s
    limited = facts.site.limit_s is not None or "SLURM_JOB_END_TIME" in facts.environ
    limited = limited or facts.place.target == "kubernetes"  # the grace of a pod
    if save is None or not limited or not before or save[0] <= before:
        return None
    what = f"{save[1]}, and ranks have {before} s for it before they are killed"
    return RuleFailure(what, "launch.save_before_s", f"set it to {_rounded(1.5 * save[0])}")


@SUBJECT.rule("killed-at-the-limit", "warn", "a time limit, and no time to save before it", SAVES, needs=("a run",))
def killed_at_the_limit(facts: Facts) -> RuleFailure | None:
    limited = facts.site.limit_s is not None or "SLURM_JOB_END_TIME" in facts.environ
    if not limited or facts.site.save_before_s:
        return None
    what = "ranks are killed at the time limit, and lose what they did since the last save"
    return RuleFailure(what, "launch.save_before_s: 0", "set it to what a save takes, such as 120")


@SUBJECT.rule("save-over-timeout", "warn", "a save takes longer than ranks wait for it",
              "docs/run-yaml.md: train.timeouts.start_s holds in a save",
              needs=("a run that saves", "several ranks"))  # fmt: skip
def save_over_timeout(facts: Facts) -> RuleFailure | None:
    save = _save_s(facts)
    most = facts.run.spec.train.timeouts.start_s if facts.run else 0.0
    if save is None or save[0] <= most:
        return None
    what = f"{save[1]}, and ranks wait {most:g} s for each other"
    return RuleFailure(what, "train.timeouts.start_s", f"set it to {_rounded(2 * save[0])}")


@SUBJECT.rule("steady-under-retries", "warn", "ranks give up before InfiniBand does",
              "NCCL user guide, Environment Variables: NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT", at=("node",),
              needs=("GPUs", "several nodes", "InfiniBand", "a run"))  # fmt: skip
def steady_under_retries(facts: Facts) -> RuleFailure | None:
    timeout = _number(facts, "NCCL_IB_TIMEOUT", RETRY_TIMEOUT)
    retries = _number(facts, "NCCL_IB_RETRY_CNT", RETRIES)
    steady = facts.run.spec.train.timeouts.steady_s if facts.run else 0.0
    patience = RETRY_S * 2**timeout * retries if timeout < 32 else 0.0  # above: fabric.py
    if steady > patience:
        return None
    what = f"steady_s {steady:g} ends the run where cards would have sent again for {patience:.0f} s"
    return RuleFailure(what, "train.timeouts", f"set steady_s to {_rounded(4 * patience)}")


@SUBJECT.rule("start-at-scale", "warn", "little time for thousands of ranks to meet",
              "Jiang et al. 2024 (MegaScale): 1047 s to start 2,048 GPUs, before it was tuned",
              needs=("GPUs", "a run"))  # fmt: skip
def start_at_scale(facts: Facts) -> RuleFailure | None:
    most = facts.run.spec.train.timeouts.start_s if facts.run else 0.0
    if facts.place.world < MANY_RANKS or most >= SLOW_START_S:
        return None
    what = f"{counted(facts.place.world, 'ranks')} have {most:g} s to meet and to do their first step"
    return RuleFailure(what, "train.timeouts.start_s", f"set it to {SLOW_START_S:.0f} or more")


@SUBJECT.rule("job-ends-soon", "warn", "the job ends before the run has begun", "srun(1): SLURM_JOB_END_TIME",
              at=("node",), needs=("a run",))  # fmt: skip
def job_ends_soon(facts: Facts) -> RuleFailure | None:
    ends, now = _number(facts, "SLURM_JOB_END_TIME", 0), facts.machine.clock
    left = ends - now if ends and now is not None else None
    if left is None or left > facts.site.save_before_s + SOON_S:
        return None
    what = f"the job ends in {max(0.0, left):.0f} s, and ranks leave {facts.site.save_before_s} s before that"
    return RuleFailure(what, "SLURM_JOB_END_TIME", "start it in a new job (sbatch --time), or lower save_before_s")


@SUBJECT.rule("clock-behind", "warn", "this machine's clock is behind its files'",
              "RFC 1813 (NFS): file times are those of the server's clock", at=("node",), needs=("a run",))  # fmt: skip
def clock_behind(facts: Facts) -> RuleFailure | None:
    written, now = facts.run.modified if facts.run else None, facts.machine.clock
    if written is None or now is None or written <= now + SKEW_S:
        return None
    what = f"the run file was written {written - now:.0f} s from now"
    return RuleFailure(what, "clock", "set this machine's clock, or its file server's (NTP): resumes compare times")


def _number(facts: Facts, name: str, default: int) -> int:
    text = facts.environ.get(name, "")
    return int(text) if text.isdigit() else default


def _rounded(seconds: float) -> str:
    """Up to the next half minute."""
    return str(int(-(-seconds // 30) * 30))
