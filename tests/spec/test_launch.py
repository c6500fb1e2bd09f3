"""Values of `launch:` that sites have, and those that no scheduler, ssh or shell should see."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.spec.errors import UserError
from scalewright.spec.launch import LaunchSpec
from scalewright.spec.run import RunSpec

REAL: list[dict[str, Any]] = [
    {"partition": "gpu,gpu-long", "account": "proj.x-1", "qos": "high+", "reservation": "maint_2026-11"},
    {"exclude": "gpu[01-04,7],cn-[001-100]"},
    {"constraint": "a100&ib|h100"},
    {"constraint": "[rack1*2&rack2*4]"},
    {"constraint": "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3,zone=a"},
    {"gpu": "gpu:a100_1g.5gb"},
    {"gpu": "NVIDIA H100 80GB HBM3"},
    {"gpu": "nvidia.com/mig-1g.5gb"},
    {"hosts": ("me@node-a", "fe80::1%eth0", "[::1]:22", "ssh://me@n:22", "10.0.0.7", "CORP\\me@n")},
    {"container": "nvcr.io#nvidia/pytorch:24.01-py3"},
    {"container": "/a b/c.sqsh"},
    {"container": "docker://u@r#i"},
    {"container": "r:5000/a@sha256:0a"},
    {"mounts": ("/a b:/c:ro",)},
    {"claims": {"s3://bucket/x": "/data"}},
    {"env": {"A_1": "a\nb $(x) \x1b ü"}},
    {"setup": ("if x; then\n\ty\nfi", "-x")},
    {"interface": "^lo,docker0"},
    {"options": ("--comment=a b", "-C", "x=1")},
    {"modules": ("gcc@12/cuda-12.4",)},
    {"python": "/a=b/bin/python3"},
]
BREAKS = {
    "partition": "a\n#SBATCH --wrap=x",
    "account": "a\nb",
    "qos": "a b",
    "reservation": "$(x)",
    "exclude": "a\nb",
    "constraint": "a;b",
    "gpu": "h100'",
    "hosts": ("-oProxyCommand=x",),
    "interface": "a\x1b[2J",
    "python": "-c",
    "workdir": "-",
    "modules": ("-x",),
    "setup": ("a\x00",),
    "env": {"A-B": "1"},
    "container": "--privileged",
    "mounts": ("/a:/b\u202e",),
    "claims": {"a": "/b\n"},
    "options": ("-x\n",),
    "namespace": "a\rb",
    "queue": "-q",
    "shared_memory": "1\n",
    "rdma": "a\u2028b",
}
MORE = [("hosts", ("me@-oProxyCommand=x",)), ("env", {"A": "\0"}), ("python", "A=b"), ("hosts", ("a b",))]


@pytest.mark.parametrize("keys", REAL, ids=str)
def test_values_that_sites_have(keys: dict[str, Any]) -> None:
    (name,) = list(keys)[:1]
    assert getattr(LaunchSpec.parse(keys), name) == keys[name]


@pytest.mark.parametrize(("key", "value"), [*BREAKS.items(), *MORE], ids=ascii)
def test_values_that_are_refused(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"launch.{key}") as caught:
        RunSpec.parse({"model": "tiny", "data": "tokens", "launch": {key: value}})
    assert caught.value.how
