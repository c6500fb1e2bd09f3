"""The first thing to run on a GPU: parts by what a second of them is worth, in visits of any length.

    python3 comparisons/gpu_check.py --out DIR            what fits into nine minutes, in order
    python3 comparisons/gpu_check.py --out DIR --resume   goes on where the last visit stopped
    python3 comparisons/gpu_check.py --parts gemm fp8     some of it
    python3 comparisons/gpu_check.py --device cpu --quick its plumbing, on a CPU, in minutes

The same file is `run.py` of the folder that `make gpu-kit` makes for machines without a network. It looks
at what the machine has, prints it, and uses nothing else: torch >= 2.11 must be there; wheels of the kit
stand in for other packages that are missing.

    look ──► part ──► part.json, synced after every number ──► gpu-check.json, gpu-check.md
              └─ a process of its own: at its limit, a crash, a broken CUDA context it alone ends

Exit codes: 0 every part has ended; 1 one of them failed, or a test did; 2 nothing can run here; 75 there is
more to do: run it again with --resume.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE if (HERE / "kit.json").exists() else HERE.parent
sys.path.insert(0, str(ROOT / "comparisons"))

from harness.gpu.parts import NAMES, VISIT_MINUTES, Part, find  # noqa: E402  (stdlib alone, like this file)
from harness.gpu.store import read_json, write_json  # noqa: E402

AGAIN, CUT, HUNG, MORE = 3, 4, -1000, 75  # of a part; of a part ended at its limit; of this
GRACE_S = 5.0  # between asking a process to end and ending it
ENDED = ("done", "failed", "skipped")


def main() -> int:
    """One visit."""
    options = arguments()
    started, out = time.monotonic(), Path(options.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    stored = read_json(out / "gpu-check.json")
    if stored and not options.resume:
        sys.exit(f"error: {out} holds a result: go on with it by --resume, or give another --out")
    state = stored or {"title": "GPU check", "visits": [], "parts": {}}
    environ = environment(out)
    machine = look(environ, out, options.device)
    state["visits"].append(
        {"started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "quick": options.quick, **machine}
    )
    visit = Visit(options, state, out, environ, started)
    visit.merge()
    visit.save()
    signal.signal(signal.SIGTERM, visit.stop)
    signal.signal(signal.SIGINT, visit.stop)
    for name in options.parts:
        visit.run(find(name))
    visit.report()
    left = visit.left(options.parts)
    print(
        f"wrote {out / 'gpu-check.json'} and gpu-check.md"
        + (f"; left: {' '.join(left)}: go on with --resume" if left else "")
    )
    return MORE if left else int(visit.bad(options.parts))


def arguments() -> argparse.Namespace:
    """The command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--out", default="gpu-check", help="folder of the results")
    parser.add_argument("--minutes", type=float, default=VISIT_MINUTES, help="of this visit")
    parser.add_argument(
        "--parts", nargs="+", default=list(NAMES), choices=list(NAMES), metavar="PART", help=" ".join(NAMES)
    )
    parser.add_argument("--resume", action="store_true", help="goes on with the results in --out")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--quick", action="store_true", help="tiny sizes: tries the plumbing, measures nothing")
    options = parser.parse_args()
    if options.device == "cpu" and not options.quick:
        parser.error("on a CPU only --quick makes sense: the real sizes would take days")
    return options


def environment(out: Path) -> dict[str, str]:
    """Where the parts find ours, and the kit's wheels of what is missing or too old here."""
    paths = [ROOT / "src", ROOT / "comparisons", ROOT]
    kit = read_json(ROOT / "kit.json")
    site = out / "site"
    for package in kit.get("wheels", []):
        if present(package):
            continue
        if kit["python"] != tag() and not package["pure"]:
            print(f"{package['name']} is missing, and the kit's is for {kit['python']}: PYTHON_TAG={tag()}")
            continue
        with zipfile.ZipFile(ROOT / "wheels" / package["file"]) as wheel:
            wheel.extractall(site)
        print(f"{package['name']} {package['version']}: from the kit")
    existing = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    path = os.pathsep.join([*map(str, paths), *existing, *([str(site)] if site.exists() else [])])
    return {
        **os.environ,
        "PYTHONPATH": path,
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(min(4, os.cpu_count() or 1)),
    }


