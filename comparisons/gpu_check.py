"""The first thing to run on a GPU: one call, at most nine minutes, one device, no network.

    PYTHONPATH=src python comparisons/gpu_check.py                          everything, in order of worth
    PYTHONPATH=src python comparisons/gpu_check.py --parts steps-1b gemm    some of it
    PYTHONPATH=src python comparisons/gpu_check.py --device cpu --quick     its plumbing, on a CPU

    ceilings   matmul and copy, at the start and the end: void if they drift by more than 3%
    tests      the tests that have a GPU parameter
    steps      Llama-3.2-1B and Qwen2.5-0.5B shapes, 8,192 tokens, bf16, compiled: ours beside plain compiled
               loops and transformers; tokens/s, MFU and its peak, memory, step times, the attention that ran
    memory     recomputation and offload of activations: time, peak, gradients
    roofs      matmuls at models' shapes, attention backends, memory and link rates, fp8, the loss at a large
               vocabulary, a known trap of masked attention

Every part has a time limit and writes what it has measured as it goes, so a run that is cut still leaves a
result: comparisons/results/DATE-gpu-check.json and .md. Needs torch >= 2.11, numpy, pydantic, pyyaml, psutil,
safetensors and tokenizers; transformers, pytest and liger-kernel are used where they are.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness.facts import facts, gpu_state, load_average
from harness.gpu.activations import activations
from harness.gpu.attention import attention, mask_trap
from harness.gpu.budget import Check, run_part, watchdog
from harness.gpu.ceilings import drift, measure
from harness.gpu.eight_bit import fp8
from harness.gpu.gemm import gemm
from harness.gpu.losses import losses
from harness.gpu.memory import memory
from harness.gpu.report import report
from harness.gpu.steps import steps_of
from harness.gpu.suite import suite
from harness.result import Result, facts_text

RESERVED = 12.0  # seconds for the ceilings at the end: without them nothing counts
# In order of worth; the limits add up to less than nine minutes with the start and the ceilings.
PARTS: dict[str, tuple[float, Callable[[Check], None]]] = {
    "tests": (90, suite),
    "steps-1b": (170, steps_of("llama-3.2-1b", whole=True)),
    "steps-0.5b": (110, steps_of("qwen2.5-0.5b", whole=False)),
    "activations": (20, activations),
    "attention": (25, attention),
    "gemm": (25, gemm),
    "memory": (10, memory),
    "losses": (25, losses),
    "fp8": (10, fp8),
    "mask-trap": (5, mask_trap),
}


def main() -> int:
    """Runs the parts; 1 when one failed or the run is void."""
    options = arguments()
    started = time.monotonic()
    device = pick(options.device)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory(prefix="scalewright-check-") as scratch:
        folder = Path(options.out) if options.out else (Path(scratch) if options.quick else None)
        found = Result("gpu-check", "GPU check", facts(), folder)
        found.say("Hardware and versions:", "", facts_text(found.data["facts"]))
        check = Check(device, options.quick, found, end=started + 60 * options.minutes)
        timer = watchdog(check)
        run_part(check, "ceilings", 30, lambda check: measure(check, "start"))
        ceilings = check.part
        check.end -= RESERVED
        for name in options.parts:
            limit, part = PARTS[name]
            run_part(check, name, limit * options.minutes / 9, part)
        check.end += RESERVED
        run_part(check, "ceilings at the end", 20, lambda check: measure(check, "end"))
        if "start" in ceilings and "end" in check.part:
            found.put("drift", drift(ceilings["start"], check.part["end"]))
        if device.type == "cuda":
            found.put("gpu_at_the_end", gpu_state())
        found.put("load_average_at_the_end", load_average())
        found.put("seconds", round(time.monotonic() - started, 1))
        report(found)
        found.close()
        timer.cancel()
        print(f"wrote {found.json} and {found.markdown}")
        return int(bad(found.data, options.parts) and not options.quick)


def arguments() -> argparse.Namespace:
    """The command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: tries the plumbing, measures nothing"
    )
    parser.add_argument("--minutes", type=float, default=8.7, help="of everything")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--out", default=None, help="folder of the result; default: comparisons/results")
    options = parser.parse_args()
    if options.device == "cpu" and not options.quick:
        parser.error("on a CPU only --quick makes sense: the real sizes would take days")
    return options


def pick(name: str) -> torch.device:
    """The device; leaves with one line when it isn't there."""
    if name == "cuda" and not torch.cuda.is_available():
        sys.exit(
            "error: no CUDA device that torch can use: try --device cpu --quick, or see `scalewright doctor`"
        )
    if name == "cuda":
        torch.cuda.set_device(0)
        torch.set_float32_matmul_precision("highest")
    return torch.device(name, 0) if name == "cuda" else torch.device(name)


def bad(data: dict[str, Any], parts: list[str]) -> bool:
    """Whether a part failed, a test did, or the ceilings drifted."""
    failed = [name for name in parts if str(data.get(name, {}).get("status", "")).startswith("failed")]
    tests = data.get("tests", {}).get("exit_code", 0) not in (0, 5)
    return bool(failed or tests or data.get("drift", {}).get("void"))


if __name__ == "__main__":
    sys.exit(main())
