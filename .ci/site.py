"""What the site makes of docs/, whose pages are written for GitHub: hooks of mkdocs.

docs/README.md       its headings are tabs and its links pages: the one list of pages; a link into a folder
                     nests under the row's first page
../src/file.py       a link to REPO_URL at REVISION (main), or plain words where no repository is given
<!-- run -->         how a block is tested: not shown
<!-- docstrings: NAMES -->   the docstrings of these public names, by mkdocstrings
[All pages](...)     the site has its own way back
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
BACK = re.compile(r"^\[All pages\]\([./]*README\.md\)(?: · |\n+)", re.MULTILINE)
COMMENT = re.compile(r"^<!--.*?-->\n| *<!--.*?-->", re.MULTILINE | re.DOTALL)
DOCSTRINGS = re.compile(r"^<!-- docstrings:\s(.*?)\s-->$", re.MULTILINE | re.DOTALL)
CSS = """
.md-typeset table:not([class]) { font-size: .72rem; }
.md-typeset table:not([class]) td:first-child { min-width: 7rem; }
.md-typeset table:not([class]) code { word-break: normal; }
.md-grid { max-width: 68rem; }
"""

Nav = list[Any]


def navigation(index: str) -> Nav:
    """The tabs and pages of docs/README.md: a row begins with its pages; those in a folder nest."""
    nav: Nav = [{"Home": "README.md"}]
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        pages: Nav = []
        for first, rest in re.findall(r"^\| (\[.*?) \|(.*)", body, re.MULTILINE):
            plain = [path for _, path in LINK.findall(first)]
            nested = [path for _, path in LINK.findall(rest) if "/" in path and not path.startswith("..")]
            pages += [{LINK.findall(first)[0][0]: plain + nested}] if nested else plain
        if pages:
            nav.append({title.strip(): pages})
    return nav


def plain_page(text: str, path: str, repository: str) -> str:
    """A page as the site shows it; `path` is below docs/, `repository` the URL of its files or nothing."""

    def link(match: re.Match[str]) -> str:
        words, target = match.groups()
        file = posixpath.normpath(posixpath.join("docs", posixpath.dirname(path), target))
        if target.startswith(("#", "http:", "https:")) or file.startswith("docs/"):
            return match[0]
        return f"[{words}]({repository}/{file})" if repository else words

    def prose(part: str) -> str:
        part = DOCSTRINGS.sub(lambda match: "\n\n".join(f"::: {name}" for name in match[1].split()), part)
        return LINK.sub(link, COMMENT.sub("", part))

    parts = re.split(r"(^```.*?^```)", BACK.sub("", text), flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else prose(part) for part in parts)


# -- what mkdocs calls --------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    config["nav"] = navigation((Path(config["docs_dir"]) / "README.md").read_text(encoding="utf-8"))
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    files.append(File.generated(config, "site.css", content=CSS))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    url = (config["repo_url"] or "").rstrip("/")
    repository = f"{url}/blob/{os.environ.get('REVISION', 'main')}" if url else ""
    return plain_page(markdown, page.file.src_uri, repository)
