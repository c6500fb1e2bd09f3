"""A run's folder, whole: what its steps show, with its own traces and the dumps of a hang beside them.

metrics.jsonl, events.jsonl ──► logs/answer.py ──┐
traces/*.json.gz            ──► answer.py        ├──► causes together: the hang first, then by gain
hangs/rank-*, nccl-rank-*   ──► flight/hang.py ──┘
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalewright.diagnose.flight.hang import flight_answer
from scalewright.diagnose.logs.answer import run_answer
from scalewright.diagnose.logs.changed import FIXES
from scalewright.diagnose.traces.json_array import NotATrace
from scalewright.spec.common.pickles import NotPlainData
from scalewright.spec.errors import UserError

RECORD = FIXES["slower than expected"]
NO_GAIN = {"gain_pct": {"p10": 0.0, "p50": 0.0, "p90": 0.0}}
SLOWER = "the causes below are from this run's own traces"


def folder_answer(
    folders: Sequence[Path], traces: Callable[[list[Path]], dict[str, Any]], kind_of: Callable[[Path], str]
) -> dict[str, Any]:
    """The run's answer; `traces` answers for files of traces, and `kind_of` knows a file's kind. OSError as `open`."""
    folder, answer = folders[0], run_answer(folders[0])
    inside = {
        name: sorted(path for path in (folder / name).glob("*") if path.is_file()) for name in ("traces", "hangs")
    }
    dumps = [path for path in inside["hangs"] if kind_of(path) == "flight_recorder"]
    recorded = [path for path in inside["traces"] if kind_of(path) == "trace"]
    causes: list[Any] = list(answer["verdicts"])
    if recorded:
        try:
            answer["traces"] = seen = traces(recorded)
            by_traces = [cause | {"evidence": [*cause["evidence"], "by the traces"]} for cause in seen["verdicts"]]
            causes = sorted(causes + by_traces, key=_worst)
            if by_traces:
                causes = [cause | {"fix": cause["fix"].replace(RECORD, SLOWER)} for cause in causes]
            answer["warnings"] += seen["warnings"]
        except NotATrace:
            pass  # a pipeline's times without traces
        except UserError as error:  # they don't belong together: the steps are judged nevertheless
            answer["warnings"].append(str(error))
    if dumps:
        with suppress(NotPlainData):
            hang: dict[str, Any] = flight_answer(dumps)
            answer["hang"] = hang
            causes = [NO_GAIN | cause for cause in hang["verdicts"]] + causes
            answer["warnings"] += hang["warnings"]
    return answer | {"verdicts": causes}


def _worst(cause: dict[str, Any]) -> tuple[bool, float]:
    return bool(cause["gain_pct"]["p90"]), -cause["gain_pct"]["p50"]
