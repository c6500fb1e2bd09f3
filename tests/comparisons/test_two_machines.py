"""torchrun on two machines: network namespaces, where this system lets us make them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest


def may_make_namespaces() -> bool:
    """Whether this is Linux, with `ip`, as root and allowed to."""
    if not sys.platform.startswith("linux") or shutil.which("ip") is None or os.geteuid() != 0:
        return False
    name = f"scalewright-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return made


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not may_make_namespaces(), reason="needs root, `ip` and network namespaces")
def test_two_namespaces_train_as_one_device_does(script):
    data, text = script("two_machines.py", "--quick", timeout=800)
    (case,) = data["cases"].values()
    assert case["worst"] < data["tolerance"]["loss"]
    assert len(case["losses"]) == len(data["control"]) == 10
    assert case["losses"][0] != case["losses"][-1]
    assert case["bytes_a_step"] > 20_000  # gathered parameters and gradients did cross the cable
    assert "ZeRO-3 over both" in text
    assert "machine-a" not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
