"""The progress display: right on a terminal, quiet on a pipe, silent when asked, never in the way."""

from __future__ import annotations

import io
import re
import time

import pytest

from scalewright.track.console import Console, panel
from scalewright.track.progress import DisplayState, plain_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def row(step: int, loss: float | None = 2.5) -> dict[str, object]:
    return {
        "kind": "train", "step": step, "tokens": 8192 * step, "loss": loss, "grad_norm": 0.8421,
        "lr": 2.991e-4,
        "step_time_s": 0.0123, "tokens_per_s": 12345.0, "mfu": 0.341, "memory_gib": 0.8123,
    }  # fmt: skip


def drawn(progress: DisplayState, width: int) -> list[str]:
    from rich.console import Console as Rich

    screen = Rich(file=io.StringIO(), width=width, color_system=None)
    with screen.capture() as captured:
        screen.print(panel(progress))
    return captured.get().splitlines()


def halfway() -> DisplayState:
    progress = DisplayState("shakespeare", 1000, 0, ("llama 3.5M", "2 × cpu"))
    progress.begin()
    for step in range(1, 413):
        progress.step(row(step, loss=10.0 / step**0.3))
    progress.valid = {"kind": "valid", "step": 400, "loss": 1.8, "bits_per_byte": 2.61}
    progress.saved = (400, time.monotonic() - 12)
    return progress


@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_panel_fits_any_width(width: int) -> None:
    lines = drawn(halfway(), width)
    assert {len(line) for line in lines} == {width}
    assert "shakespeare" in lines[0]


def test_the_panel_shows_what_one_looks_for() -> None:
    text = "\n".join(drawn(halfway(), 100))
    for needle in (
        "412/1,000", "41%", "eta", "12.3k", "34.1%", "0.84", "2.99e-4", "0.81 GiB", "12.3 ms",
        "2.610 bits per byte", "at step 400", "step 400, 0:12 ago", "llama 3.5M", "▾",
    ):  # fmt: skip
        assert needle in text, needle
    assert re.search("█.*▁", text)


def test_the_panel_before_the_first_step_and_with_a_loss_that_broke() -> None:
    progress = DisplayState("run", 10, 0, ())
    progress.begin()
    assert "0/10" in "\n".join(drawn(progress, 80))
    progress.step({**row(1, None), "grad_norm": None, "mfu": None})
    assert "not finite" in "\n".join(drawn(progress, 80))


def test_a_terminal_gets_the_live_panel_on_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    console = Console(100, "run", stream=stream, redraw_s=0.05)
    console.start()
    console.step(row(1))
    console.message("saved [step 1]")
    time.sleep(0.2)
    console.close({"validation_bits_per_byte": 2.5})
    text = stream.getvalue()
    assert "1/100" in text
    assert "saved [step 1]" in text
    assert "validation bits per byte  2.5" in text
    assert text.index("\x1b[?25l") < text.index("\x1b[?25h")  # the cursor was hidden, and given back


def test_a_pipe_gets_few_plain_lines_on_stderr_only(capfd: pytest.CaptureFixture[str]) -> None:
    console = Console(500, "run", ["llama 3.5M"], line_every_s=60)
    console.start()
    for step in range(1, 501):
        console.step(row(step))
    console.valid({"kind": "valid", "step": 500, "loss": 1.8, "bits_per_byte": 2.61})
    console.close({"steps": 500})
    captured = capfd.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[0] == "run · llama 3.5M"
    assert lines[1].startswith("step 1/500  loss 2.5000")
    assert lines[2] == "step 500: validation loss 1.8000, 2.6100 bits per byte"
    assert lines[3].startswith("step 500/500")
    assert lines[4:] == ["steps  500"]
    assert "\x1b" not in captured.err


@pytest.mark.parametrize(
    ("steps", "doing", "words"),
    [
        (0, "", r"^step 1/9, the first, which sets up kernels: \d+ s so far$"),
        (3, "", r"^step 4/9: \d+ s so far$"),
        (3, "validating", r"^validating after step 3/9: \d+ s so far$"),
        (3, "saving a checkpoint", r"^saving a checkpoint after step 3/9: \d+ s so far$"),
        (9, "", r"^closing the run after step 9/9: \d+ s so far$"),
    ],
)
def test_a_pipe_is_told_what_a_long_silence_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], steps: int, doing: str, words: str
) -> None:
    monkeypatch.setattr("scalewright.track.console.SILENT_S", -0.9)  # a heartbeat every 0.1 s
    console = Console(9, "run", line_every_s=60)
    console.start()
    for step in range(1, steps + 1):
        console.step(row(step))
    console.at(doing)
    time.sleep(0.5)
    console.close()
    lines = capfd.readouterr().err.splitlines()
    assert any(re.match(words, line) for line in lines), lines
    shown = [line for line in lines if line.startswith(f"step {steps}/9  loss")]
    assert len(shown) == (2 if steps else 0), "the newest row once, and at the end"


def test_a_terminal_that_can_t_go_back_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    console = Console(9, "run", stream=stream)
    console.start()
    console.step(row(1))
    console.close()
    assert stream.getvalue().splitlines()[1].startswith("step 1/9  loss")
    assert "\x1b" not in stream.getvalue()


def test_disabled_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    console = Console(5, "run", enabled=False)
    console.start()
    console.step(row(1))
    console.valid({"kind": "valid", "step": 1, "loss": 1.0})
    console.saved(1)
    console.message("hello")
    console.close({"steps": 5})
    assert capfd.readouterr() == ("", "")


def test_a_reader_that_left_does_not_end_the_run() -> None:
    class Gone(io.StringIO):
        calls = 0

        def write(self, text: str) -> int:
            self.calls += 1
            raise BrokenPipeError

    stream = Gone()
    console = Console(5, "run", stream=stream)
    console.start()
    console.step(row(1))
    console.close({"steps": 1})
    assert stream.calls == 1


def test_the_loop_pays_microseconds() -> None:
    console = Console(10_000, "run", stream=Terminal(), redraw_s=10)
    console.start()
    rows = [row(step) for step in range(1, 2001)]
    times = []
    for entry in rows:
        begin = time.perf_counter()
        console.step(entry)
        times.append(time.perf_counter() - begin)
    console.close()
    assert sorted(times)[1000] < 20e-6  # a few attribute sets: about 2 µs; ten times that on a busy machine


def test_eta_leaves_the_first_step_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 30.0, 31.0, 32.0])  # begin; a first step of 30 s (it compiles), then 1 s each
    monkeypatch.setattr("scalewright.track.progress.time.monotonic", lambda: next(clock))
    progress = DisplayState("run", 103, 0, ())
    progress.begin()
    for step in (1, 2, 3):
        progress.step(row(step))
    assert progress.eta == pytest.approx(100.0)


def test_a_call_that_ends_before_its_run_counts_to_its_own_end(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1.0, 2.0])
    monkeypatch.setattr("time.monotonic", lambda: next(moments))
    progress = DisplayState("demo", 1000, 0, (), last_step=5)
    progress.begin()
    progress.step({"step": 1, "step_time_s": 1.0})
    progress.step({"step": 2, "step_time_s": 1.0})
    assert progress.eta == 3.0
    assert plain_line(progress).startswith("step 2/5 of 1,000  ")
    assert DisplayState("demo", 1000, 0, ()).goal == "1,000"
