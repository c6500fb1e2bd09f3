"""`scalewright doctor`: what this machine can do, and what about it is set up badly."""

from __future__ import annotations

from scalewright.cli.options import Json


def doctor(json: Json = False) -> None:
    """What this machine can do, and what is misconfigured."""
    from scalewright.cli.output import only_answer, print_json
    from scalewright.machine.doctor import examine, render

    with only_answer(json):
        findings = examine()
    if json:
        print_json(findings)
    else:
        print(render(findings))
