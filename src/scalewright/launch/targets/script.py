"""What scripts of bash share: their first lines, the site's exports, and the commands of a node or a rank.

#!/bin/bash
# tiny: 4 nodes of 8 ranks. Written by `scalewright launch slurm`.
set -euo pipefail
cd ..., module load ..., launch.setup, export ...
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from scalewright.launch.job import LaunchJob
from scalewright.spec.common.formatting import counted
from scalewright.spec.common.shell import Expression, Word, quote

PORT = 29500  # torchrun's default
# Seconds that nodes wait for more of them once enough are there, and after which a silent one counts as gone.
MEETING = "last_call_timeout=15,keep_alive_interval=2,keep_alive_max_attempt=4"
RESTARTS = 100  # of an elastic run; one that fails in the same way each time ends by itself (train/state/attempts.py)


def head(job: LaunchJob, target: str, comments: Iterable[str] = ()) -> list[str]:
    """The first lines: what it is, and who wrote it."""
    size = f"{counted(job.nodes, 'nodes')} of {counted(job.per_node, 'ranks')}"
    lines = [f"{job.name}: {size}. Written by `scalewright launch {target}`.", *comments]
    return ["#!/bin/bash", *(f"# {line}".rstrip() for line in lines)]


def prepare(job: LaunchJob, more: Mapping[str, Word] | None = None) -> list[str]:
    """Lines that make a shell ready for Python, with `more` exports where the site has none of that name."""
    site = job.site
    nounset = not (site.modules or site.setup)  # many a module reads variables that aren't set
    lines = ["set -euo pipefail" if nounset else "set -eo pipefail"]
    lines += [f"cd {quote(site.workdir)}"] if site.workdir else []
    lines += [f"module load {quote(module)}" for module in site.modules]
    lines += [*site.setup, *([] if nounset else ["set -u"])]
    variables = {**exports(job), **{name: word for name, word in (more or {}).items() if name not in site.env}}
    return lines + [f"export {name}={quote(word)}" for name, word in variables.items()]


def network_variables(job: LaunchJob) -> dict[str, str]:
    """The interface by which ranks reach each other."""
    names = ["GLOO_SOCKET_IFNAME", *(["NCCL_SOCKET_IFNAME"] if job.device == "cuda" else [])]
    return dict.fromkeys(names, job.site.interface) if job.site.interface else {}


def exports(job: LaunchJob) -> dict[str, str]:
    """The site's variables, and those of its network."""
    variables = network_variables(job) | job.site.env
    if job.site.cpus_per_rank:
        variables.setdefault("OMP_NUM_THREADS", str(job.site.cpus_per_rank))
    return dict(sorted(variables.items()))


def rank_command(job: LaunchJob) -> list[Word]:
    """What a rank, or a process that starts the ranks of its node, runs."""
    return [job.site.python, *job.arguments]


def node_options(job: LaunchJob, number: Word, address: Word, port: Word) -> list[Word]:
    """torchrun's options for the ranks of one of several nodes, by its number."""
    node: list[Word] = ["--nnodes", str(job.nodes), "--node-rank", number, "--nproc-per-node", str(job.per_node)]
    return [*node, "--master-addr", address, "--master-port", port]


def node_command(job: LaunchJob, number: Word, address: Word, port: Word, *, nodes: Word | None = None) -> list[Word]:
    """The agent of one of several nodes, with torchrun's restarts; `nodes`: most of an elastic run, where the
    scheduler says how many there are."""
    if job.least_nodes is not None:
        return bare_agent(job, elastic_options(job, address, port, nodes))
    return bare_agent(job, [*node_options(job, number, address, port), *_restarts(job)])


def elastic_options(job: LaunchJob, address: Word, port: Word, nodes: Word | None = None) -> list[Word]:
    """torchrun's options for a number of nodes that may change: they meet at the first one's store, by no number."""
    counts = _joined(f"{job.least_nodes}", nodes or str(job.nodes))
    both = _joined(address, port)
    meet: list[Word] = ["--nnodes", counts, "--nproc-per-node", str(job.per_node), "--rdzv-backend", "c10d"]
    meet += ["--rdzv-endpoint", both, "--rdzv-id", file_name(job), "--rdzv-conf", MEETING]
    return [*meet, "--max-restarts", str(job.site.max_restarts or RESTARTS)]


def _joined(first: Word, second: Word) -> Word:
    """FIRST:SECOND as one word."""
    texts = [word.text if isinstance(word, Expression) else word for word in (first, second)]
    text = ":".join(texts)
    return Expression(text) if isinstance(first, Expression) or isinstance(second, Expression) else text


def standalone_command(job: LaunchJob) -> list[Word]:
    """The agent of a run on one node, at a free port."""
    return bare_agent(job, ["--standalone", "--nproc-per-node", str(job.per_node), *_restarts(job)])


def _restarts(job: LaunchJob) -> list[str]:
    return ["--max-restarts", str(job.site.max_restarts)] if job.site.max_restarts else []


def bare_agent(job: LaunchJob, options: Iterable[Word] = (), *, saved: int | None = None) -> list[Word]:
    """torchrun with these options and an exit code that tells "saved" from a crash (agent.py)."""
    codes = ["--saved", str(saved)] if saved is not None else []
    return [job.site.python, "-m", "scalewright.launch.agent", *codes, *options, *job.arguments]


def file_name(job: LaunchJob) -> str:
    """The run's name, as a name of files has it."""
    return re.sub(r"[^\w.\-]+", "-", job.name)


def text_of(lines: Iterable[str]) -> str:
    """Lines as a file."""
    return "\n".join(lines) + "\n"