def tag() -> str:
    """This Python's."""
    return f"cp{sys.version_info[0]}{sys.version_info[1]}"


def present(package: dict[str, Any]) -> bool:
    """Whether a package of the kit can be imported here, in a version that is new enough."""
    if importlib.util.find_spec(package["module"]) is None:
        return False
    try:
        here = importlib.metadata.version(package["name"])
    except importlib.metadata.PackageNotFoundError:
        return True
    tests = {">=": lambda least: numbers(here) >= least, "==": lambda only: numbers(here) == only}
    return all(tests[need[:2]](numbers(need[2:])) for need in package["needed"])


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version."""
    parts = version.split("+")[0].split(".")
    return tuple(int(part) for part in parts if part.isdigit())


def look(environ: dict[str, str], out: Path, device: str) -> dict[str, Any]:
    """What this machine has, printed; leaves with exit code 2 where nothing can run."""
    code = (
        "import json; from harness.facts import facts; from harness.result import facts_text;"
        "found = facts(); print(facts_text(found)); import scalewright.spec.run;"
        "import torch; print('\\n' + json.dumps({'facts': found, 'cuda': torch.cuda.is_available()}))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environ, cwd=out, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"error: nothing can run on {sys.executable} here: {last}", file=sys.stderr)
        sys.exit(2)
    text, _, data = done.stdout.rstrip().rpartition("\n")
    found: dict[str, Any] = json.loads(data)
    print(text.strip(), flush=True)
    if device == "cuda" and not found["cuda"]:
        print(
            "error: no CUDA device that torch can use: try --device cpu --quick, or see `scalewright doctor`",
            file=sys.stderr,
        )
        sys.exit(2)
    return found["facts"] | {"python_at": Path(sys.executable).name}


class Visit:
    """Runs parts one after the other and keeps the results on disk."""

    def __init__(
        self, options: argparse.Namespace, state: dict[str, Any], out: Path, environ: dict[str, str], started: float
    ) -> None:
        self.options, self.state, self.out, self.environ = options, state, out, environ
        self.started, self.end = started, started + 60 * options.minutes
        self.process: subprocess.Popen[bytes] | None = None
        self.log = out / "output.log"

    def run(self, part: Part) -> None:
        """One part, in a new process where an error broke the old one, until it ends or is out of time."""
        while True:
            record = self.state["parts"].get(part.name, {})
            if str(record.get("status", "")).startswith(ENDED):
                return
            remaining = self.end - time.monotonic()
            if remaining < (2 if self.options.quick else part.least):
                return
            seconds = min(part.limit, remaining)
            before, begun = len(record.get("values", {})), time.monotonic()
            code, how = self.start(part, record, seconds)
            self.merge()
            record = self.state["parts"].setdefault(part.name, {"values": {}})
            record["seconds"] = round(record.get("seconds", 0.0) + time.monotonic() - begun, 1)
            record["limit"], record["why"] = part.limit, part.why
            grew = len(record["values"]) > before
            if code == AGAIN and grew:
                record.pop("status", None)
            elif code not in (0, AGAIN, CUT):  # it died, or was ended at its limit
                record.setdefault("deaths", {}).setdefault(record.pop("at", "start"), []).append(how)
                died = len(record["deaths"].get("start", []))
                record["status"] = f"failed: {how}" if died > 1 else f"cut: {how}"
            elif code == CUT and not grew and seconds >= part.limit:
                record["status"] = f"failed: nothing new in {seconds:.0f} s; {record['status']}"
            self.save()
            self.line(part, record)
            if code in (0, CUT, HUNG) or str(record.get("status", "")).startswith(ENDED):
                return

    def start(self, part: Part, record: dict[str, Any], seconds: float) -> tuple[int, str]:
        """The process of a part: its exit code, and how it ended where that isn't its own doing."""
        record = {key: value for key, value in record.items() if key not in ("status", "traceback")}
        write_json(self.out / "part.json", {"name": part.name, "record": {"values": {}, **record}})
        command = [
            sys.executable, "-m", "harness.gpu.part", part.name, "--out", str(self.out), "--seconds",
            f"{seconds:.1f}", "--device", self.options.device, *(["--quick"] if self.options.quick else []),
        ]  # fmt: skip
        with self.log.open("ab") as log:
            log.write(f"== {part.name}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                command, cwd=self.out, env=self.environ, stdout=log, stderr=log, start_new_session=True
            )
        shown, until = time.monotonic(), time.monotonic() + seconds + 3 * GRACE_S
        while self.process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
            if time.monotonic() - shown > 15:
                shown = time.monotonic()
                self.progress(part, self.out)
        if self.process.poll() is None:
            self.kill()
            return HUNG, f"it went on for {3 * GRACE_S:.0f} s past its limit of {seconds:.0f} s and was ended"
        self.kill()  # what it left running
        code = self.process.returncode
        return (code, f"its process ended with {signal.Signals(-code).name if code < 0 else code}: {self.tail()}")

    def kill(self) -> None:
        """Ends the part's process and all that it started."""
        if self.process is not None:
            for number, wait in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 1.0)):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(wait if self.process.poll() is None else 0)

    def stop(self, number: int, frame: object) -> None:
        """A signal: the part that runs is ended, what it had is kept."""
        self.kill()
        self.merge()
        self.save()
        print(f"stopped by {signal.Signals(number).name}; go on with --resume", flush=True)
        os._exit(MORE)

    def merge(self) -> None:
        """Takes over what the last part wrote, also one of a visit that was ended without a word."""
        stored = read_json(self.out / "part.json")
        if stored:
            self.state["parts"][stored["name"]] = stored["record"]

    def save(self) -> None:
        """Writes the results and then removes the part's file, which they hold."""
        write_json(self.out / "gpu-check.json", self.state)
        (self.out / "part.json").unlink(missing_ok=True)

    def report(self) -> None:
        """The tables; results count without them."""
        command = [sys.executable, "-m", "harness.gpu.report", str(self.out)]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True)
        if done.returncode:
            print(f"no tables were written: {(done.stderr.strip().splitlines() or ['?'])[-1]}", file=sys.stderr)

    def left(self, names: list[str]) -> list[str]:
        """Parts that haven't ended."""
        return [
            name for name in names if not str(self.state["parts"].get(name, {}).get("status", "")).startswith(ENDED)
        ]

    def bad(self, names: list[str]) -> bool:
        """Whether a part failed, or a test did."""
        records = [self.state["parts"].get(name, {}) for name in names]
        values = [value for record in records for value in record.get("values", {}).values()]
        tests = any(isinstance(value, dict) and value.get("outcome") in ("failed", "error") for value in values)
        return tests or any(record["status"].startswith("failed") for record in records)

    def tail(self) -> str:
        """The last line of the log."""
        with contextlib.suppress(OSError):
            lines = self.log.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
            return lines[-1][:300] if lines else ""
        return ""

    def progress(self, part: Part, out: Path) -> None:
        """A line while a part runs."""
        record = read_json(out / "part.json").get("record", {})
        at = f", at {record['at']}" if "at" in record else ""
        print(f"  {part.name}: {len(record.get('values', {}))} numbers{at}", flush=True)

    def line(self, part: Part, record: dict[str, Any]) -> None:
        """How a part ended, and what is left."""
        left = self.left(self.options.parts)
        minutes = max(0.0, self.end - time.monotonic()) / 60
        more = f"; left: {' '.join(left)}" if left else ""
        status = record.get("status", "goes on in a new process")
        print(f"{part.name}: {status} ({record['seconds']:.0f} s) · {minutes:.1f} min of this visit{more}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
