"""Generated scripts, and one for each form, followed here and run by bash: equal words, or named as unknown."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from emit.bash.generated import BESIDE, ENVIRONMENT, PROGRAMS, script, started, stubs
from scalewright.emit.bash.script import Script, read_script
from scalewright.emit.bash.unknown import known

FORMS = re.split(r"(?m)^### ", Path(__file__).with_name("forms.txt").read_text(encoding="utf-8"))[1:]
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash isn't here")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stubs(tmp_path_factory.mktemp("programs") / "bin")


def check_form(form: str, folder: Path, programs: Path) -> bool:
    """The same of one form; a command by a condition, or a note, names what isn't known, too."""
    _, _, text = form.partition("\n")
    folder.mkdir()
    wanted = started(text, folder / "bash", programs)
    _, result = followed(text, folder / "ours")
    commands = [(each.words[place:], each.when) for each in result.commands
                for place in [first(each.words)] if place is not None]  # fmt: skip
    named = bool(result.result.notes)
    assert named or len(commands) == len(wanted), (form, commands, wanted)
    for (ours, when), theirs in zip(commands, wanted, strict=False):
        assert ours == theirs or when or named or not known(*ours), (form, ours, theirs)
    return [words for words, _ in commands] == wanted


def followed(text: str, folder: Path) -> tuple[list[list[str]], Script]:
    """The programs' words as this package reads them; a launcher's own come first in them."""
    folder.mkdir()
    (folder / "env.sh").write_text(ENVIRONMENT)
    (folder / "inner.sh").write_text(BESIDE)
    result = read_script(text, "run.sh", folder)
    commands = [command.words for command in result.commands if not command.when]
    return [words[place:] for words in commands for place in [first(words)] if place is not None], result


def first(words: list[str]) -> int | None:
    return next((index for index, word in enumerate(words) if word in PROGRAMS), None)


def check(seed: int, folder: Path, programs: Path) -> bool:
    """Whether all words are known; raises AssertionError for one that is another than bash's."""
    text = script(seed)
    wanted = started(text, folder / f"bash{seed}", programs)
    words, _ = followed(text, folder / f"ours{seed}")
    assert wanted
    assert len(words) == len(wanted), (text, words, wanted)
    for ours, theirs in zip(words, wanted, strict=True):
        assert ours == theirs or not known(*ours), (text, ours, theirs)
    return words == wanted


@pytest.mark.parametrize("first_seed", range(0, 40, 10))
def test_generated_scripts_start_what_bash_starts(first_seed: int, tmp_path: Path, programs: Path) -> None:
    equal = [check(seed, tmp_path, programs) for seed in range(first_seed, first_seed + 10)]
    assert sum(equal) >= 9  # the rest is named as unknown


@pytest.mark.parametrize("start", [0, 2, 4, *(pytest.param(start, marks=pytest.mark.slow) for start in (1, 3))])
def test_each_form_of_the_language(start: int, tmp_path: Path, programs: Path) -> None:
    forms = FORMS[start::5]
    equal = [check_form(form, tmp_path / str(number), programs) for number, form in enumerate(forms)]
    assert sum(equal) >= 0.8 * len(forms)  # the rest is named as unknown


@pytest.mark.slow
def test_three_hundred_more(tmp_path: Path, programs: Path) -> None:
    equal = [check(seed, tmp_path, programs) for seed in range(1000, 1300)]
    assert sum(equal) >= 285
