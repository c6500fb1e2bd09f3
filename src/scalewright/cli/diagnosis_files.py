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


def check_files(html: Path | None, perfetto: Path | None, force: bool) -> None:
    """Raises UserError for a file of the user's that would be replaced; called before long work."""
    from scalewright.diagnose.timeline import is_ours
    from scalewright.report.page import check_page

    with contextlib.suppress(OSError):  # a path that can't be written, either
        if html is not None:
            check_page(html, force)
        if perfetto is None or perfetto.parts[:2] == ("/", "dev"):  # `>(...)`, /dev/null
            return
        if perfetto.is_fifo():
            raise UserError("nobody may read this pipe", str(perfetto), "give a file's name")
        if perfetto.is_file() and not force and not is_ours(perfetto):
            how = "give another name, or --force to replace it"
            what = "the file is there already, and isn't as `--perfetto` wrote it"
            raise UserError(what, str(perfetto), how)


def write_files(
    answer: Mapping[str, Any], drawing: Drawing, html: Path | None, perfetto: Path | None, force: bool
) -> None:
    """Writes those that were asked for; UserError where there is nothing to draw, RunError where it fails."""
    if perfetto is not None and drawing.lanes is None:
        raise UserError("only traces have a timeline", "--perfetto", "leave it out, or give traces")
    lanes = drawing.lanes() if drawing.lanes is not None and (html or perfetto) else None
    if html is not None:
        from scalewright.report.diagnosis import write_diagnosis

        write_diagnosis(answer, html, lanes, _terminal(answer), force)
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
