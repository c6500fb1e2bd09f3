"""What `sw.predict` and `sw.plan` give: the dictionary of the JSON, which prints as the command does.

answer = sw.plan("llama-3.1-8b", "dgx-h100", devices=64, seq_len=8192, global_batch=512)
answer["best"][0]["layout"]         a dictionary, as before
print(answer)                       the tables of `scalewright plan`
answer                              in a notebook: a small page of them
"""

from __future__ import annotations

import contextlib
import io
from typing import Any


class Answer(dict[str, Any]):
    """The keys of `plan --json` or `predict --json`; shown as a dictionary where they make no table."""

    def __repr__(self) -> str:
        """The command's own tables, without colours."""
        from scalewright.cli.plan_tables import show_prediction
        from scalewright.cli.search_tables import show_plan

        text = io.StringIO()
        try:
            with contextlib.redirect_stdout(text):
                show_plan(self) if "best" in self else show_prediction(self)
        except (KeyError, IndexError, TypeError):  # a part of an answer, or one that the caller has changed
            return super().__repr__()
        return text.getvalue().strip("\n")

    __str__ = __repr__

    def _repr_html_(self) -> str | None:
        """The same for a notebook, self-contained; null (then the text is shown) where a key is missing."""
        from scalewright.report.inline import plan_html, prediction_html

        try:
            return plan_html(self) if "best" in self else prediction_html(self)
        except (KeyError, IndexError, TypeError):
            return None
