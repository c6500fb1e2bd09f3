"""Keys of `track` win over the trackers' variables, those over the defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scalewright.launch.settings import TRACKING, tracking_variables
from scalewright.spec.errors import UserError
from scalewright.spec.tracking import TrackSpec
from scalewright.track.store import Store, describe_error, find_store, without_password

VARIABLES = {
    "MLFLOW_TRACKING_URI": "http://tracking:5000",
    "MLFLOW_EXPERIMENT_NAME": "team",
    "WANDB_MODE": "online",
    "WANDB_PROJECT": "from-the-shell",
    "WANDB_ENTITY": "us",
}


def test_variables_are_obeyed_where_keys_are_silent() -> None:
    assert find_store(TrackSpec(mlflow=True, wandb=True)) == Store()
    assert find_store(TrackSpec(mlflow=True, wandb=True), VARIABLES) == Store(
        "http://tracking:5000", "team", "from-the-shell", "us", "online"
    )
    track = TrackSpec.parse({"mlflow": {"uri": "sqlite:///a.db"}, "wandb": {"mode": "offline", "entity": "me"}})
    assert find_store(track, VARIABLES) == Store("sqlite:///a.db", "team", "from-the-shell", "me", "offline")


def test_the_default_store_lies_beside_the_runs(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "first"
    assert Store().mlflow_uri(folder) == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert Store(uri="databricks").mlflow_uri(folder) == "databricks"


def test_w_and_b_s_modes() -> None:
    track = TrackSpec(wandb=True)
    assert [find_store(track, {"WANDB_MODE": mode}).mode for mode in ("dryrun", "run", "disabled")] == [
        "offline",
        "online",
        "disabled",
    ]
    with pytest.raises(UserError, match=r"WANDB_MODE is 'onlin'.*use online, offline or disabled"):
        find_store(track, {"WANDB_MODE": "onlin"})
    assert find_store(TrackSpec(), {"WANDB_MODE": "onlin"}).mode == "offline"  # nobody asked for W&B


def test_the_environment_is_read_in_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TRACKING:
        monkeypatch.delenv(name, raising=False)
    assert tracking_variables() == {}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    monkeypatch.setenv("WANDB_MODE", "")
    assert tracking_variables() == {"MLFLOW_TRACKING_URI": "http://tracking:5000"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mlflow": {"url": "x"}}, "unknown key 'url' .track.mlflow.: did you mean 'uri'"),
        ({"wandb": {"mode": "onlin"}}, r"mode is 'onlin'.*track.wandb"),
        ({"mlflow": "http://x"}, "it is 'http://x' .track.mlflow.: use true, false, or keys: uri, experiment"),
    ],
)
def test_mistakes_name_the_key(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TrackSpec.parse(keys)


def test_a_password_is_never_kept() -> None:
    assert without_password("https://me:secret@host:1/x") == "https://host:1/x"
    assert without_password("sqlite:////tmp/a@b.db") == "sqlite:////tmp/a@b.db"
    assert without_password(None) is None
    assert without_password("https://me:p@ss@host/x") == "https://host/x"
    long = describe_error(OSError("x" * 250 + " PUT http://me:" + "secret" * 20 + "@host:1/api and http://b:secret@c"))
    assert "secret" not in long
    assert describe_error(ValueError("a@b, http://host/a@b")) == "ValueError: a@b, http://host/a@b"
