"""A sample of the search beside the price of every layout: the same layouts come first."""

from __future__ import annotations

import itertools
from typing import Any

from search_equals_all import cases, compare


def test_a_sample_has_the_same_winners(monkeypatch: Any) -> None:
    monkeypatch.setattr("search_equals_all.MOST", 8_000)
    rows = [row for row in map(compare, itertools.islice(cases(), 16)) if row is not None]
    assert len(rows) > 3
    assert sum(row["fit"] for row in rows) > 500
    assert all(row["same"] and not row["front_lacks"] for row in rows)
