"""Escape sequences in names and in other people's files: text on every verb's stdout and stderr."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from pathlib import Path

import pytest
from tests.test_malicious import build

import scalewright.cli
from scalewright.spec.common.formatting import printable

HOSTILE = "a\x1b]0;x\x07\x1b[2J\x9b1m\u202eb"  # sets the title, clears the screen, colours, turns the line round
LOG = "\n".join(
    [f"{HOSTILE} NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>", f"host:1:2 [0] NCCL WARN {HOSTILE} failed"]
    + [f" [2026-11-26 10:00:0{i}] iteration {i}/ 9 | elapsed time per iteration (ms): 9{i}.0 | {HOSTILE} | "
       f"lm loss: 2.{i}E+00 |" for i in range(1, 9)]
    + [f"torch.OutOfMemoryError: CUDA out of memory. {HOSTILE}", f"[rank1]: RuntimeError: {HOSTILE}"]
)  # fmt: skip
NCCL = f"h{HOSTILE}:1:1 [0] NCCL INFO NET/Socket : Using [0]{HOSTILE}:10.0.0.1<0>\n" * 3
RUN = {
    "name": "tiny", "model": "llama-3.2-1b", "data": f"data/{HOSTILE}", "out_dir": f"runs/{HOSTILE}",
    "layout": {"devices": 2}, "launch": {"env": {"A": HOSTILE}},
}  # fmt: skip
THEIRS = {"model_name_or_path": f"./{HOSTILE}", "stage": "pt", "cutoff_len": 8, f"odd{HOSTILE}": HOSTILE}
VERBS = [
    ("compare", "{}/run", "{}/again"),
    ("compare", "{}/run", f"{{}}/{HOSTILE}"),
    ("compare", "{}/run", "{}/missing"),
    ("report", "{}/run"),
    ("report", "{}/missing"),
    ("report", "{}"),
    ("checkpoint", "ls", "{}/run"),
    ("checkpoint", "ls", "{}"),
    ("checkpoint", "verify", "{}/run"),
    ("convert", "{}/run", "{}/out"),
    ("evaluate", "{}/run", "--data", "{}/valid", "--seq-len", "8", "--batches", "1"),
    ("evaluate", "{}/run", "--data", "{}/missing"),
    ("generate", "{}/missing", "--prompt", "a"),
    ("generate", "{}/run", "--prompt", HOSTILE, "--max-tokens", "1"),
    ("diagnose", "{}/train.log"),
    ("diagnose", "{}/nccl.log"),
    ("diagnose", "{}/missing.log"),
    ("diagnose", "{}/train.log", "--markdown"),
    ("read", "{}/theirs.yaml"),
    ("read", "{}/missing.yaml"),
    ("emit", "megatron", "{}/run.yaml", "--out", "{}/megatron"),
    ("emit", "llama-factory", "{}/run.yaml", "--print"),
    ("launch", "slurm", "{}/run.yaml"),
    ("launch", "ssh", "{}/run.yaml", f"launch.hosts=['{HOSTILE}']"),
    ("launch", HOSTILE, "{}/run.yaml"),
    ("presets", "new", "--params", "1e6", "--like", "llama", "--vocab", "99", "--out", "{}/tiny.yaml"),
    ("presets", "show", HOSTILE),
    ("plan", HOSTILE, "--devices", "8"),
    ("predict", "{}/run.yaml"),
    ("predict", "--batch", "{}/missing.jsonl"),
    ("prepare", "{}/words.jsonl", "--out", "{}/tokens", "--vocab-size", "300", "--workers", "1"),
    ("prepare", "{}/missing", "--out", "{}/t"),
    ("train", "{}/run.yaml"),
    ("train", "{}/missing.yaml"),
    ("train", "{}/run.yaml", f"layout.{HOSTILE}=1", "--debug"),
    ("sweep", "{}/missing.yaml"),
    ("score", "{}/missing.jsonl"),
    ("dry-run", "{}/run.yaml"),
    (f"--{HOSTILE}",),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a model, data, configurations and logs in a folder with such a name."""
    path = tmp_path_factory.mktemp("escapes") / HOSTILE
    path.mkdir()
    build(path)
    (path / "again").symlink_to("run")
    shutil.copytree(path / "run", path / HOSTILE)
    (path / "train.log").write_text(LOG)
    (path / "nccl.log").write_text(NCCL)
    (path / "run.yaml").write_text(json.dumps(RUN))
    (path / "theirs.yaml").write_text(json.dumps(THEIRS))
    return path


@pytest.mark.parametrize("arguments", VERBS, ids=lambda words: " ".join(map(ascii, words))[:60])
def test_no_verb_lets_an_escape_through(call_cli, folder: Path, arguments: tuple[str, ...]) -> None:
    answer = call_cli(*(word.replace("{}", str(folder)) for word in arguments))
    assert answer.out + answer.err
    piped = arguments[0] == "generate" or "--print" in arguments  # texts that a pipe keeps as they are
    for text in (answer.err, "" if piped else answer.out):
        assert printable(text) == text


@pytest.mark.parametrize("arguments", [("generate", "{}/run", "--prompt", HOSTILE, "--max-tokens", "1"),
                                       ("launch", "slurm", "{}/run.yaml", "--print")])  # fmt: skip
def test_exact_in_a_pipe_and_harmless_on_a_terminal(
    call_cli, folder: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [word.replace("{}", str(folder)) for word in arguments]
    assert HOSTILE in call_cli(*words).out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = call_cli(*words).out
    assert printable(shown) == shown
    assert printable(HOSTILE) in shown


def test_every_file_of_the_command_line_prints_by_the_one_that_escapes() -> None:
    """Python's own `print` is left to the door, which escapes what it prints by itself."""
    for path in Path(scalewright.cli.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "print"]
        given = {
            alias.name for node in ast.walk(tree) for alias in getattr(node, "names", ())
            if isinstance(node, ast.ImportFrom) and node.module == "scalewright.cli.output"
        }  # fmt: skip
        if path.name not in ("door.py", "output.py", "__init__.py"):
            assert not calls or "print" in given, path
