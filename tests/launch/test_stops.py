"""Whatever asks a run to stop, however it was started: one step, saved, 75, nobody left, the same run after.

six ways to ask, Ctrl-C twice, a rank killed    x    thirteen ways to start        stopping.py, launchers.py
where a launcher makes that impossible, stops_table.py says what happens instead
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.launch.launchers import LAUNCHERS, REQUEUED, Services
from tests.launch.stopping import LIMITED_S, PAUSE_S, SLOW_S, STEPS, data_of, disturb
from tests.launch.stops_table import WAYS, Line, documented, expected, tried

from runs import bits, run, weights

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has none of these signals"),
    pytest.mark.timeout(600),
]
ALL = [(name, way) for name in LAUNCHERS for way in WAYS if tried(name, way)]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = Services(tmp_path_factory.mktemp("services"))
    yield services
    services.close()


class Controls:
    """The folders of undisturbed runs, by their number of ranks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[int, str] = {}

    def of(self, ranks: int) -> str:
        """One for all launchers."""
        if ranks not in self._made:
            folder = self._folder / str(ranks)
            folder.mkdir()
            self._made[ranks] = run(data_of(folder, ranks)).out_dir
        return self._made[ranks]


@pytest.fixture(scope="module")
def controls(tmp_path_factory: pytest.TempPathFactory) -> Controls:
    return Controls(tmp_path_factory.mktemp("controls"))


def stop_and_go_on(
    folder: Path, name: str, way: str, services: Services, controls: Controls, lines: list[Line]
) -> None:
    """Disturbs a run, starts it again to its end, and compares."""
    launcher = LAUNCHERS[name]
    if reason := launcher.missing():
        pytest.skip(reason)
    since, wanted, control = time.monotonic(), expected(name, way), controls.of(launcher.ranks)
    pause_s = SLOW_S if wanted.slow else LIMITED_S if way == "time limit" else PAUSE_S
    ending = disturb(folder, launcher, services, way, pause_s)
    out = folder / "out"
    stop = ending.stop
    mine, theirs = weights(out, optimizer=True), weights(control, optimizer=True)
    same = bits(out) == bits(control) and all(mine[name].equal(theirs[name]) for name in theirs)
    step, cause = (stop["step"], stop["cause"]) if stop else (None, None)
    total = time.monotonic() - since
    left = len(ending.left)
    lines.append(Line(name, way, step, cause, ending.code, ending.seconds, left, ending.codes, same, total))

    assert ending.code == wanted.code, ending.text
    assert ending.left == [], ending.text
    if wanted.ignored or ending.code == 0:
        assert (stop, ending.codes) == (None, [])
    else:
        assert (stop is not None) == wanted.saved, ending.text
        assert ending.codes[-1] == 0, ending.text
        assert set(ending.codes) <= {0, REQUEUED}, ending.text  # a busy Slurm's minutes may be over again
    if stop is not None:
        assert set(ending.done.values()) == {stop["step"]}, "ranks stopped at other steps than agreed"
        assert 0 < stop["step"] < STEPS
        assert ending.committed
        assert not (out / "STOP").exists()
    assert same


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), ALL)
def test_every_stop_of_every_launcher(
    tmp_path: Path, services: Services, controls: Controls, lines: list[Line], name: str, way: str
) -> None:
    stop_and_go_on(tmp_path, name, way, services, controls, lines)


def test_the_page_has_the_table_that_is_tested(root: Path) -> None:
    assert documented() in (root / "docs" / "launch.md").read_text(encoding="utf-8"), documented()
