"""The files of a diagnosis: its page, and its timeline as a trace for Perfetto."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewright.spec.errors import RunError, UserError

if TYPE_CHECKING:
    from scalewright.diagnose.diagnose import Drawing


def write_files(
    answer: Mapping[str, Any], drawing: Drawing, html: Path | None, perfetto: Path | None
) -> None:
    """Writes those that were asked for; UserError where there is nothing to draw, RunError where it fails."""
    if perfetto is not None and drawing.lanes is None:
        raise UserError("only traces have a timeline", "--perfetto", "leave it out, or give traces")
    if perfetto is not None and perfetto.is_fifo() and perfetto.parts[:2] != ("/", "dev"):  # not `>(...)`
        raise UserError("nobody may read this pipe", str(perfetto), "give a file's name")
    lanes = drawing.lanes() if drawing.lanes is not None and (html or perfetto) else None
    if html is not None:
        from scalewright.report.diagnosis import write_diagnosis

        write_diagnosis(answer, html, lanes, _terminal(answer))
    if perfetto is not None and lanes is not None:
        from scalewright.diagnose.timeline import write_perfetto

        try:
            write_perfetto(lanes, perfetto, drawing.plan)
        except OSError as error:
            raise RunError(f"cannot write {perfetto}: {error.strerror or error}") from error


def _terminal(answer: Mapping[str, Any]) -> str:
    """What the terminal shows."""
    from scalewright.cli.diagnosis import show

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        show(answer)
    return out.getvalue()
