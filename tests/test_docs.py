"""The documentation is run: its commands, its table of keys and its links.

Above every `sh` block stands a comment that says how it is tested:

    <!-- run -->                       here, in order, in one empty folder per page
    <!-- run: slow -->                 the same, by `make test-all`; the page's later blocks go with it
    <!-- run: slow alone -->           the same, but `run` blocks further down don't need it
    <!-- make: demo -->                `make demo` does these very commands; its recipe is compared
    <!-- tested by: tests/a.py::b -->  that test exists and runs it
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from scalewright.spec.base import Spec, parse_yaml
from scalewright.spec.huggingface import RUNS
from scalewright.spec.run import RunSpec

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
BLOCK = re.compile(r"(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A code block of a page, and the comment above it."""

    page: str
    line: int
    mark: str
    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Every code block of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            str(page.relative_to(ROOT)),
            text[: found.start()].count("\n") + 1,
            found["mark"] or "",
            found["kind"],
            found["text"],
        )
        for found in BLOCK.finditer(text)
    ]


def shell_blocks(name: str) -> list[Block]:
    """The blocks of a page that a reader would type."""
    return [block for block in blocks(ROOT / name) if block.kind in {"sh", "bash", "shell", "console"}]


@pytest.mark.parametrize("name", NAMES)
def test_every_shell_block_says_how_it_is_tested(name):
    for block in shell_blocks(name):
        assert re.match(r"run$|run: slow( alone)?$|make: |tested by: ", block.mark), f"{name}:{block.line} has no mark"


