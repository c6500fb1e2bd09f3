"""Slurm's lists of nodes and tasks: by example, and against scontrol where that is installed."""

from __future__ import annotations

import random
import shutil
import subprocess

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
    ],
)
def test_hosts(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize("text", ["n[1-3", "n[]", "n[a-b]", "n[1-]", "n[1-2-3]", "n1,,n2", "n 1"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="environment"):
        expand_hosts(text)


def test_counts() -> None:
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    assert expand_counts("4") == [4]
    with pytest.raises(UserError, match="2x3"):
        expand_counts("2x3")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("scontrol") is None, reason="scontrol is not installed")
def test_hosts_are_those_of_scontrol(tmp_path) -> None:
    """2,000 random lists in one call; scontrol needs no cluster for this, but a file of settings."""
    settings = tmp_path / "slurm.conf"
    settings.write_text("ClusterName=c\nSlurmctldHost=localhost\n")
    draw = random.Random(7)
    for _ in range(40):
        lists = [random_list(draw) for _ in range(50)]
        done = subprocess.run(
            ["scontrol", "show", "hostnames", ",".join(lists)],
            env={"SLURM_CONF": str(settings), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert expand_hosts(",".join(lists)) == done.stdout.split()


def random_list(draw: random.Random) -> str:
    prefix = draw.choice(["n", "gpu-", "rack3-node", "a.b-"])
    parts = []
    for _ in range(draw.randint(1, 3)):
        first = draw.randint(0, 120)
        width = draw.choice([0, 2, 3, 4])
        last = first + draw.randint(0, 12)
        parts.append(f"{first:0{width}d}" if draw.random() < 0.3 else f"{first:0{width}d}-{last:0{width}d}")
    # Slurm 22.05 takes nothing after the last bracket
    return draw.choice(
        [f"{prefix}{draw.randint(0, 99)}", f"{prefix}[{','.join(parts)}]", f"r[1-3]-[{','.join(parts)}]"]
    )
