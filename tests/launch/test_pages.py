"""docs/launch/*.md, typed as they stand: from a text to a run that was stopped, went on and has a page.

page.type("--print")            the block with these words, in a shell, in one folder
with page.start("bash first")   the same in a terminal of its own ──► .wait() -> its exit code
page.untyped == []              at the end: a line of a page that no test types is a mistake

What a page says of its reader's machines is replaced by what is here: `Page(..., replaced={...})`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.launch import ray_cluster, slurm_cluster, sshd
from tests.launch.launchers import LAUNCHERS, LOOPBACK, RANKS, Launcher, Services
from tests.test_docs import shell_blocks

from runs import end, events, steps_done

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SAVED = 75
SMALL = {  # 2 ranks a node, on a CPU
    "name: first": "name: first\ndevice: cpu",
    "devices: 16": "devices: 4",
    "steps: 200": "steps: 60",
}
NETWORK = {"interface: eth0 ": f"interface: {LOOPBACK} "}
PYTHON = {"setup: [source .venv/bin/activate]": f"setup: [export PATH={Path(sys.executable).parent}:$PATH]"}


class Page:
    """The blocks of one page that this file's test of it types."""

    def __init__(
        self, name: str, folder: Path, *replaced: Mapping[str, str], environ: Mapping[str, str] | None = None
    ) -> None:
        mark = f"tested by: tests/launch/test_pages.py::test_{name}"
        self.untyped = [b.text for b in shell_blocks(f"docs/launch/{name}.md") if b.mark == mark]
        self.folder, self.out = folder, folder / "runs" / "first"
        self.environ = {**os.environ, **RANKS, **(environ or {})}
        self.environ["PATH"] = f"{Path(sys.executable).parent}:{self.environ['PATH']}"
        for words, here in (pair for table in replaced for pair in table.items()):
            assert any(words in text for text in self.untyped), f"{name}.md has no {words!r}"
            self.untyped = [text.replace(words, here) for text in self.untyped]
        self.typed: dict[str, str] = {}

    def _take(self, words: str) -> str:
        """The block with these words; one that was typed before may be typed again."""
        text = next(text for text in [*self.untyped, *self.typed.values()] if words in text)
        self.untyped = [other for other in self.untyped if other != text]
        self.typed[words] = text
        return text

    def type(self, words: str) -> str:
        """What a block prints; it must not fail."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._take(words)], cwd=self.folder, env=self.environ,
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    @contextmanager
    def start(self, words: str) -> Iterator[subprocess.Popen[str]]:
        """A block that stays."""
        process = subprocess.Popen(
            ["bash", "-c", self._take(words)], cwd=self.folder, env=self.environ, text=True,
            stdin=subprocess.DEVNULL, stdout=(self.folder / "terminal.log").open("a"),
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                end(process)

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Waits, or fails with what the terminal and the job's log show."""
        limit = time.monotonic() + 240
        while not until():
            shown = "".join(path.read_text()[-3000:] for path in sorted(self.folder.glob("*.log")))
            assert time.monotonic() < limit, f"{what}\n{shown}"
            time.sleep(0.2)

    def is_beyond(self, step: int) -> Callable[[], bool]:
        return lambda: steps_done(self.out) > step

    def has(self, kind: str) -> Callable[[], bool]:
        return lambda: (self.out / "events.jsonl").exists() and bool(events(self.out, kind))


def stopped_and_gone_on(page: Page, *starts: str) -> None:
    """Started by these blocks, stopped by the page's file, started again to the end; looked at."""
    page.type("--print")
    for code in (SAVED, 0):
        with ExitStack() as terminals:
            processes = [terminals.enter_context(page.start(words)) for words in starts]
            if code == SAVED:
                page.wait(page.is_beyond(8), "steps")
                page.type("touch runs/first/STOP")
            for process in processes:
                assert process.wait(240) == code, (page.folder / "terminal.log").read_text()[-3000:]
    page.type("scalewright report")
    check_the_end(page)