@pytest.mark.parametrize("name", NAMES)
def test_commands_run(name, tmp_path, call_cli, monkeypatch):
    """The page's `run` blocks up to its first slow one."""
    monkeypatch.chdir(tmp_path)
    for block in until_slow(name):
        for piece in pieces(block):
            command = without_a_shell(piece)
            if command is None:
                run_blocks([replace(block, text=piece)], tmp_path)
                continue
            words, file = command
            answer = call_cli(*words)
            assert answer.code == 0, f"{block.page}:{block.line} {words}\n{answer.out[-2000:]}\n{answer.err[-2000:]}"
            if file:
                (tmp_path / file).write_text(answer.out, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a page's commands together; each has its own limit
@pytest.mark.parametrize("name", [n for n in NAMES if "<!-- run: slow" in (ROOT / n).read_text("utf-8")])
def test_slow_commands_run(name, tmp_path):
    shutil.copytree(ROOT / "docs", tmp_path / "my-texts", ignore=shutil.ignore_patterns("*.png", "*.svg"))
    run_blocks([b for b in shell_blocks(name) if b.mark.startswith("run")], tmp_path)


# They train nothing, so that this process can be theirs: a new Python takes one to three seconds
OURS = {
    "presets", "plan", "predict", "budget", "score", "diagnose", "read", "emit", "report", "compare", "goodput",
    "inference", "launch", "prepare", "bench", "doctor", "explain",
}  # fmt: skip


def pieces(block: Block) -> list[str]:
    """A block cut into our own commands, and what stands between them; whole where the shell keeps something."""
    if re.search(r"^ *(cd|export|set|source|\.) |^\w+=", re.sub(HERE, "", block.text), re.MULTILINE):
        return [block.text]
    statements, found = re.findall(STATEMENT, block.text), list[str]()
    assert "".join(statements) == block.text
    for statement in statements:
        if without_a_shell(statement) is None and found and without_a_shell(found[-1]) is None:
            found[-1] += statement
        else:
            found.append(statement)
    return [piece for piece in found if re.sub(r"^\s*(#.*)?$", "", piece, flags=re.MULTILINE).strip()]


HERE = re.compile(r"<<'?(?P<end>\w+)'?[^\n]*\n.*?\n(?P=end)\n", re.DOTALL)
ALONE = re.compile(r"scalewright ([^|<>$;&!*`#]+?)(?: > ([\w.-]+))?\s*(?:#.*)?")
STATEMENT = re.compile(r"[^\n]*<<'?\w+'?[^\n]*\n(?:.*\n)*?[A-Z]+\n|(?:[^\n]*\\\n)*[^\n]*\n")


def without_a_shell(statement: str) -> tuple[list[str], str] | None:
    """One of our own commands and the file that takes its output, where nothing else of it needs a shell."""
    line = re.fullmatch(ALONE, statement.replace("\\\n", " ").strip())
    words = shlex.split(line[1]) if line else [""]
    return (words, line[2] or "") if line and words[0] in OURS else None


def until_slow(name: str) -> list[Block]:
    """The `run` blocks before the first slow one, on which later ones may rest."""
    found: list[Block] = []
    for block in shell_blocks(name):
        if block.mark == "run: slow":
            break
        if block.mark == "run":
            found.append(block)
    return found


def run_blocks(chosen: list[Block], folder: Path) -> None:
    """Types the blocks into one shell after another, in the same folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for block in chosen:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{block.page}:{block.line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def marked(prefix: str) -> list[Block]:
    return [b for name in NAMES for b in shell_blocks(name) if b.mark.startswith(prefix)]


@pytest.mark.skipif(shutil.which("make") is None, reason="make isn't here")
def test_commands_that_make_does_are_in_its_recipe():
    """Each word of such a command stands, in order, in a line that the target runs."""
    assert marked("make: ")
    for block in marked("make: "):
        target = block.mark.removeprefix("make: ")
        recipe = subprocess.run(
            ["make", "--dry-run", "--always-make", target, "PYTHON=python3"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for command in block.text.strip().splitlines():
            words = shlex.split(command, comments=True)
            if words and words[0] == "make":
                assert target in words[1:]
                continue
            assert any(in_order(words, shlex.split(line)) for line in recipe), f"{block.page}: {command}"


def in_order(few: list[str], many: list[str]) -> bool:
    """Whether all of the few occur among the many, in their order."""
    rest = iter(many)
    return all(word in rest for word in few)


def test_tests_that_are_named_exist():
    for block in marked("tested by: "):
        path, _, function = block.mark.removeprefix("tested by: ").partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), block


OTHERS = ("CHANGELOG.md", "SECURITY.md", "comparisons/README.md", "examples/README.md")


@pytest.mark.parametrize("name", [*NAMES, *(name for name in OTHERS if (ROOT / name).exists())])
def test_links_lead_somewhere(name):
    page = ROOT / name
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name}: {target}"
        if anchor:
            assert anchor in headings(file), f"{name}: {target}"


def test_every_page_is_in_the_index_and_links_back():
    docs = ROOT / "docs"
    index = docs / "README.md"
    listed = {(docs / target).resolve() for target in re.findall(r"\]\(([\w/.-]+\.md)\)", index.read_text("utf-8"))}
    pages = set(docs.rglob("*.md")) - {index}
    assert pages <= listed
    for page in pages:
        back = os.path.relpath(index, page.parent)
        assert f"[All pages]({back})" in page.read_text("utf-8"), page


NAMED = {  # as the README names them, and what a name stands for
    "Qwen 2 and 3 with their mixtures": {"qwen2", "qwen3", "qwen2_moe", "qwen3_moe"},
    "Gemma 1 to 3": {"gemma", "gemma2", "gemma3_text"},
    "OLMo 1 and 2": {"olmo", "olmo2"},
    "DeepSeek V2 and V3": {"deepseek_v2", "deepseek_v3"},
    "GPT-NeoX": {"gpt_neox"}, "SmolLM 3": {"smollm3"}, "GLM-4.5": {"glm4_moe"}, "Llama 4 (text)": {"llama4_text"},
    "gpt-oss": {"gpt_oss"}, "GPT-2": {"gpt2"},
}  # fmt: skip


def test_the_readmes_families_are_those_that_run():
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    found = re.search(r"\*\*Families that train and are converted both ways\*\*: (.*?)\. More are", text)
    assert found
    named = set().union(*(NAMED.get(name, {name.lower()}) for name in found[1].split(", ")))
    assert named == RUNS


def headings(page: Path) -> set[str]:
    """The anchors that a page's headings make."""
    lines = page.read_text(encoding="utf-8").splitlines()
    titles = [line.lstrip("#").strip().lower() for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def test_the_readmes_command_table_is_what_help_shows(call_cli):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = set(re.findall(r"^\| `scalewright (\w+)", text, flags=re.MULTILINE))
    shown = call_cli("--help").out.split("Start here:")[1]
    assert table == set(re.findall(r"^  (\w+) ", shown, flags=re.MULTILINE))


# -- docs/run-yaml.md against the schema --------------------------------------------------------------

RUN_PAGE = ROOT / "docs" / "run-yaml.md"
EXAMPLE = next((b.text for b in blocks(RUN_PAGE) if b.kind == "yaml"), "")


def schema_keys(spec: type[Spec], prefix: str = "") -> dict[str, Any]:
    """Every dotted key of the schema with its annotation; `Source` and models have pages of their own."""
    found: dict[str, Any] = {}
    for name, field in spec.model_fields.items():
        key = prefix + (field.alias or name)
        parts = [t for t in flat(field.annotation) if isinstance(t, type) and issubclass(t, Spec)]
        nested = [t for t in parts if t.__name__ not in {"PythonRef", "ModelSpec", "Source", "RecomputeEvery"}]
        left = {"RecomputeBudget", "MlflowSpec", "WandbSpec", "DilocoSpec", "ElasticSpec", "LowRank"}
        nested = [t for t in nested if t.__name__ not in left]
        if nested:
            found |= schema_keys(nested[0], key + ".")
        else:
            found[key] = field.annotation
    return found


def flat(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    return [annotation] if not inner else [t for a in inner for t in flat(a)]


def test_run_page_names_every_key_and_no_other():
    table = re.findall(r"^\| `([\w.]+)` \|", RUN_PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(table) == len(set(table))
    assert set(table) == set(schema_keys(RunSpec))


def test_run_page_shows_every_word_that_a_key_takes():
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.*?) \|", RUN_PAGE.read_text("utf-8"), flags=re.MULTILINE))
    for key, annotation in schema_keys(RunSpec).items():
        words = {str(word) for word in flat(annotation) if isinstance(word, (str, int)) and not isinstance(word, bool)}
        assert words <= set(re.findall(r"`([^`]+)`", rows[key])), key


def test_run_page_shows_the_defaults():
    example = parse_yaml(EXAMPLE)
    least = {"model": example["model"], "data": {"train": example["data"]["train"]}}
    assert RunSpec.parse(example) == RunSpec.parse(least)
    assert dotted(example) == set(schema_keys(RunSpec))


def dotted(data: dict[str, Any], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for key, value in data.items():
        found |= dotted(value, f"{prefix}{key}.") if value and isinstance(value, dict) else {prefix + key}
    return found
