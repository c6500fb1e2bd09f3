"""What `sw.predict` and `sw.plan` give: the dictionary of the JSON, which prints as the command does.

answer = sw.plan("llama-3.1-8b", "dgx-h100", devices=64, seq_len=8192, global_batch=512)
answer["best"][0]["layout"]         a dictionary, as before
print(answer)                       the tables of `scalewright plan`
answer                              in a notebook: a small page of them
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any


class Answer(dict[str, Any]):
    """A dictionary that shows itself; what can't be shown as a table is shown as a dictionary."""

    def __repr__(self) -> str:
        """The command's own tables, without colours."""
        try:
            return _printed(lambda: self._show()).strip("\n")
        except (KeyError, IndexError, TypeError):  # a part of an answer, or one that the caller has changed
            return super().__repr__()

    __str__ = __repr__

    def _repr_html_(self) -> str | None:
        """The same for a notebook, self-contained; null (then the text is shown) where a key is missing."""
        try:
            return self._html()
        except (KeyError, IndexError, TypeError):
            return None

    def _show(self) -> None:
        raise NotImplementedError

    def _html(self) -> str:
        raise NotImplementedError


class PredictionAnswer(Answer):
    """The keys of `scalewright predict --json`."""

    def _show(self) -> None:
        from scalewright.cli.plan_tables import show_prediction

        show_prediction(self)

    def _html(self) -> str:
        from scalewright.report.inline import prediction_html

        return prediction_html(self)


class PlanAnswer(Answer):
    """The keys of `scalewright plan --json`."""

    def _show(self) -> None:
        from scalewright.cli.search_tables import show_plan

        show_plan(self)

    def _html(self) -> str:
        from scalewright.report.inline import plan_html

        return plan_html(self)


def _printed(show: Callable[[], None]) -> str:
    """What a function writes on stdout."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        show()
    return text.getvalue()
