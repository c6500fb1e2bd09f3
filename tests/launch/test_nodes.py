"""Slurm's lists of nodes and tasks: by example, and against scontrol where that is installed."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from scalewright.launch.nodes import expand_counts, expand_hosts
from scalewright.spec.errors import UserError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3,07-09]", ["n1", "n2", "n3", "n07", "n08", "n09"]),
        ("gpu-a[01-02]-ib,login", ["gpu-a01-ib", "gpu-a02-ib", "login"]),
        ("r[1-2]n[8-10]", ["r1n8", "r1n9", "r1n10", "r2n8", "r2n9", "r2n10"]),
        ("n[098-101].site.org", ["n098.site.org", "n099.site.org", "n100.site.org", "n101.site.org"]),
        ("10.0.0.4", ["10.0.0.4"]),
        ("n[001-003,7]", ["n001", "n002", "n003", "n7"]),
        ("a[1-2]b[3-4]", ["a1b3", "a1b4", "a2b3", "a2b4"]),
        ("a[1,3]b[2,9]c[5]", ["a1b2c5", "a3b2c5", "a1b9c5", "a3b9c5"]),  # so scontrol has it
        ("n[1-2][3-4]", ["n13", "n14", "n23", "n24"]),
        ("[1-3],n1,n1", ["1", "2", "3", "n1", "n1"]),
        ("n[1-03,0-0]", ["n1", "n2", "n3", "n0"]),
        ("a[1-2]b[3-4]c", ["a1b3c", "a1b4c", "a2b3c", "a2b4c"]),
    ],
)
def test_hosts(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "n[1-3", "n1-3]", "n[]", "n[a-b]", "n[1-]", "n[-3]", "n[1-2-3]", "n[1,,2]", "n[3-1]", "n[1-70000]",
        "n[1-99999999999999]", "n1,,n2", ",n1", "n1,", "n 1", "n[[1-2]]", "n(1-2)[", "n[ 1-2]",
    ],
)  # fmt: skip
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="environment"):
        expand_hosts(text)


def test_no_list_is_no_host() -> None:
    assert expand_hosts("") == []


def test_counts() -> None:
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    assert expand_counts("4") == [4]
    with pytest.raises(UserError, match="2x3"):
        expand_counts("2x3")


LISTS, A_CALL = 10_000, 200


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("scontrol") is None, reason="scontrol is not installed (slurm-wlm)")
def test_hosts_are_those_of_scontrol(tmp_path: Path) -> None:
    """10,000 random lists, 200 a call; scontrol needs no cluster for this, but a file of settings."""
    settings = tmp_path / "slurm.conf"
    settings.write_text("ClusterName=c\nSlurmctldHost=localhost\n")
    draw = random.Random(7)
    for _ in range(LISTS // A_CALL):
        text = ",".join(random_list(draw) for _ in range(A_CALL))
        done = subprocess.run(
            ["scontrol", "show", "hostnames", text],
            env={"SLURM_CONF": str(settings), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert expand_hosts(text) == done.stdout.split()


def random_list(draw: random.Random) -> str:
    """A name, or one with one to four brackets of one to three ranges; nothing after the last one."""
    prefix = draw.choice(["n", "gpu-", "rack3-node", "a.b-", "", "x_1-"])
    if draw.random() < 0.2:
        return f"{prefix}{draw.randint(0, 99)}"
    name, most = prefix, 12
    for number in range(draw.choice([1, 1, 1, 2, 2, 3, 4])):
        between = draw.choice(["n", "-", ".r", ""]) if number else ""
        name += f"{between}[{','.join(random_range(draw, most) for _ in range(draw.randint(1, 3)))}]"
        most = 3  # so that four of them don't make a million
    return name


def random_range(draw: random.Random, most: int) -> str:
    first, width = draw.choice([0, 7, 95, 998, draw.randint(0, 12_000)]), draw.choice([0, 2, 3, 4, 6])
    if draw.random() < 0.3:
        return f"{first:0{width}d}"
    return f"{first:0{width}d}-{first + draw.randint(0, most):0{draw.choice([0, width])}d}"
