"""Answers for readers, and pages about runs and plans: one self-contained HTML file each.

    run.yaml, metrics.jsonl, events.jsonl, summary.json ──► RunFolder    ──► sections ──► run.py: report.html
    plan.json (`plan --json`, `predict --json`)         ──► PlanDocument ──► sections ──► plan.py: plan.html
    any answer ──► blocks ──► terminal, Markdown, notebook, a page's head                 present/

A page loads nothing from elsewhere and imports no torch; it can be mailed, archived, opened in ten years.
"""
