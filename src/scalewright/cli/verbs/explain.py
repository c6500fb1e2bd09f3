"""`scalewright explain TERM`: a word of the field, its formula, and its number for a run of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from scalewright.cli.options import Force, Json, argument, flag, option
from scalewright.cli.output import only_answer, print, print_json
from scalewright.cli.terminal import show
from scalewright.spec.errors import UserError


def _terms() -> list[str]:
    from scalewright.learn.explain.entries import places

    return [place.term for place in places()]


def explain(
    term: Annotated[list[str] | None, argument("TERM", "A word of the field, or of an answer.", _terms)] = None,
    listed: Annotated[bool, flag("Every term in a line, by theme.", "--list")] = False,
    run: Annotated[
        str | None, option("FILE|RUN_DIR", "Whose numbers: a run, its folder, JSON of plan or predict.", "--run")
    ] = None,
    out: Annotated[Path | None, option("FILE.html", "Write a page of it.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """What a term means: three sentences, its formula, the number for your own run, what shows it.

    \b
    scalewright explain pipeline bubble
    scalewright explain ZeRO --run runs/mine
    scalewright explain --list
    """
    from scalewright.learn.explain.answer import listing

    name = " ".join(term or ())
    if listed == bool(name):
        what = "a term and --list are both given" if listed else "no term is given"
        raise UserError(what, "scalewright explain", "give a term, such as `scalewright explain MFU`, or --list")
    if listed:
        from scalewright.report.present.explain import show_listing

        rows = listing()
        print_json(rows) if json else print("\n".join(show_listing(rows)))
        return
    from scalewright.api import explain as ask
    from scalewright.report.present import show_answer

    if out is not None:
        from scalewright.report.page import check_page

        if out.suffix != ".html":
            raise UserError(f"{out} is no page's name", "--out", "end it in .html")
        check_page(out, force)
    with only_answer(json):
        answer = ask(name, run)
        if out is not None:
            from scalewright.report.answer import write_answer

            write_answer(answer, out, force)
    print_json(answer) if json else show(show_answer(answer))