def check_the_end(page: Page) -> None:
    """It went on after its stop, and is complete; each of the page's lines was typed."""
    kinds = [event["kind"] for event in events(page.out)]
    assert [kind for kind in kinds if kind in ("start", "stop", "resume", "finish")] == [
        "start", "stop", "resume", "finish",
    ]  # fmt: skip
    assert (page.out / "report.html").stat().st_size > 10_000
    assert page.untyped == []


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    started = Services(tmp_path_factory.mktemp("services"))
    yield started
    started.close()


def test_torchrun(tmp_path: Path) -> None:
    both = f"hosts: [127.0.0.1, localhost]\npreflight: warn\nport: {sshd.free_port()} "
    page = Page("torchrun", tmp_path, SMALL, NETWORK, {"hosts: [node-a, node-b] ": both})
    stopped_and_gone_on(page, "bash first.torchrun.sh 0", "bash first.torchrun.sh 1")


@pytest.mark.skipif(bool(sshd.missing()), reason=sshd.missing())
def test_ssh(tmp_path: Path, services: Services) -> None:
    keys = f"port: {sshd.free_port()}\npreflight: warn\noptions: [-F, {services.sshd}]\n"
    ranks = "".join(f"\n  {name}: {value!r}" for name, value in RANKS.items())
    hosts = {"hosts: [node-a, node-b] ": f"hosts: [127.0.0.1, localhost]\n{keys}env: {ranks}\n"}
    stopped_and_gone_on(Page("ssh", tmp_path, SMALL, NETWORK, PYTHON, hosts), "bash first.ssh.sh")


@pytest.mark.parametrize("launcher", [LAUNCHERS["launch mpi, Open MPI"], LAUNCHERS["launch mpi, MPICH"]])
def test_mpi(launcher: Launcher, tmp_path: Path, services: Services) -> None:
    if launcher.missing():
        pytest.skip(launcher.missing())
    hosts = {"hosts: [node-a, node-b] ": f"hosts: [localhost]\nport: {sshd.free_port()} "}
    few = {**SMALL, "devices: 16": "devices: 2"}
    page = Page("mpi", tmp_path, few, NETWORK, hosts, environ=launcher.environ(services))
    stopped_and_gone_on(page, "bash first.mpi.sh")


@pytest.mark.skipif(bool(ray_cluster.missing()), reason=ray_cluster.missing())
def test_ray(tmp_path: Path, services: Services) -> None:
    here = {"launch.workdir=$PWD": f"launch.workdir=$PWD launch.interface={LOOPBACK} --nodes 2"}
    few = {**SMALL, "devices: 16": "devices: 2"}
    page = Page("ray", tmp_path, few, here, environ={"RAY_ADDRESS": services.ray})
    stopped_and_gone_on(page, "python first.ray.py")


@pytest.mark.skipif(bool(slurm_cluster.missing()), reason="Slurm isn't installed")
def test_slurm(tmp_path: Path, services: Services) -> None:
    """Slurm itself starts it again."""
    more = "env: {MASTER_ADDR: 127.0.0.1}\npreflight: warn\nnodes: 2\npython: " + sys.executable
    site = {
        "partition: gpu": f"partition: main\n{more}",
        "gpu: gpu:h100  ": "#",
        "cpus_per_rank: 8": "cpus_per_rank: 1",
    }
    network = {"interface: ib0 ": f"interface: {LOOPBACK} "}
    cluster = services.slurm
    page = Page("slurm", tmp_path, SMALL, network, PYTHON, site, environ={**cluster.environ, **RANKS})
    page.type("scalewright prepare")
    page.type("cat > site.yaml")
    number = int(page.type("--submit").split()[-1])
    page.wait(page.is_beyond(8), "steps")
    assert "first" in page.type("squeue --me")
    page.type("scancel --signal=USR1")
    page.wait(page.has("stop"), "a stop")
    cluster.skip_hold(number)
    page.wait(page.has("finish"), "the end")
    cluster.wait_for_state(number, "COMPLETED")
    assert len(page.type("scalewright report").splitlines()) >= 4
    check_the_end(page)
