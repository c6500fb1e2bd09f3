"""The site of docs/ (`make site`): its list of pages, what it makes of them, their lengths, and the built pages."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import scalewright

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
HOOKS = runpy.run_path(str(ROOT / ".ci" / "site.py"))
MOST_WORDS = 2000
LONGER = {  # a reader looks something up in them, from a link or by searching, and reads none from the top
    "accuracy-tables.md": "tables that comparisons/ writes",
    "gpu-claims.md": "a table of claims, each found from its check",
    "glossary.md": "made from the entries of `explain`",
    "plans.md": "made from comparisons/harness/plan_cases.yaml, a plan at a time",
    "run-yaml.md": "every key of the schema",
}


def leaves(nav: Any) -> Iterator[str]:
    """The pages of a navigation, in its order."""
    if isinstance(nav, str):
        yield nav
    else:
        for inner in nav.values() if isinstance(nav, dict) else nav:
            yield from leaves(inner)


def words(text: str) -> int:
    """Words of prose and tables: no code blocks, comments, or targets of links."""
    text = re.sub(r"^```.*?^```|<!--.*?-->|\]\([^)]*\)", "", text, flags=re.DOTALL | re.MULTILINE)
    return len([word for word in text.split() if re.search(r"\w", word)])


def test_the_navigation_has_every_page_once() -> None:
    nav = HOOKS["navigation"](PAGES["README.md"])
    assert sorted(leaves(nav)) == sorted(PAGES)
    assert len(nav) == 8
    groups = {name: pages for tab in nav for part in leaves_of(tab) for name, pages in part.items()}
    folders = {"Starting a run": "launch", "Course": "course"}
    assert {name: len(pages) for name, pages in groups.items()} == {
        name: 1 + len([*(DOCS / folder).glob("*.md")]) for name, folder in folders.items()
    }


def leaves_of(tab: dict[str, Any]) -> list[dict[str, Any]]:
    """The groups within a tab."""
    (pages,) = tab.values()
    return [page for page in pages if isinstance(page, dict)]


def test_the_roles_link_pages_that_the_tasks_have() -> None:
    roles = PAGES["README.md"].partition("## By role")[2].partition("\n## ")[0]
    linked = set(re.findall(r"\]\(([\w/.-]+\.md)\)", roles))
    assert len(linked) > 30
    assert linked <= set(PAGES)


def test_a_page_of_the_site_is_plain() -> None:
    page = "# A\n\n[All pages](../README.md) · [B](b.md)\n\n<!-- run -->\n```sh\n<!-- x -->\n```\n**1** a <!-- y -->\n"
    assert HOOKS["plain_page"](page, "c/a.md", "") == "# A\n\n[B](b.md)\n\n```sh\n<!-- x -->\n```\n**1** a\n"
    link = "[code](../../src/a.py) [b](../b.md#c) [w](https://w.org)\n"
    assert HOOKS["plain_page"](link, "c/a.md", "") == "code [b](../b.md#c) [w](https://w.org)\n"
    assert HOOKS["plain_page"](link, "c/a.md", "https://g/blob/x").startswith("[code](https://g/blob/x/src/a.py) [b]")
    assert HOOKS["plain_page"]("<!-- docstrings:\na.b\nc.d\n-->\n", "a.md", "") == "::: a.b\n\n::: c.d\n"


def test_the_reference_has_every_public_name() -> None:
    named = {name.rpartition(".")[2] for name in re.findall(r"^scalewright\.\S+$", PAGES["api.md"], re.MULTILINE)}
    assert set(scalewright.__all__) - {"__version__"} <= named


@pytest.mark.parametrize("name", sorted(set(PAGES) - set(LONGER)))
def test_a_page_is_short(name: str) -> None:
    assert words(PAGES[name]) <= MOST_WORDS


def test_a_page_that_may_be_longer_is() -> None:
    assert all(words(PAGES[name]) > MOST_WORDS for name in LONGER)


def test_the_readme_has_ten_links() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(re.findall(r"(?<!!)\[[^\]]+\]\(", readme)) <= 10
    assert words(readme) <= MOST_WORDS


# -- built, where mkdocs is: `make site` installs it apart ---------------------------------------------

APART = ROOT / ".venv-site" / "bin" / "python"
PYTHON = sys.executable if find_spec("mkdocs") else str(APART) if APART.exists() else ""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PYTHON:
        pytest.skip("mkdocs isn't here: `make site`, or pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [PYTHON, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    env = {**os.environ, "REPO_URL": "https://example.org/scalewright"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_the_site_is_built_without_warnings(site: Path) -> None:
    for name in PAGES:
        folder = site / name.removesuffix("README.md").removesuffix(".md")
        text = (folder / "index.html").read_text(encoding="utf-8")
        body = text.partition("<article")[2].partition("</article>")[0]
        assert "All pages" not in body, name
        assert "<!--" not in body, name
        assert not re.search(r"(?<!<code>)\]\(", re.sub(r"<(pre|code).*?</\1>", "", body, flags=re.DOTALL)), name
        shown = re.sub(r"```.*?```", "", PAGES[name], flags=re.DOTALL)
        tables = len(re.findall(r"^\|[ :|-]*-[ :|-]*\|$", shown, re.MULTILINE))
        assert body.count("<table>") == tables, name


@pytest.mark.slow
def test_the_reference_is_made_from_docstrings(site: Path) -> None:
    page = (site / "api" / "index.html").read_text(encoding="utf-8")
    for name in re.findall(r"^(scalewright\.\S+)$", PAGES["api.md"], re.MULTILINE):
        assert f'id="{name}"' in page
    assert "What one layout costs" in page
    assert "https://example.org/scalewright/blob/main/src/scalewright/api.py" in page


@pytest.mark.slow
def test_the_site_is_searched(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    texts = [entry["title"] + entry["text"] for entry in index["docs"]]
    assert any("straggler" in text for text in texts)
    assert not any("tested by:" in text for text in texts)
