"""A Ray cluster of two nodes on this machine, with a CPU each.

pip install 'ray[train]'; where `ray[default]` is, `ray job submit` and `ray job stop` work, too
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

HEAD = """
from ray.cluster_utils import Cluster
import sys
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False,
                                                        "object_store_memory": 80 << 20})
cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


def missing() -> str:
    """What isn't installed here."""
    return "" if importlib.util.find_spec("ray") else "Ray isn't installed: pip install 'ray[train]'"


@contextmanager
def two_nodes(environ: Mapping[str, str]) -> Iterator[str]:
    """The address of a cluster that is up meanwhile."""
    quiet = {"RAY_USAGE_STATS_ENABLED": "0"}
    head = subprocess.Popen(
        [sys.executable, "-c", HEAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **environ, **quiet}, start_new_session=True,
    )  # fmt: skip
    assert head.stdin is not None
    assert head.stdout is not None
    try:
        address = head.stdout.readline().strip()
        assert address, "Ray's cluster didn't start"
        yield address
    finally:
        head.stdin.close()
        try:
            head.wait(60)
        except subprocess.TimeoutExpired:
            head.kill()
            head.wait()
        head.stdout.close()
