"""The plans of docs/plans.md: claims hold, the page is that of the cases, and a broken claim fails loudly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from harness.plan_cases import Case, Outcome, load_cases, techniques
from harness.plan_page import page

from scalewright.spec.layout import Layout

ROOT = Path(__file__).resolve().parents[2]
DATE, CASES = load_cases()
FAST = ("8B on 8 H100", "1B on 8 A100-40 PCIe", "70B on 512 TPU v5p, by MaxText")


def ids(cases: list[Case]) -> list[str]:
    return [case.title for case in cases]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return CASES[0].run(tmp_path_factory.mktemp("plan"))


SOME = [case for case in CASES if case.title in FAST]
REST = [case for case in CASES if case.title not in FAST]


@pytest.mark.parametrize("case", SOME, ids=ids(SOME))
def test_claims_hold(case: Case, tmp_path: Path) -> None:
    outcome = case.run(tmp_path)
    assert outcome.broken() == []
    assert outcome.case.title in page([outcome], DATE)


@pytest.mark.slow
@pytest.mark.parametrize("case", REST, ids=ids(REST))
def test_the_other_claims_hold(case: Case, tmp_path: Path) -> None:
    assert case.run(tmp_path).broken() == []


def test_there_are_the_sixteen_and_each_claims_something() -> None:
    assert len(CASES) == 16
    assert len({case.title for case in CASES}) == 16
    for case in CASES:
        assert case.line.strip()
        assert case.published["source"]
        assert {"tp", "pp"} & set(case.holds) or "ep" in case.holds
        assert "--why-not" in case.command
        assert case.asked


def test_the_page_is_that_of_the_cases() -> None:
    """Whoever edits a case writes the page again."""
    text = (ROOT / "docs" / "plans.md").read_text(encoding="utf-8")
    flat = " ".join(text.split())
    assert DATE in text
    for case in CASES:
        assert f"## {case.title}\n" in text
        assert f"    scalewright plan {case.command}\n" in text
        assert " ".join(case.line.split()) in flat, case.title
    assert (ROOT / "docs" / "plans" / "parts.png").stat().st_size > 20_000


def test_a_broken_claim_names_the_case_and_the_value(first: Outcome) -> None:
    wrong = {"tp": 8, "techniques": -1, "mfu": [0.9, 1.0], "trainable": False, "published_in_band": True}
    claims = Outcome(replace(first.case, holds=wrong), first.answer).broken()
    assert [claim.split(": ")[1].split(" is ")[0] for claim in claims] == [*wrong]
    assert claims[0].startswith("8B on 8 H100: tp is 1, claimed 8 (dp 8")


@pytest.mark.slow
def test_the_script_fails_where_a_claim_is_broken(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    code = (
        "import sys; sys.path.insert(0, 'comparisons'); import plans; from dataclasses import replace;"
        "from harness import plan_cases as p; date, cases = p.load_cases();"
        "plans.load_cases = lambda: (date, [replace(cases[9], holds={'tp': 7})]);"
        f"sys.argv = ['plans.py', '--out', {str(tmp_path)!r}]; plans.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=250, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr[-2000:]
    assert "a plan has left what its line says:\n  1B on 8 A100-40 PCIe: tp is 1, claimed 7" in done.stderr
    result = json.loads(next(tmp_path.glob("*-plans.json")).read_text(encoding="utf-8"))
    assert len(result["broken"]) == len(result["cases"]) == 1
    assert len(result["search"]["cpu_s"]) == 3
    assert (tmp_path / "plans" / "parts.png").stat().st_size > 5000
    assert "## 1B on 8 A100-40 PCIe" in (tmp_path / "plans.md").read_text(encoding="utf-8")


def test_techniques_are_counted_as_the_search_counts_them() -> None:
    """plan/search/shortage.py: interleaving 1, a split backward 2, recomputation 1 or 2, offload 2."""
    base = {"devices": 64, "global_batch": 64}
    for keys, count in (
        ({"tp": 8}, 0), ({"pp": 4, "virtual_stages": 2, "schedule": "interleaved"}, 1),
        ({"pp": 4, "schedule": "zb-h1"}, 2), ({"recompute": "full"}, 1), ({"recompute": {"every": 2}}, 2),
        ({"offload": "optimizer", "zero_stage": 1, "recompute": "selective"}, 3),
    ):  # fmt: skip
        assert techniques(Layout.parse({**base, **keys}).dump()) == count, keys
