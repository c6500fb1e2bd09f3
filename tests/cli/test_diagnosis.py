"""`diagnose`: its forms for people, the gate's exit codes, and names from a trace that mean nothing."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.diagnose.job import Job, write

JOB = Job(ranks=1, kernel=100.0, steps=6, layers=4)


def folder(path: Path, job: Job) -> Path:
    path.mkdir()
    write(job, path)
    return path


def test_the_gate_fails_for_a_slower_run_alone(call_cli, tmp_path: Path) -> None:
    then, slow = folder(tmp_path / "then", JOB), folder(tmp_path / "slow", JOB.without(kernel=120.0))
    gate = ("--fail-if-slower", "3")
    failed = call_cli("diagnose", slow, "--against", then, *gate)
    assert failed.code == 1
    assert "kernels: matrix product" in " ".join(failed.out.split()).partition(" against ")[2]
    assert call_cli("diagnose", then, "--against", slow, *gate).code == 0
    assert call_cli("diagnose", slow, "--against", then, "--fail-if-slower", "40").code == 0
    assert call_cli("diagnose", slow, *gate).code == 2


def test_what_if_prints_a_line_each(call_cli) -> None:
    answer = call_cli("diagnose", "example", "--what-if", "compute=0.5", "--what-if", "rank2.compute=0.74")
    lines = [line for line in answer.out.splitlines() if line.startswith("what if")]
    assert len(lines) == 3
    assert "less" in lines[0]


def test_markdown_escapes_what_a_trace_calls_its_kernels(call_cli, tmp_path: Path) -> None:
    path = folder(tmp_path / "t", JOB) / "rank0.pt.trace.json.gz"
    evil = "gemm|`x```\x1b[2J"
    document = json.loads(gzip.decompress(path.read_bytes()))
    for event in document["traceEvents"]:
        if event["cat"] == "kernel" and "gemm" in event["name"]:
            event["name"] = evil
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    (tmp_path / "then").mkdir()
    write(JOB, tmp_path / "then")
    answer = call_cli("diagnose", path, "--markdown", "--against", tmp_path / "then")
    assert answer.out.rstrip().endswith("</details>")
    assert "| gemm\\|\\`x\\`\\`\\`" in answer.out
    assert "\x1b" not in answer.out
    assert call_cli("diagnose", path, "--markdown", "--json").code == 2


def test_files_come_beside_the_answer(call_cli, tmp_path: Path) -> None:
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    answer = call_cli("diagnose", "example", "--json", "--html", page, "--perfetto", trace)
    assert json.loads(answer.out)["kind"] == "trace"
    assert "look at rank 2" in page.read_text(encoding="utf-8")
    assert json.loads(trace.read_text())["traceEvents"]
    assert call_cli("diagnose", "example-log", "--html", page).code == 0
    refused = call_cli("diagnose", "example-log", "--perfetto", trace)
    assert (refused.code, "only traces have a timeline" in refused.err) == (2, True)
    assert call_cli("diagnose", "example", "--perfetto", tmp_path / "no" / "such.json").code == 1


def test_a_log_beside_the_script_of_its_run(call_cli) -> None:
    script = (
        "torchrun --nnodes 16 --nproc-per-node 8 pretrain_gpt.py --num-layers 80 --hidden-size 8192 "
        "--num-attention-heads 64 --ffn-hidden-size 28672 --group-query-attention --num-query-groups 8 "
        "--seq-length 8192 --max-position-embeddings 8192 --tensor-model-parallel-size 8 --swiglu --bf16 "
        "--pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 128 --vocab-size 128256"
    )
    answer = call_cli("diagnose", "example-log", "--from", script, "--cluster", "dgx-h100", "--json")
    assert json.loads(answer.out)["expected"]["layout"]["pp"] == 4
    assert json.loads(answer.out)["expected"]["assumed"]  # dropout, which models here don't have
    assert call_cli("diagnose", "example", "--from", script).code == 2


@pytest.mark.parametrize("flags", [(), ("--all",), ("--markdown",), ("--json",)])
def test_plain_paths_are_answered_as_with_other_flags(call_cli, tmp_path: Path, flags: tuple[str, ...]) -> None:
    path = folder(tmp_path / "t", JOB)
    plain = call_cli("diagnose", path, *flags)
    assert (plain.code, plain.out) == (0, call_cli("diagnose", path, *flags, "--force").out)
    nothing = call_cli("diagnose", tmp_path / "nothing", *flags)
    assert (nothing.code, "error: no such file" in nothing.err) == (2, True)
    (tmp_path / "a.log").write_text("nothing that is known\n")
    assert call_cli("diagnose", tmp_path / "a.log", *flags).code == 1


def test_a_tiny_trace_needs_no_pydantic(tmp_path: Path) -> None:
    path = folder(tmp_path / "t", JOB)
    code = (
        "import sys\nfrom scalewright.cli import main\n"
        f"code = main(['diagnose', {str(path)!r}])\n"
        "sys.exit(code or any(name in sys.modules for name in ('pydantic', 'scalewright.plan', 'torch')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
