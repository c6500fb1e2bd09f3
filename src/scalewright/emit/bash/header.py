"""What a job script asks its scheduler for: #SBATCH, #PBS, #BSUB, #$ and #FLUX lines.

#SBATCH -N 4                    {"nodes": "4"}
#PBS -l select=4:ngpus=8        {"nodes": "4", "gpus-per-node": "8"}
"""

from __future__ import annotations

import re
import shlex

LINE = re.compile(r"^#(SBATCH|PBS|BSUB|FLUX:)\s+(.*)$", re.MULTILINE)
SHORT = {"N": "nodes", "n": "ntasks", "J": "job-name", "c": "cpus-per-task", "t": "time", "p": "partition", "G": "gpus"}
SLURM = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",), "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "cpus-per-task": ("SLURM_CPUS_PER_TASK",), "job-name": ("SLURM_JOB_NAME",),
}  # fmt: skip


def header(text: str) -> dict[str, str]:
    """The options of all such lines, by Slurm's long names."""
    options: dict[str, str] = {}
    for scheduler, rest in LINE.findall(text):
        try:
            words = shlex.split(rest, comments=True)
        except ValueError:
            words = rest.split()
        options |= _pbs(words) if scheduler == "PBS" else _bsub(words) if scheduler == "BSUB" else _slurm(words)
    gres = re.search(r"gpu(?::[\w.-]+)*?:(\d+)", options.get("gres", ""))
    if gres and "gpus-per-node" not in options:
        options["gpus-per-node"] = gres[1]
    if "gpus-per-node" in options:  # h100:8
        options["gpus-per-node"] = options["gpus-per-node"].rpartition(":")[2]
    return options


def _slurm(words: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) and not words[index + 1].startswith("-") else ""
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            options[name] = value if equals else following
        elif match := re.fullmatch(r"-([A-Za-z])(.*)", word):
            options[SHORT.get(match[1], match[1])] = match[2].lstrip("=") or following
    return options


def _pbs(words: list[str]) -> dict[str, str]:
    text = " ".join(words)
    options = {}
    if match := re.search(r"(?:select|nodes)=(\d+)", text):
        options["nodes"] = match[1]
    if match := re.search(r"ngpus=(\d+)|:gpus=(\d+)", text):
        options["gpus-per-node"] = match[1] or match[2]
    if match := re.search(r"mpiprocs=(\d+)", text):
        options["ntasks-per-node"] = match[1]
    return options


def _bsub(words: list[str]) -> dict[str, str]:
    text = " ".join(words)
    options = {}
    if match := re.search(r"-nnodes\s+(\d+)", text):
        options["nodes"] = match[1]
    elif match := re.search(r"-n\s+(\d+)", text):
        options["ntasks"] = match[1]
    if match := re.search(r"num=(\d+)", text):
        options["gpus-per-node"] = match[1]
    return options


def environ_of(options: dict[str, str]) -> dict[str, str]:
    """Slurm's variables for such a job; a range of nodes is none."""
    return {
        name: options[option]
        for option, names in SLURM.items()
        if options.get(option) and (option == "job-name" or options[option].isdecimal())
        for name in names
    }
