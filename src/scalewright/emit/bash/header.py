"""What a job script asks its scheduler for: #SBATCH, #PBS, #BSUB and #FLUX lines.

#SBATCH -N 4                    {"nodes": "4"}
#PBS -l select=4:ngpus=8        {"nodes": "4", "gpus-per-node": "8"}
"""

from __future__ import annotations

import re
import shlex

LINE = re.compile(r"^#(SBATCH|PBS|BSUB|FLUX:)\s+(.*)$", re.MULTILINE)
SHORT = {"N": "nodes", "n": "ntasks", "J": "job-name", "c": "cpus-per-task", "t": "time", "p": "partition", "G": "gpus",
         "tasks-per-node": "ntasks-per-node"}  # fmt: skip
SOUGHT = {
    "PBS": {
        "nodes": r"(?:select|nodes)=(\d+)",
        "gpus-per-node": r"\bn?gpus=(\d+)",
        "ntasks-per-node": r"mpiprocs=(\d+)",
    },
    "BSUB": {"nodes": r"-nnodes\s+(\d+)", "ntasks": r"-n\s+(\d+)", "gpus-per-node": r"num=(\d+)"},
}
SLURM = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",), "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "cpus-per-task": ("SLURM_CPUS_PER_TASK",), "job-name": ("SLURM_JOB_NAME",),
}  # fmt: skip


def header(text: str) -> dict[str, str]:
    """The options of all such lines, by Slurm's long names."""
    options: dict[str, str] = {}
    for scheduler, rest in LINE.findall(text):
        if scheduler in SOUGHT:
            matches = {name: re.search(pattern, rest) for name, pattern in SOUGHT[scheduler].items()}
            options |= {name: match[1] for name, match in matches.items() if match}
            continue
        try:
            words = shlex.split(rest, comments=True)
        except ValueError:
            words = rest.split()
        for word, following in zip(words, [*words[1:], "-"], strict=True):
            following = "" if following.startswith("-") else following
            if match := re.fullmatch(r"--([^=]+)(?:=(.*))?|-([A-Za-z])=?(.*)", word):
                value = (following if match[2] is None else match[2]) if match[1] else match[4] or following
                name = match[1] or match[3]
                options[SHORT.get(name, name)] = value
    gres = re.search(r"gpu(?::[\w.-]+)*?:(\d+)", options.get("gres", ""))
    if gres and "gpus-per-node" not in options:
        options["gpus-per-node"] = gres[1]
    for name in [name for name in options if name.startswith("gpus")]:  # h100:8
        options[name] = options[name].rpartition(":")[2]
    names = ("gpus-per-task", "ntasks-per-node", "gpus", "nodes")
    each, tasks, gpus, nodes = (int(text) if (text := options.get(name, "1")).isdecimal() else 0 for name in names)
    if "gpus-per-node" not in options and {"gpus-per-task", "gpus"} & options.keys():
        options["gpus-per-node"] = str(each * tasks if "gpus-per-task" in options else gpus // max(nodes, 1))
    return options


def environ_of(options: dict[str, str]) -> dict[str, str]:
    """Slurm's variables for such a job; a range of nodes is none. It is submitted from the script's folder."""
    return dict.fromkeys(("SLURM_SUBMIT_DIR", "PBS_O_WORKDIR", "LS_SUBCWD"), ".") | {
        name: options[option]
        for option, names in SLURM.items()
        if options.get(option) and (option == "job-name" or options[option].isdecimal())
        for name in names
    }
