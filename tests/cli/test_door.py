"""The error door: one line on stderr, the right exit code, never a traceback that wasn't asked for."""

from __future__ import annotations

import errno
import subprocess
import sys
from typing import Any

import pytest
import typer

from scalewright.cli.door import run_behind_door
from scalewright.spec.errors import RunError, Stopped, UserError


def raising(error: BaseException) -> Any:
    """An application whose only verb, `go`, raises this."""
    app = typer.Typer(rich_markup_mode=None)

    @app.callback()
    def root() -> None:
        """Root."""

    @app.command()
    def go(number: int = 1) -> None:
        raise error

    return typer.main.get_command(app)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("no such key 'x'", "run.yaml", "use 'y'"), 2, "error: no such key 'x' (run.yaml): use 'y'"),
        (RunError("worker 1 died\nwith signal 9"), 1, "error: worker 1 died with signal 9"),
        (Stopped("stopped at step 5, state saved"), 75, "stopped at step 5, state saved"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (typer.Abort(), 130, "interrupted"),
        (OSError(errno.ENOSPC, "No space left on device", "shard.bin"), 1, "error: the disk is full (shard.bin)"),
        (PermissionError(errno.EACCES, "denied", "/etc/x"), 2, "error: no permission (/etc/x)"),
        (RuntimeError("port: 1, code: -98, name: EADDRINUSE"), 2, "error: port 1 is taken (where the ranks meet): end"),
        (FileNotFoundError(2, "No usable temporary directory found in ['/tmp']"), 2, "error: no folder for temporary"),
        (ModuleNotFoundError("no", name="torch.nn"), 2, "error: this command needs torch, which is not installed"),
    ],
)
def test_one_line_and_a_code(capsys, error, code, line):
    assert run_behind_door(raising(error), ["go"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(line)
    assert captured.err.count("\n") == 1


def test_a_bug_is_one_line_and_its_traceback_is_kept(capsys):
    assert run_behind_door(raising(KeyError("oops")), ["go"]) == 1
    line = capsys.readouterr().err
    assert line.startswith("error: unexpected KeyError: 'oops'")
    assert line.count("\n") == 1
    path = line.split("the traceback is in ")[1].split(";")[0]
    with open(path, encoding="utf-8") as file:
        assert "Traceback" in file.read()


@pytest.mark.parametrize("arguments", [["--debug", "go"], ["go", "--debug"]])
def test_debug_shows_the_traceback(capsys, arguments):
    assert run_behind_door(raising(UserError("wrong")), arguments) == 2
    captured = capsys.readouterr().err
    assert "Traceback" in captured
    assert captured.endswith("error: wrong\n")


def test_a_verbs_exit_code_is_kept(capsys):
    assert run_behind_door(raising(typer.Exit(1)), ["go"]) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["trian"], "error: unknown command 'trian' (scalewright): did you mean 'train'?"),
        (["export", "runs/a"], "error: no command 'export' (scalewright): `convert SOURCE OUT`"),
        (["Preflight"], "error: no command 'Preflight' (scalewright): `doctor --launch run.yaml` looks before a start"),
        (["presets", "modles"], "error: unknown command 'modles' (scalewright presets): did you mean 'models'?"),
        (
            ["train", "r.yaml", "--stpes", "3"],
            "error: unknown option --stpes (scalewright train): did you mean --steps",
        ),
        (["--hepl"], "error: unknown option --hepl (scalewright): did you mean --help?"),
        (["train"], "error: RUN.yaml is missing (scalewright train): write `scalewright train RUN.yaml`"),
        (
            ["train", "layout.tp=2"],
            "error: RUN.yaml is missing (scalewright train): write `scalewright train RUN.yaml l",
        ),
        (["prepare", "x.txt"], "error: --out is missing (scalewright prepare): write `scalewright prepare INPUT --out"),
        (["train", "r.yaml", "--steps", "many"], "error: "),
        (["train", "r.yaml", "--steps"], "error: option '--steps' requires an argument"),
        (["demo", "me"], "error: got unexpected extra argument"),
        (
            ["convert", "a", "b", "--dtype", "flaot32"],
            "error: unknown dtype 'flaot32' (--dtype): did you mean 'float32'",
        ),
    ],
)
def test_misspelt_is_one_line_with_the_nearest_names(call_cli, arguments, line):
    answer = call_cli(*arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.error.startswith(line)


def test_a_wrong_value_names_its_option(call_cli):
    assert "--steps" in call_cli("train", "r.yaml", "--steps", "many").error
    assert "--steps" in call_cli("train", "r.yaml", "--steps", "-1").error
    assert "'1e400' is beyond all numbers (--ep)" in call_cli("predict", "gpt2", "--ep=1e400").error


def test_a_missing_run_file_gets_the_nearest_files(run_cli, tmp_path):
    (tmp_path / "small.yaml").write_text("version: 1\n")
    answer = run_cli("train", "smal.yaml")
    assert answer.code == 2
    assert answer.error == "error: no such file (smal.yaml): did you mean 'small.yaml'?"
    assert "folder" in run_cli("train", tmp_path).error


def test_a_reader_that_goes_away_is_no_error():
    """`scalewright --help | true`: nothing on stderr, whatever the pipe did."""
    writer = subprocess.Popen(
        [sys.executable, "-m", "scalewright", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert writer.stdout is not None
    assert writer.stderr is not None
    writer.stdout.close()
    assert writer.stderr.read() == b""
    writer.wait(30)


def test_broken_pipe_from_a_verb_is_quiet(capsys):
    assert run_behind_door(raising(BrokenPipeError(errno.EPIPE, "gone")), ["go"]) == 141
    assert capsys.readouterr().err == ""
