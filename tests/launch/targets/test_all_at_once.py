"""What a target lacks is named at once, with an example of each."""

from __future__ import annotations

import pytest

from scalewright.launch.job import make_job
from scalewright.launch.targets import find_target
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec

CASES = [
    ("runpod", {}, "auto", {"launch.gpu": "H100", "launch.container": "REGISTRY/IMAGE:TAG"}),
    ("runpod", {"claims": {"a": "/a", "b": "/b"}, "env": {"RANK": "1"}}, "cpu",
     {"device: cpu": "use another target", "launch.claims": "VOLUME_ID: /workspace", "launch.gpu": "H100",
      "launch.container": "REGISTRY/IMAGE:TAG", "launch.env": "leave it out"}),
    ("dstack", {"claims": {"a:b": "/a"}}, "auto",
     {"launch.container": "REGISTRY/IMAGE:TAG", "launch.gpu": "H100", "launch.claims": "VOLUME: /data"}),
    ("skypilot", {"env": {"RANK": "1", "WORLD_SIZE": "2"}}, "auto", {"launch.gpu": "H100", "launch.env": "leave"}),
    ("kubernetes", {"queue": "a_", "gpu": "h100", "workdir": "here", "claims": {"A": "/a"}, "rdma": "ib"}, "auto",
     {"launch.container": "REGISTRY/IMAGE:TAG", "launch.queue": "training", "launch.gpu": "nvidia.com/gpu",
      "launch.workdir": "the path in the container", "launch.claims": "kubectl get pvc", "launch.rdma": "rdma/ib"}),
]  # fmt: skip


@pytest.mark.parametrize(("target", "site", "device", "wanted"), CASES)
def test_all_that_is_missing_is_named_at_once(
    target: str, site: dict[str, object], device: str, wanted: dict[str, str]
) -> None:
    run = RunSpec.parse({"model": "tiny", "data": "data", "layout": {"devices": 8}, "device": device, "launch": site})
    job = make_job(run, "run.yaml", (), None, None, target)
    with pytest.raises(UserError) as caught:
        find_target(target)(job)
    assert {part.where: True for part in caught.value.parts} == dict.fromkeys(wanted, True)
    for part in caught.value.parts:
        assert wanted[part.where] in part.how
        assert str(part) in str(caught.value)
    assert str(caught.value).startswith(f"{len(caught.value.parts)} things to mend: ")
