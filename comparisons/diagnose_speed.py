"""CPU time of `diagnose` beside that of HTA (HolisticTraceAnalysis), one after the other in the same run.

    pip install HolisticTraceAnalysis                           into an environment of its own
    python comparisons/diagnose_speed.py --hta ENVIRONMENT/bin/python [TRACE...]        two minutes

Both read a trace of 60 MB, generated in the form that Kineto writes since PyTorch 2.3, and those that are named, their
events repeated up to 60 MB, and break the window down. Each runs in a process of its own, three times; the median
counts. `read`: from the call to the parts, without imports; `process`: the CPU time of the whole process. A tiny
trace's is that of the whole command.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.facts import facts
from harness.result import Result, facts_text, table

SIZE = 60 << 20  # bytes
TIMES = 3
HTA = """
import sys, time, logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
begun = time.process_time()
TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="").get_temporal_breakdown(visualize=False)
print(time.process_time() - begun, time.process_time())
"""
OURS = """
import sys, time
from pathlib import Path
from scalewright.diagnose.breakdown import activity, breakdown
from scalewright.diagnose.traces.kineto import read_kineto
begun = time.process_time()
breakdown(activity(read_kineto(Path(sys.argv[1]))))
print(time.process_time() - begun, time.process_time())
"""
WHOLE = """
import io, sys, time
from contextlib import redirect_stdout
from scalewright.__main__ import main
sys.argv = ["scalewright", "diagnose", sys.argv[1]]
try:
    with redirect_stdout(io.StringIO()):
        main()
except SystemExit:
    pass
print(0.0, time.process_time())
"""
OPERATORS = (
    ("aten::linear", "aten::addmm", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x3_tn"),
    ("aten::layer_norm", "aten::native_layer_norm",
     "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, "
     "c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)"),
    ("aten::gelu", "aten::gelu",
     "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
     "at::native::GeluType)::{lambda()#2}::operator()() const, std::array<char*, 2ul> >(int)"),
    ("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention",
     "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
     "cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)"),
)  # fmt: skip


def events(source: random.Random) -> Iterator[dict[str, Any]]:
    """Events without an end: two operators, a launch, its arrows and its kernel, as Kineto writes them."""
    host, device, number = 6_153_227_880_123.0, 0.0, 0
    while True:
        outer, inner, kernel = source.choice(OPERATORS)
        number += 1
        about = {
            "External id": number, "Record function id": number, "Sequence number": number, "Fwd thread id": 0,
            "Ev Idx": number, "Concrete Inputs": ["", "", ""], "Input type": ["c10::BFloat16"] * 3,
            "Input Strides": [[4096, 1], [1, 4096], [1]], "Input Dims": [[8192, 4096], [4096, 4096], [4096]],
        }  # fmt: skip
        launch = {"External id": number, "cbid": 211, "correlation": number}
        length = round(source.lognormvariate(3, 1), 3)
        device = max(device, host + 14)
        place = {"ph": "X", "pid": 4711, "tid": 4711}
        yield place | {"cat": "cpu_op", "name": outer, "ts": round(host, 3), "dur": 22.4, "args": about}
        yield place | {"cat": "cpu_op", "name": inner, "ts": round(host + 1, 3), "dur": 19.1, "args": about}
        at = round(host + 8, 3)
        yield place | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "dur": 5.202, "args": launch}
        yield {"ph": "s", "id": number, "pid": 4711, "tid": 4711, "ts": at, "cat": "ac2g", "name": "ac2g"}
        yield {
            "ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": round(device, 3), "dur": length,
            "args": {
                "External id": number, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": number,
                "registers per thread": 32, "shared memory": 49152, "blocks per SM": 9.48, "warps per SM": 37.9,
                "grid": [source.choice((256, 512, 2048)), 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 38,
            },
        }  # fmt: skip
        arrow = {"ph": "f", "id": number, "pid": 0, "tid": 7, "ts": round(device, 3), "cat": "ac2g", "name": "ac2g"}
        yield arrow | {"bp": "e"}
        device += length
        host += 24.5


def write(path: Path, size: int, rank: int = 0) -> Path:
    """A trace of at least so many bytes."""
    about = {"backend": "nccl", "rank": rank, "world_size": 1}
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}],
        "distributedInfo": about,
    }
    with path.open("w") as file:
        file.write(json.dumps(head, indent=2)[:-2] + ',\n  "traceEvents": [\n  ')
        for place, event in enumerate(events(random.Random(0))):
            file.write((",\n  " if place else "") + json.dumps(event))
            if file.tell() > size:
                break
        file.write("\n  ]\n}\n")
    return path


def repeated(source: Path, path: Path, size: int) -> Path:
    """A trace's events again and again, each time later and with other correlations, up to so many bytes."""
    data = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    trace = json.loads(data)
    trace = trace if isinstance(trace, dict) else {"traceEvents": trace}
    timed = [event["ts"] for event in trace["traceEvents"] if event.get("ph") == "X"]
    length, once = max(timed) - min(timed) + 5000, [*trace["traceEvents"]]
    for again in range(1, max(round(size / len(json.dumps(trace))), 1)):
        for event in once:
            if event.get("ph") != "M":
                args = dict(event.get("args") or {})
                numbers = {key: args[key] for key in ("correlation", "External id") if isinstance(args.get(key), int)}
                args |= {key: number + again * 10**8 for key, number in numbers.items()}
                trace["traceEvents"].append({**event, "ts": event.get("ts", 0) + again * length, "args": args})
    path.write_text(json.dumps(trace))
    return path


def seconds(python: str, program: str, path: Path) -> tuple[float, float]:
    """CPU seconds of the work, and of the process: medians."""
    runs = []
    for _ in range(TIMES):
        done = subprocess.run([python, "-c", program, str(path)], capture_output=True, text=True, check=True)
        runs.append([float(word) for word in done.stdout.split()[-2:]])
    read, process = (statistics.median(column) for column in zip(*runs, strict=True))
    return read, process


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("traces", type=Path, nargs="*", help="traces of your own beside the generated one")
    parser.add_argument("--hta", help="a Python that has HTA", required=True)
    parser.add_argument("--out", type=Path, help="where the result goes")
    options = parser.parse_args()
    result = Result("diagnose-speed", "CPU time of `diagnose` beside HTA's", facts(), options.out)
    result.say(facts_text(result.data["facts"]))
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        traces = [
            repeated(trace, Path(folder) / f"{trace.parent.name}-{trace.name.split('.')[0]}.json", SIZE)
            for trace in options.traces
        ]
        for path in [write(Path(folder) / "generated.json", SIZE), *traces]:
            theirs, theirs_process = seconds(options.hta, HTA, path)
            ours, ours_process = seconds(sys.executable, OURS, path)
            _, command = seconds(sys.executable, WHOLE, path)
            rows.append([
                path.name, path.stat().st_size / 1e6, ours, theirs, theirs / ours, ours_process, theirs_process, command
            ])  # fmt: skip
        _, tiny = seconds(sys.executable, WHOLE, write(Path(folder) / "tiny.json", 20_000))
    result.put("rows", rows)
    result.put("tiny_s", tiny)
    heads = ["trace", "MB", "read, s", "HTA", "times", "process, s", "HTA", "the command, s"]
    result.say(
        "CPU seconds from a file to its breakdown (`read`), of the process that does it, and of `diagnose` with all "
        f"its analyses. A trace of 20 kB takes the whole command {tiny:.2f} s.",
        table(heads, [[name, *(f"{number:.2f}" for number in numbers)] for name, *numbers in rows]),
    )
    result.close()


if __name__ == "__main__":
    main()
