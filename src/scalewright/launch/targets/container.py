"""What targets that start containers share: names, variables, the agent's command, keys that don't apply.

site.env + interface ──► environment(job)      job.name ──► dns_label("My run!", 40) == "my-run"
torchrun's options + `train run.yaml` ──► agent_command(job, ...)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import yaml

from scalewright.launch.job import LaunchJob
from scalewright.launch.targets.script import PORT, bare_agent, network_variables, node_options
from scalewright.spec.base import TextDumper, parse_yaml
from scalewright.spec.common.formatting import commented, counted
from scalewright.spec.common.shell import Word
from scalewright.spec.errors import Mistakes, UserError
from scalewright.spec.launch import LaunchSpec

NO_MODULES = "a container has no environment modules; put them into its image"  # reasons of several targets
BY_TORCHRUN = "a node starts its ranks with torchrun"
# What torchrun and schedulers set in a rank's or a node's process; a value of the site's would hide theirs.
RESERVED = frozenset({
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
    "JOB_COMPLETION_INDEX", "PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT",
})  # fmt: skip


def sizes(job: LaunchJob, machines: str = "nodes") -> str:
    """`4 nodes of 8 ranks`."""
    return f"{counted(job.nodes, machines)} of {counted(job.per_node, 'ranks')}"


def check_all(job: LaunchJob, *checks: Callable[[LaunchJob], object]) -> None:
    """Raises one UserError of all settings that a check refuses."""
    mistakes = Mistakes()
    for check in checks:
        mistakes.of(partial(check, job))
    mistakes.stop()


def image(job: LaunchJob) -> str:
    """The site's image; raises UserError where there is none, or a file of one."""
    container = job.site.container
    if not container:
        raise UserError("no container image", "launch.container", "name one that has scalewright: REGISTRY/IMAGE:TAG")
    if container.endswith((".sqsh", ".sif")) or container.startswith(("/", ".")):
        what = f"{container} is a file, not the name of an image"
        raise UserError(what, "launch.container", "name it as a registry does: REGISTRY/IMAGE:TAG")
    return container


def gpus(job: LaunchJob) -> str:
    """A cloud's name for the kind of GPU; raises UserError where the site has none, or a scheduler's."""
    name = job.site.gpu
    if not name or "/" in name or name.startswith("gpu:"):
        what = f"{name} is no cloud's name for a GPU" if name else "which GPU?"
        raise UserError(what, "launch.gpu", "write it as the cloud does: H100")
    return name


def environment(job: LaunchJob) -> dict[str, str]:
    """Variables of each node's process, by name; raises UserError for one that the scheduler sets."""
    if taken := [name for name in job.site.env if name in RESERVED]:
        raise UserError(f"the scheduler sets {', '.join(taken)}", "launch.env", "leave it out")
    unbuffered = {"PYTHONUNBUFFERED": "1"}  # lines reach the log as they are printed
    return dict(sorted((unbuffered | network_variables(job) | job.site.env).items()))


def agent_command(
    job: LaunchJob, node_rank: Word, address: Word, *, port: Word | None = None, saved: int | None = None
) -> list[Word]:
    """The command of one node: the agent, torchrun's options for it, and the run."""
    return bare_agent(job, node_options(job, node_rank, address, port or str(job.site.port or PORT)), saved=saved)


def dns_label(name: str, most: int = 63) -> str:
    """A name that DNS takes as a label (RFC 1035): lower case, digits and hyphens, a letter first."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not label or not label[0].isalpha():
        label = f"run-{label}".rstrip("-")
    return label[:most].rstrip("-")


def gigabytes(size: str) -> str:
    """`512G`, `512GiB` or `0.5T` as a number of gigabytes; raises UserError for what is none of these."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT])i?B?", size)
    if match is None:
        raise UserError(f"{size!r} is no size", "launch", "write it as 512G")
    return f"{float(match[1]) * 1024.0 ** ('KMGT'.index(match[2]) - 2):g}"


def mounts(site: LaunchSpec) -> list[tuple[str, str]]:
    """Folders of the machine and where they are inside; raises UserError for one without both."""
    pairs = []
    for text in site.mounts:
        outside, _, inside = text.partition(":")
        if not outside.startswith("/") or not inside.startswith("/"):
            what = f"{text!r} isn't /on/host:/inside"
            raise UserError(what, "launch.mounts", "write two absolute paths with a colon")
        pairs.append((outside, inside))
    return pairs


def kept_folders(site: LaunchSpec) -> list[str]:
    """Where claims and folders of the machine are inside."""
    return [*site.claims.values(), *(inside for _, inside in mounts(site))]


def lost(job: LaunchJob, start: str | None, machines: str, kept: Iterable[str]) -> list[str]:
    """A note where the run's folder isn't in one that is `kept`; ranks begin in `start` (or the image's)."""
    volumes, folder = list(kept), PurePosixPath(start or ".", job.folder)
    if any(folder.is_relative_to(volume) for volume in volumes):
        return []
    gone = f"checkpoints are lost with the {machines}"
    if not volumes:
        return [f"launch.claims is empty: {gone}"]
    return [f"{folder} isn't in {volumes[0]}: {gone}; set out_dir={volumes[0]}/{folder.name}"]


def unused(site: LaunchSpec, reasons: Mapping[str, str]) -> dict[str, str]:
    """Those of the keys that this site sets, each with the reason why the target has no word for it."""
    default = LaunchSpec()
    return {key: why for key, why in reasons.items() if getattr(site, key) != getattr(default, key)}


def with_options(document: dict[str, object], options: Iterable[str]) -> dict[str, object]:
    """The document with further keys: `resources.use_spot=true` sets a key of a key, to a value of YAML."""
    for text in options:
        path, equals, value = text.partition("=")
        if not equals or not all(path.split(".")):
            raise UserError(f"{text!r} isn't KEY=VALUE", "launch.options", "such as resources.use_spot=true")
        *parents, last = path.split(".")
        place: Any = document
        for key in parents:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise UserError(f"{key} has no keys of its own", f"launch.options: {text}", "check the path")
        place[last] = parse_yaml(value, f"launch.options: {text[:80]}")
    return document


class _Dumper(TextDumper):
    """YAML as people write it: lists are indented, and text of several lines is a block."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True  # what stands twice is written twice

    def represent_text(self, text: str, style: str | None = None) -> yaml.ScalarNode:
        return super().represent_text(text, "|" if "\n" in text else style)


_Dumper.add_representer(str, _Dumper.represent_text)


def to_yaml(documents: Iterable[Mapping[str, Any]], comments: Iterable[str]) -> str:
    """Documents in the order of their keys, below comment lines; the same input gives the same bytes."""
    bodies = (
        yaml.dump(dict(body), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110) for body in documents
    )
    return commented(*comments) + "---\n".join(bodies)
