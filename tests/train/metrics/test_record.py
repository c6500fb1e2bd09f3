"""Rows of metrics: memory is the largest of all ranks, and MFU never exceeds what the device can do."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from runs import events, merge, rows, run, run_data
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import RunSpec
from scalewright.track.console import Console
from scalewright.track.events import EventsFile
from scalewright.track.fanout import Fanout
from scalewright.track.metrics import MetricsFile
from scalewright.train.batches import DataPosition
from scalewright.train.columns import LOSS, MEMORY, NORM, TOKENS
from scalewright.train.metrics.record import Record
from scalewright.train.metrics.run_files import _description
from scalewright.train.precision import Peak, earlier_peak

GROW = 256  # MiB


def test_memory_is_that_of_the_rank_that_has_most(tmp_path):
    """Rank 1 holds 256 MiB more than rank 0, whose process writes the row."""
    layout = {"devices": 2, "zero_stage": 1}
    data = run_data(tmp_path, layout=layout, train={"steps": 2})
    run(merge(data, {"out_dir": str(tmp_path / "plain")}))
    run(merge(data, {"loss": {"python": "parts:hungry_on_one", "rank": 1, "mib": GROW}}))
    before, after = (rows(tmp_path / name)[-1]["memory_gib"] for name in ("plain", "out"))
    assert after - before > 0.75 * GROW / 1024
    assert after - before < 2 * GROW / 1024


def record(folder: Any, peak: Peak) -> Record:
    events_file = EventsFile(folder / "events.jsonl")
    return Record(
        MetricsFile(folder / "metrics.jsonl", resume_step=0, events=events_file),
        events_file,
        Console(4, "tiny", enabled=False),
        Fanout([], events_file),
        layout=Layout(),
        seq_len=100,
        flops_per_token=1e6,
        peak=peak,
        place=DataPosition(),
    )


def test_a_run_that_failed_has_no_summary(tmp_path, capsys):
    for status in ("failed", "finished"):
        written = record(tmp_path / status, Peak(None, "", ""))
        written.console = Console(4, "tiny")
        written.step(1, [0.0] * MEMORY + [0.25], 0.1, 1.0, "", {})
        written.close(status, 1, 1.0)
        assert ("out dir" in capsys.readouterr().err) == (status == "finished")


def test_a_name_that_run_and_model_share_is_shown_once(tmp_path):
    parsed = RunSpec.parse(run_data(tmp_path))
    assert isinstance(parsed.model, ModelSpec)
    for name, first in ((parsed.model.name, "3M"), ("other", f"{parsed.model.name} 3M")):
        described = _description(parsed.replace(name=name), 3_000_000, Peak(None, "", ""))
        assert described[0] == first


def test_a_measured_peak_that_a_step_surpasses_gives_no_mfu(tmp_path):
    """100 tokens of 1e6 FLOPs in 0.1 s are 1e9 FLOP/s, five times what a busy machine measured."""
    written = record(tmp_path, Peak(2e8, "measured", "CPU"))
    report = [0.0] * MEMORY + [0.25]
    report[LOSS] = report[NORM] = 1.0
    report[TOKENS] = 100.0
    for step, seconds in enumerate((1.0, 0.1, 1.0), 1):
        written.step(step, report, 0.1, seconds, "", {})
    written.close("finished", 3, 1.0)
    found = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["mfu"] for row in found] == [0.5, None, None]
    assert found[0]["memory_gib"] == 0.25
    (note,) = events(tmp_path, "note")
    assert "the machine must have been busy" in note["message"]
    assert earlier_peak(tmp_path, "fp32", 1) is None, "a resume measures again"


@pytest.mark.parametrize(("flops", "taken"), [(2e8, 2e8), ("2e8", None), (1e400, None), (-1, None), ([], None)])
def test_a_peak_that_is_no_number_is_none(tmp_path, flops, taken):
    event = {"kind": "start", "peak_flops": flops, "precision": "fp32", "world": 1}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    peak = earlier_peak(tmp_path, "fp32", 1)
    assert (peak and peak.flops) == taken


def test_an_event_of_another_thread_reaches_callbacks_from_the_trainings_own(tmp_path):
    """It is in the file at once; the user's callback gets it with the next step, or at the end."""
    written, calls = record(tmp_path, Peak(0.0, "unknown", "CPU")), []

    def tell(kind: str, row: dict[str, Any]) -> bool:
        calls.append((row["kind"], threading.get_ident()))
        return row["kind"] == "hang"

    written.tell = tell

    def from_thread(kind: str) -> None:
        thread = threading.Thread(target=written.event_from_thread, args=(kind, "stuck"), kwargs={"rank": 1})
        thread.start()
        thread.join()

    from_thread("hang")
    assert [event["rank"] for event in events(tmp_path, "hang")] == [1]
    assert not calls
    assert not written.stop_asked
    written.step(1, [1.0] * (MEMORY + 1), 0.1, 1.0, "", {})
    assert written.stop_asked
    from_thread("continued")
    written.close("finished", 1, 1.0)
    main = threading.get_ident()
    assert calls == [("hang", main), ("train", main), ("continued", main), ("finish", main)]
