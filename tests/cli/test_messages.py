"""Names from files reach a terminal as plain text, and messages speak of keys and words, not of Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.cli.terminal import print_table
from scalewright.report.page import Page, Section, render
from scalewright.spec.common.formatting import counted, printable
from scalewright.track.console import panel
from scalewright.track.progress import DisplayState
from scalewright.train.sweep import Row, Sweep

EVIL = "[/b]x[bold]\x1b[2J\u202e"
SHOWN = "[/b]x[bold]\\x1b[2J\\u202e"


def test_control_characters_are_written_out() -> None:
    assert printable(EVIL) == SHOWN
    assert printable("a\r\x07b\x9b \ud800") == "a\\r\\x07b\\x9b \\ud800"
    assert printable("größer\t日本\n👩‍👧") == "größer\t日本\n👩‍👧"
    assert [counted(1, "empty files"), counted(2, "empty files")] == ["1 empty file", "2 empty files"]


@pytest.mark.parametrize("verb", ["predict", "plan"])
def test_a_models_name_is_no_markup(call_cli, tmp_path: Path, verb: str) -> None:
    sizes = "vocab_size: 100\nhidden_size: 64\nintermediate_size: 64\nnum_hidden_layers: 2\n"
    (tmp_path / "m.yaml").write_text('name: "[/b]x[bold]\\e[2J\\u202E"\nnum_attention_heads: 2\n' + sizes)
    more = ("--global-batch", "8", "--fix", "tp=1,pp=1") if verb == "plan" else ()
    answer = call_cli(verb, tmp_path / "m.yaml", "--cluster", "dgx-h100", "--devices", "8", "--seq-len", "128", *more)
    assert (answer.code, answer.out.startswith(SHOWN)) == (0, True)
    assert "\x1b" not in answer.out


def test_tables_panels_errors_and_pages_show_it_as_it_is(call_cli, capfd: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    print_table(["name"], [[EVIL]], title=EVIL)
    out = capfd.readouterr().out
    assert out.count(SHOWN) == 2
    console = Console(width=100)
    with console.capture() as captured:
        console.print(panel(DisplayState(EVIL, 10, 0, (EVIL,))))
    assert captured.get().count(SHOWN) == 2
    error = call_cli("generate", f"{EVIL}/no").error
    assert SHOWN in error
    assert "\x1b" not in error
    html = render(Page(EVIL, EVIL, "good", [EVIL], [Section("a", EVIL, "sample.html", {"text": EVIL, "cut": False})]))
    assert SHOWN in html
    assert not any(character in html for character in "\x1b\u202e")


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("name=a b", "use letters, digits, '.', '-' and '_' alone"),
        ("optimizer.learning_rate=1", "did you mean 'lr'?"),
        ("train.max_steps=1", "did you mean 'train.steps'?"),
        ("learning_rate=3", "did you mean 'optimizer.lr'?"),
        ("train.learning_rate=3", "did you mean 'optimizer.lr'?"),
        ("zero_stage=1", "did you mean 'layout.zero_stage'?"),
        ("batch_size=8", "did you mean 'layout.global_batch'?"),
        ("layout.tp=x", "layout.tp is 'x'"),
        ("layout.tp=x", "it should be a whole number"),
        ("layout.tp=1.5", "it should be a whole number"),
        ("optimizer.lr=fast", "it should be a number"),
        ("layout.sp=maybe", "it should be true or false"),
        ("model=zzzzz", "see `scalewright presets models`, or give a config.json"),
        ("data={train: [3]}", "it should hold keys and values"),
        ("loss={python: a b}", "write package.module:name"),
    ],
)
def test_a_mistake_is_named_in_words(call_cli, tmp_path: Path, override: str, part: str) -> None:
    (tmp_path / "run.yaml").write_text("model: gpt2\ndata: nowhere\n")
    answer = call_cli("train", tmp_path / "run.yaml", override)
    assert (answer.code, part in answer.error) == (2, True), answer.error
    assert not any(
        word in answer.error for word in ("pattern", "dictionary", "instance of", "parse", "valid ", ": or ")
    )


def test_a_file_is_no_run_and_one_run_is_singular(call_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: gpt2\ndata: nowhere\n")
    for arguments in (("evaluate", file), ("evaluate", file, "--tasks", "x"), ("compare", file, file)):
        answer = call_cli(*arguments)
        assert (answer.code, "it is a file, not a" in answer.error) == (2, True), answer.error

    rows = [Row("lr-1", {"lr": "1"}, "stopped", "lr-1"), Row("lr-2", {"lr": "2"}, "failed", "lr-2")]
    for kept, message in ((rows, "stopped with 1 run left"), (rows[1:], "1 of 1 run failed")):
        answer_of_sweep = Sweep("run-sweep", str(tmp_path), kept, "loss", 1.0)
        monkeypatch.setattr("scalewright.train.sweep.sweep", lambda *_, found=answer_of_sweep, **__: found)
        assert message in call_cli("sweep", file, "lr=1,2").error


def test_a_key_that_is_written_twice_is_named_with_both_lines(call_cli, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("model: gpt2\ndata: nowhere\nseed: 1\nmodel: gpt2\n")
    assert "'model' is written twice" in (error := call_cli("train", tmp_path / "run.yaml").error)
    assert "lines 1 and 4" in error


def test_the_prompt_is_shown_only_once_a_model_is_there(call_cli, tmp_path: Path) -> None:
    answer = call_cli("generate", tmp_path, "--prompt", "hi")
    assert (answer.code, answer.out) == (2, "")
