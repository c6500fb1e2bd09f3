"""Pages about runs and plans: one self-contained HTML file each, drawn from plain files.

    run.yaml, metrics.jsonl, events.jsonl, summary.json ──► RunFolder    ──► sections ──► report.html
    plan.json (`plan --json`, `predict --json`)         ──► PlanDocument ──► sections ──► plan.html

A page loads nothing from elsewhere and imports no torch; it can be mailed, archived, opened in ten years.
"""

from __future__ import annotations

from scalewright.report.plan import write_plan, write_plan_file
from scalewright.report.run import write_report

__all__ = ["write_plan", "write_plan_file", "write_report"]
