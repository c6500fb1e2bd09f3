"""`doctor`: an examination in one JSON document, or as a page."""

from __future__ import annotations


def test_json(call_cli, tmp_path):
    answer = call_cli("doctor", "--json", "--no-measure", "--folder", tmp_path)
    assert answer.code == 0, answer.err
    found = answer.json()
    assert found["worst"] in {"ok", "note", "warn", "problem"}
    assert {"python", "cores"} <= {finding["name"] for finding in found["findings"]}


def test_the_environment_is_looked_at(run_cli):
    few = run_cli("doctor", "--json", "--no-measure", OMP_NUM_THREADS="1").json()
    many = run_cli("doctor", "--json", "--no-measure", OMP_NUM_THREADS="4096").json()
    assert threads(few) != threads(many)


def threads(found):
    return next(finding for finding in found["findings"] if finding["name"] == "threads")


def test_page(call_cli):
    out = call_cli("doctor", "--no-measure").out
    assert "python" in out
    assert "checks in" in out
