"""A run's records while it runs: numbers, events, a live view, and copies for other people's tools.

    trainer ── row ──► MetricsFile   metrics.jsonl      (the truth: each step once)
            ── kind ─► EventsFile    events.jsonl       (append only)
            ── row ──► Console       the terminal       (stderr)
            ── row ──► Fanout ─thread─► MLflow · TensorBoard · W&B   (copies: may lag, never stop a run)

saved.py: what a checkpoint has of the two files. Trackers: tracker.py (the interface), fanout.py (opens and feeds
them), and a file each. A row is a plain dict with the keys of the two files; nothing here needs torch.
"""
