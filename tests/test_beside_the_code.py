"""Files that a stranger expects beside the code: they parse, and agree with the package and each other."""

from __future__ import annotations

import re
import shlex
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from scalewright import __version__

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "scalewright"
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def releases() -> list[tuple[str, str]]:
    """(version, date) of the changelog's headings, in its order."""
    return re.findall(r"^## \[([\d.]+)\] - (\d{4}-\d\d-\d\d)$", text("CHANGELOG.md"), re.MULTILINE)


def test_the_changelog_begins_with_this_version() -> None:
    versions = [tuple(map(int, version.split("."))) for version, _ in releases()]
    days = [date.fromisoformat(day) for _, day in releases()]
    assert releases()[0][0] == __version__
    assert versions == sorted(set(versions), reverse=True)
    assert days == sorted(days, reverse=True)
    assert len(releases()) == len(re.findall(r"^## ", text("CHANGELOG.md"), re.MULTILINE))


def test_the_changelog_groups_its_lines_as_its_form_has_it() -> None:
    groups = set(re.findall(r"^### (\w+)$", text("CHANGELOG.md"), re.MULTILINE))
    assert groups <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_package_takes_its_version_from_the_source() -> None:
    assert '"version"' in re.findall(r"^dynamic = (.*)$", text("pyproject.toml"), re.MULTILINE)[0]
    path = re.findall(r'\[tool.hatch.version\]\npath = "(.*)"', text("pyproject.toml"))[0]
    assert f'__version__ = "{__version__}"' in text(path)


def test_the_citation() -> None:
    cited: dict[str, Any] = yaml.safe_load(text("CITATION.cff"))
    needed = {"cff-version", "message", "title", "authors"}  # by the format's schema, 1.2.0
    optional = {"type", "version", "date-released", "license", "keywords", "repository-code", "url"}
    assert needed <= set(cited) <= needed | optional
    assert (cited["version"], cited["date-released"]) == releases()[0]
    assert cited["cff-version"] == "1.2.0"
    assert f'license = "{cited["license"]} AND CC-BY-SA-3.0"' in text("pyproject.toml")  # of bundled WikiText-2
    assert all("name" in author or {"family-names", "given-names"} <= set(author) for author in cited["authors"])


def test_paths_of_the_security_page_exist() -> None:
    paths = re.findall(r"`([\w./]+(?:\.py|/))`", text("SECURITY.md"))
    assert len(paths) > 10
    missing = [path for path in paths if not (SOURCE / path).exists() and not (ROOT / path).exists()]
    assert not missing


@pytest.mark.parametrize("form", [form.name for form in FORMS if form.name != "config.yml"])
def test_an_issue_form_is_one_that_github_takes(form: str) -> None:
    content = yaml.safe_load(text(f".github/ISSUE_TEMPLATE/{form}"))
    assert {"name", "description", "body"} <= set(content) <= {"name", "description", "labels", "body"}
    ids = [part["id"] for part in content["body"]]
    assert len(ids) == len(set(ids))
    for part in content["body"]:
        assert part["type"] in {"textarea", "input", "dropdown", "checkboxes"}
        assert part["attributes"]["label"]


def test_hooks_run_tools_of_the_environment_that_lint_makes() -> None:
    recipe = text("Makefile").partition("\nlint:")[2].partition("\n\n")[0]
    (repository,) = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    assert repository["repo"] == "local"  # nothing is downloaded
    for hook in repository["hooks"]:
        words = [word for word in shlex.split(hook["entry"]) if word != "--force-exclude"]
        assert words[0].startswith(".venv/bin/")
        assert " ".join([f"$(BIN)/{Path(words[0]).name}", *words[1:]]) in recipe
        assert hook["language"] == "system"
