"""Commands that another machine's shell runs: their words as `bash -c`, which the interpreter follows.

ssh -p 22 node1 "cd x && torchrun ..."     ssh -p 22 node1 bash -c "cd x && torchrun ..."
pdsh -w node[1-4] torchrun ...             pdsh -w node[1-4] bash -c "torchrun ..."
sbatch -N 4 train.slurm 70b                sbatch -N 4 bash train.slurm 70b
sbatch -N 4 --wrap "torchrun ..."          sbatch -N 4 bash -c "torchrun ..."
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HOSTS = {"ssh": 1, "pdsh": 0, "clush": 0, "pssh": 0}  # words before the command that aren't options
VALUED = {"ssh": "BbcDEeFIiJLlmOopQRSWw", "pdsh": "wxflutRg", "clush": "wxgXf", "pssh": "hHlpoe"}  # options with one
SUBMITTED = re.compile(r"[^-].*\.(sh|bash|slurm|sbatch|job|pbs|lsf)")


def remote(words: Sequence[str]) -> list[str]:
    """The words with the command in one text for bash; others as they are."""
    name = words[0].rpartition("/")[2]
    if name in ("sbatch", "qsub"):
        wrapped = re.search(r"(?<=\0)--wrap[=\0]([^\0]*)", "\0".join(words))
        place = next((place for place, word in enumerate(words) if place and SUBMITTED.fullmatch(word)), 0)
        inner = ["bash", "-c", wrapped[1]] if wrapped else ["bash", *words[place:]] if place else []
        return [*(words if wrapped else words[: place or None]), *inner]
    if name not in HOSTS:
        return list(words)
    place = 1
    while place < len(words) and words[place].startswith("-"):
        place += 2 if len(words[place]) == 2 and words[place][1] in VALUED[name] else 1
    place += HOSTS[name]
    return [*words[:place], "bash", "-c", " ".join(words[place:])] if place < len(words) else list(words)
