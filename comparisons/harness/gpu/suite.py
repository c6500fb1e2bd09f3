"""The tests that have a GPU parameter, by pytest in a few processes; each outcome is on disk at once.

    files that import from tests/devices.py ──► collected ──► the most telling first ──► shares of W processes
    an outcome is a line of outcomes-N.jsonl     one that takes too long ends its process; the next takes over

A broken CUDA context ends its process too: the tests after it would all fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.facts import ROOT
from harness.gpu.budget import Check, OutOfTime

HAS_PARAMETER = re.compile(r"^from devices import ", re.MULTILINE)
# What no CPU can tell, by what would hurt most if it were wrong.
FIRST = (
    "test_each_backend", "test_attention_is_its_formula", "test_resume_is_bitwise", "test_the_host_never",
    "test_compiled_blocks_train", "test_documents_by_flash", "test_what_saves_memory", "test_16_bits_learn",
    "test_grouped_products", "test_losses_are_the_cpus", "test_compiled_blocks_work", "test_a_gpu_updates",
    "test_a_gpu_draws", "test_gradients_are_finite", "test_blocks_are_not_compiled_anew",
)  # fmt: skip
ONE_TEST_S = 120.0  # a compiled run takes 20 to 40 s
PROCESSES = 4  # contexts of half a GiB each; most of a test is Python and compilers


def first(check: Check) -> None:
    """The most telling ones."""
    _run(check, [test for test in collect(check) if any(word in test for word in FIRST)])


def rest(check: Check) -> None:
    """All others."""
    _run(check, [test for test in collect(check) if not any(word in test for word in FIRST)])


def files() -> list[str]:
    """Test files with a GPU parameter: the others may want packages that aren't here."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in paths if HAS_PARAMETER.search(path.read_text(encoding="utf-8"))]


def collect(check: Check) -> list[str]:
    """Their ids, the most telling first; on a CPU the CPU's cases of two files stand in for them."""
    marks = ["-m", "gpu"] if check.device.type == "cuda" else ["-m", "not slow and not parity"]
    names = files() if check.device.type == "cuda" else ["tests/model/test_gpu.py", "tests/model/test_gpu_kernels.py"]
    done = subprocess.run(
        [*_pytest(), "--collect-only", *marks, *names], cwd=ROOT, env=_environ(), capture_output=True, text=True
    )
    tests = [line for line in done.stdout.splitlines() if "::" in line and not line.startswith(("ERROR", " "))]
    errors = [line for line in done.stdout.splitlines() if line.startswith("ERROR")]
    check.record["collected"] = {"files": len(names), "tests": len(tests), "errors": errors}
    check.write()
    if not tests:
        raise RuntimeError(f"no test was collected: {(done.stdout + done.stderr).strip()[-600:]}")
    ranks = {test: next((n for n, word in enumerate(FIRST) if word in test), len(FIRST)) for test in tests}
    return sorted(tests, key=ranks.__getitem__)


def _run(check: Check, tests: list[str]) -> None:
    """Runs those without an outcome; raises OutOfTime with some of them left."""
    left = [test for test in tests if test not in check.part]
    processes = PROCESSES if check.device.type == "cuda" else 1
    with tempfile.TemporaryDirectory() as folder:
        workers = [Worker(Path(folder), number, left[number::processes]) for number in range(processes)]
        try:
            while sum(worker.goes_on(check) for worker in workers):  # asks every one of them
                if check.left < 1.0:
                    waiting = sum(test not in check.part for test in tests)
                    raise OutOfTime(f"{waiting} tests wait")
                time.sleep(0.1)
        finally:
            for worker in workers:
                worker.kill()


class Worker:
    """A share of the tests in one process after another."""

    def __init__(self, folder: Path, number: int, tests: list[str]) -> None:
        self.outcomes, self.tests = folder / f"outcomes-{number}.jsonl", tests
        self.log = folder / f"log-{number}.txt"
        self.process: subprocess.Popen[bytes] | None = None
        self.seen, self.since = 0, time.monotonic()

    def goes_on(self, check: Check) -> bool:
        """Takes over new outcomes, ends a test that takes too long, starts a process where there is none."""
        ended = self.process is not None and self.process.poll() is not None
        self._read(check)
        if self.process is not None and not ended and time.monotonic() - self.since > ONE_TEST_S:
            self.kill()
            self._give_up(check, f"it took more than {ONE_TEST_S:.0f} s")
        elif ended and self.tests and not self._stopped_between(check):
            self._give_up(
                check, f"its process ended with {self.process.returncode if self.process else None}: {self._tail()}"
            )
        if self.process is None or self.process.poll() is not None:
            if not self.tests:
                return False
            self._start()
        return True

    def kill(self) -> None:
        """Ends the process and its children."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _start(self) -> None:
        names = self.outcomes.with_suffix(".txt")
        names.write_text("\n".join(self.tests), encoding="utf-8")
        environ = _environ() | {"GPU_CHECK_TESTS": str(names), "GPU_CHECK_OUTCOMES": str(self.outcomes)}
        paths = sorted({test.split("::")[0] for test in self.tests})
        command = [*_pytest(), "-p", "harness.gpu.outcomes", "-m", "", *paths]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environ, stdout=log, stderr=log, start_new_session=True
            )
        self.since = time.monotonic()

    def _read(self, check: Check) -> None:
        lines = self.outcomes.read_text(encoding="utf-8").splitlines() if self.outcomes.exists() else []
        for line in lines[self.seen :]:
            outcome: dict[str, Any] = json.loads(line)
            self._store(check, outcome.pop("test"), outcome)
        self.seen = len(lines)

    def _store(self, check: Check, test: str, outcome: dict[str, Any]) -> None:
        if test in self.tests:
            self.tests.remove(test)
        self.since = time.monotonic()
        check.note(test, outcome)

    def _stopped_between(self, check: Check) -> bool:
        """Whether the plugin ended the process itself, after an outcome that broke the context."""
        return self.process is not None and self.process.returncode == 3

    def _give_up(self, check: Check, why: str) -> None:
        self._store(check, self.tests[0], {"outcome": "error", "seconds": ONE_TEST_S, "message": why})

    def _tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace").strip()[-300:] if self.log.exists() else ""


def _pytest() -> list[str]:
    """The project's own settings want plugins that may not be here."""
    return [
        sys.executable, "-m", "pytest", "-q", "-c", os.devnull, f"--rootdir={ROOT}", "-p", "no:cacheprovider",
        "-W", "ignore", "--continue-on-collection-errors",
    ]  # fmt: skip


def _environ() -> dict[str, str]:
    paths = [ROOT / "src", ROOT / "tests", ROOT, ROOT / "comparisons"]
    existing = os.environ.get("PYTHONPATH", "")
    # Before anything makes a cuBLAS handle: deterministic runs need it (train's own set-up does the same).
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, paths), existing]), "OMP_NUM_THREADS": "1",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # fmt: skip
