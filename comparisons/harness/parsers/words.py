"""What a parser says of a refusal, in one line."""

from __future__ import annotations

import traceback
from pathlib import Path


def words(error: Exception) -> str:
    """The first line of an exception, or the condition that failed, and where."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    lines = str(error).strip().splitlines()
    return f"{lines[0] if lines else at.line} ({Path(at.filename).name}:{at.lineno})"
