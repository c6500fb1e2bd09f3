"""The answers inside a page without a server: a search's layouts, and every single step of a slider from two of them.

    best, Pareto set                    of the search
    best and start, one axis changed    so that each slider goes somewhere from where the page begins

A layout that doesn't fit together is an answer, too: its sentence. What isn't among them, the page says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scalewright.explore.answer import picture, reasons, searched
from scalewright.explore.axes import RUN
from scalewright.explore.state import State, read_state
from scalewright.spec.errors import UserError


def freeze(start: State) -> dict[str, Any]:
    """{picture, reasons: by state; search}, as a live page would get them. Raises UserError for the start."""
    search = searched(start)
    chosen = [_read(point["state"], start) for point in (*search["best"], *search["pareto"])]
    pictures: dict[str, dict[str, Any]] = {}
    for state in [start, *chosen]:
        pictures[state.query()] = picture(state)
    for centre in [start, *chosen[:1]]:
        for state in _steps(centre, pictures[centre.query()]["controls"]):
            if (query := state.query()) not in pictures:
                pictures[query] = _answer(state)
    priced = [query for query, answer in pictures.items() if "error" not in answer]
    why = reasons([_read(query, start) for query in priced])
    return {"picture": pictures, "reasons": dict(zip(priced, why, strict=True)), "search": search}


def _steps(centre: State, controls: list[dict[str, Any]]) -> Iterator[State]:
    """The states that one move of one slider leads to, as the page writes them."""
    for control in controls:
        if control["key"] not in RUN:
            for value in control["values"]:
                yield State(centre.model, centre.cluster, centre.seq_len, {**centre.layout, control["key"]: value})


def _answer(state: State) -> dict[str, Any]:
    try:
        return picture(state)
    except UserError as error:
        return {"error": {"what": error.what, "where": error.where, "how": error.how}}


def _read(query: str, start: State) -> State:
    return read_state(query, {start.model}, {start.cluster})
