"""What `sw.predict`, `sw.plan` and `sw.diagnose` give: the keys of the JSON, printed as the command does.

answer = sw.plan("llama-3.1-8b", "dgx-h100", devices=64, seq_len=8192, global_batch=512)
answer["best"][0]["layout"]         a dictionary, as before
print(answer)                       what `scalewright plan` prints
answer                              in a notebook: the same as a small page
"""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalewright.report.present.blocks import Shown


class Answer(dict[str, Any]):
    """The keys of `--json`; shown as a dictionary where they make no answer."""

    def shown(self) -> Shown | None:
        """The answer as blocks; null where keys are missing: of a part of an answer, or a changed one."""
        from scalewright.report.present import show_answer

        try:
            return show_answer(self)
        except Exception:  # whatever a caller has put into it: a repr must not raise
            return None

    def text(self, everything: bool = False) -> str:
        """What the command prints (with `--all`: `everything`), without colours."""
        from scalewright.cli.terminal import show

        shown = self.shown()
        if shown is None:
            return super().__repr__()
        from rich.text import Text

        text = io.StringIO()
        try:
            with contextlib.redirect_stdout(text):
                show(shown, everything, rest="print(answer.text(everything=True)) shows the rest")
        except Exception:  # as above
            return super().__repr__()
        return Text.from_ansi(text.getvalue()).plain.strip("\n")

    def __repr__(self) -> str:
        return self.text()

    __str__ = __repr__

    def _repr_html_(self) -> str | None:
        """The same for a notebook, self-contained; null (then the text is shown) where a key is missing."""
        from scalewright.report.present.html import notebook

        shown = self.shown()
        try:
            return notebook(shown) if shown is not None else None
        except Exception:  # as above
            return None
