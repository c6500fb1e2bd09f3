"""One part in a process of its own: `python -m harness.gpu.part NAME --out DIR --seconds N --device cuda`.

The ceilings are measured around a timed part, on a device that is hot by then. Exit codes: 0 it ended, 3 the
process must end and another one goes on (a broken CUDA context), 4 it is out of time.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import traceback
from pathlib import Path

import torch

from harness.gpu.budget import Check, OutOfTime, short
from harness.gpu.ceilings import drift, measure
from harness.gpu.parts import Part, find
from harness.gpu.store import end_with_parent, read_json

AGAIN, CUT = 3, 4
RESERVED = 5.0  # seconds for the ceilings at the end


def main() -> int:
    """Runs the part and writes how it ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    end_with_parent()
    part, file = find(options.name), options.out / "part.json"
    device = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
    check = Check(device, options.quick, file, part.name)
    check.end = time.monotonic() + options.seconds
    stored = read_json(file)
    if stored.get("name") == part.name:
        check.record = stored["record"]
    return _run(check, part)


def _run(check: Check, part: Part) -> int:
    missing = [name for name in part.needs if importlib.util.find_spec(name) is None]
    if missing:
        return _end(check, f"skipped: {', '.join(missing)} isn't installed", 0)
    try:
        if check.device.type == "cuda":
            torch.cuda.set_device(check.device)
            torch.set_float32_matmul_precision("highest")
        module, _, function = part.run.partition(":")
        run = getattr(importlib.import_module(f"harness.gpu.{module}"), function)
        start = measure(check) if part.timed else None
        check.end -= RESERVED if part.timed else 0.0
        try:
            run(check)
        finally:
            if start is not None:
                check.record["ceilings"] = {"start": start, **drift(start, measure(check))}
    except OutOfTime as error:
        return _end(check, f"cut: {error}", CUT)
    except Exception as error:  # what was measured stands, and the next part may still work
        check.record["traceback"] = traceback.format_exc()[-4000:]
        broken = check.device.type == "cuda" and _is_broken(check.device)
        return _end(check, f"failed: {short(error)}", AGAIN if broken else 0)
    return _end(check, "done", 0)


def _end(check: Check, status: str, code: int) -> int:
    check.record["status"] = status
    check.write()
    return code


def _is_broken(device: torch.device) -> bool:
    """Whether an earlier error left the CUDA context unusable: everything raises from then on."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a broken context may hang in its destructors
