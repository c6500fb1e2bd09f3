"""Settings that libraries read from the environment: written here, or read and passed on; nowhere else."""

from __future__ import annotations

import os
import sys


def use_loopback() -> None:
    """Lets Gloo talk over the loopback interface: local workers need no resolvable host name."""
    if sys.platform in ("linux", "darwin"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")


def make_deterministic() -> None:
    """Gives cuBLAS a fixed workspace, without which its results may differ from run to run."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


# The trackers' own variables that a run obeys where its `track` keys are silent (track/store.py).
TRACKING = ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY")


def tracking_variables() -> dict[str, str]:
    """Those of TRACKING that are set and not empty."""
    return {name: os.environ[name] for name in TRACKING if os.environ.get(name)}


def present_environment() -> dict[str, str]:
    """The environment of this process, as a value for those who look at it (`doctor`)."""
    return dict(os.environ)
