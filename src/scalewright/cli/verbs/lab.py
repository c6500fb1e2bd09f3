"""`scalewright lab NAME`: an experiment on this machine, beside the formula that expects it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import Force, Json, argument, flag, option
from scalewright.cli.output import only_answer, print, print_json, working
from scalewright.cli.terminal import show
from scalewright.spec.errors import UserError


def _names() -> list[str]:
    from scalewright.learn.lab.lab import labs

    return [lab.name for lab in labs()]


def lab(
    name: Annotated[str | None, argument("NAME", "A lab, or its number in the list.", _names)] = None,
    listed: Annotated[bool, flag("Every lab in a line.", "--list")] = False,
    check: Annotated[str | None, option("ANSWER", "Your answer to its exercise: is it right?")] = None,
    seed: Annotated[int, flag("Draws what is random.")] = 0,
    short: Annotated[bool, flag("Fewer sizes and repetitions.")] = False,
    out: Annotated[Path | None, option("FILE.html", "Write a page of it.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """An experiment on this machine's processes, what a formula expects of it, and whether it holds.

    \b
    scalewright lab --list
    scalewright lab zero --out zero.html
    scalewright lab zero --check 2.5GB

    Exit code 1 where the formula doesn't hold, or an answer isn't right; a machine that is too busy concludes nothing.
    """
    if listed == (name is not None):
        what = "a lab and --list are both given" if listed else "no lab is given"
        raise UserError(what, "scalewright lab", "give a name, such as `scalewright lab zero`, or --list")
    if name is None:
        from scalewright.learn.lab.answer import listing
        from scalewright.report.present.lab import show_labs

        print_json(listing()) if json else print("\n".join(show_labs(listing())))
        return
    if check is not None:
        _check(name, check, json)
        return
    from scalewright.api import lab as run
    from scalewright.report.present import show_answer

    if out is not None:
        from scalewright.report.page import check_page

        if out.suffix != ".html":
            raise UserError(f"{out} is no page's name", "--out", "end it in .html")
        check_page(out, force)
    with only_answer(json), working("lab") as tell:
        answer = run(name, short=short, seed=seed, out=out, force=force, tell=tell)
    print_json(answer) if json else show(show_answer(answer))
    if answer["verdict"] == "differs":
        raise typer.Exit(1)


def _check(name: str, given: str, json: bool) -> None:
    from scalewright.learn.lab.answer import check
    from scalewright.report.present.explain import quantity

    answer = check(name, given)
    if json:
        print_json(answer)
    elif answer["right"]:
        print(f"right: {quantity(answer['answer'], answer['unit'])}")
    else:
        print(f"not {given}. {answer['exercise']} {answer['formula']}")
    if not answer["right"]:
        raise typer.Exit(1)
