"""Answers as blocks, which every medium shows in its own way.

answer ──► one file a kind: prediction.py, plan.py, budget.py, explain.py, ... ──► Shown (blocks.py)
Shown  ──► cli/terminal.py │ markdown.py (tickets) │ html.py (notebooks, pages)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.report.present.blocks import Shown


def show_answer(answer: Mapping[str, Any], command: str = "") -> Shown:
    """The answer of a command as blocks; raises UserError for none of theirs.

    `command`: what one may type next, where the answer itself doesn't have it.
    """
    if "verdicts" in answer:
        from scalewright.report.present.diagnosis import show_diagnosis

        return show_diagnosis(answer)
    if "young_daly_interval_s" in answer:
        from scalewright.report.present.goodput import show_goodput

        return show_goodput(answer)
    if "lab" in answer:
        from scalewright.report.present.lab import show_lab

        return show_lab(answer)
    if "see" in answer:
        from scalewright.report.present.explain import show_entry

        return show_entry(answer)
    if "tokens_per_param" in answer:
        from scalewright.report.present.budget import show_budget

        return show_budget(answer)
    if "kv_bytes_per_token" in answer:
        from scalewright.report.present.inference import show_inference

        return show_inference(answer)
    if "faults" in answer:
        from scalewright.report.present.chaos import show_chaos

        return show_chaos(answer)
    from scalewright.report.document import read_document
    from scalewright.report.present.plan import show_plan
    from scalewright.report.present.prediction import show_prediction

    document = read_document(answer)
    return show_plan(document) if document.searched else show_prediction(document, command)
