"""Pages about runs: one self-contained HTML file each, drawn from the plain files in a run's folder.

    run.yaml, metrics.jsonl, events.jsonl, summary.json ──► RunFolder ──► sections ──► report.html

A page loads nothing from elsewhere and imports no torch; it can be mailed, archived, opened in ten years.
"""

from __future__ import annotations

from scalewright.report.run import write_report

__all__ = ["write_report"]
