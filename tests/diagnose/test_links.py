"""Links far below their specification are named, with what a sound link gains; others aren't."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.diagnose import cpu_job
from tests.diagnose.cpu_job import CpuJob
from tests.diagnose.job import Job, simulate, write

from scalewright.diagnose.diagnose import diagnose
from scalewright.diagnose.links import slow_links
from scalewright.diagnose.logs.given import Given
from scalewright.diagnose.ranks import read_ranks
from scalewright.diagnose.verdicts import verdicts
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster

SOUND = Job(overlap=True, kernel=150.0, collective=140.0)  # 180 GB/s of 300


def test_a_slow_link_comes_first_and_its_gain_is_true(tmp_path: Path) -> None:
    length = write(SOUND.without(collective=1500.0), tmp_path)
    first = verdicts(read_ranks(sorted(tmp_path.iterdir())))[0]
    assert first.cause == "link"
    assert "16.78 GB/s of a link's 300 GB/s" in first.evidence[0]
    assert first.usual_gain == pytest.approx(100 * (1 - simulate(SOUND)[1] / length), rel=0.1)


@pytest.mark.parametrize("job", [SOUND, Job(elements=1 << 12, collective=100.0)])
def test_sound_links_and_small_messages_raise_no_alarm(job: Job, tmp_path: Path) -> None:
    write(job, tmp_path)
    assert slow_links(read_ranks(sorted(tmp_path.iterdir()))) is None


def test_waiting_for_a_late_rank_is_no_slow_link(tmp_path: Path) -> None:
    write(SOUND.without(compute_of={1: 3.0}), tmp_path)
    ranks = read_ranks(sorted(tmp_path.iterdir()))
    assert slow_links(ranks) is None
    assert verdicts(ranks)[0].cause == "straggler"


# 2 hosts of a process, 100 MB/s and 100 us a hop, measured: 2 MB over 2 ranks take 20 ms and two hops
GIGABIT = CpuJob(operator=2_000.0, transfer=20_200.0, elements=500_000)
CLUSTER = """
name: two hosts
device: {like: h100-sxm}
devices_per_node: 1
nodes: 2
levels:
  - {name: device, kind: memory, size: 1, bytes_per_s: 1.0e+10, latency_s: 0}
  - {name: fabric, kind: ethernet, size: null, bytes_per_s: 1.0e+8, latency_s: 1.0e-4, source: measured}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    return str(tmp_path / "cluster.yaml")


def test_of_cpu_processes_the_cluster_that_is_given_tells_the_link(tmp_path: Path, cluster: str) -> None:
    slow = replace(GIGABIT, transfer=4 * GIGABIT.transfer)
    length = cpu_job.write(slow, tmp_path / "slow")
    first = diagnose([tmp_path / "slow"], Given(cluster=cluster))["verdicts"][0]
    assert first["cause"] == "link"
    assert "24.8 MB/s of a link's 100.0 MB/s" in first["evidence"][0]
    assert first["gain_pct"]["p50"] == pytest.approx(100 * (1 - cpu_job.simulate(GIGABIT)[1] / length), rel=0.02)
    assert first["gain_pct"]["p10"] < first["gain_pct"]["p50"] < first["gain_pct"]["p90"]


def test_a_link_as_it_was_measured_raises_no_alarm(tmp_path: Path, cluster: str) -> None:
    cpu_job.write(GIGABIT, tmp_path / "sound")
    ranks = read_ranks(sorted((tmp_path / "sound").iterdir()), load_cluster(cluster))
    (rate,) = ranks.bandwidths
    assert rate.bus == pytest.approx(2e6 / 20.2e-3, rel=1e-3)  # all-reduce over 2: factor 1
    assert slow_links(ranks) is None


def test_a_cluster_is_for_traces_and_logs(tmp_path: Path, cluster: str) -> None:
    (tmp_path / "nccl.log").write_text("host:1:1 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n")
    with pytest.raises(UserError, match="cluster for that or for traces"):
        diagnose([tmp_path / "nccl.log"], Given(cluster=cluster))
