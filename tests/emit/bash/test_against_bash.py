"""Generated scripts, followed here and run by bash itself: equal words, or named as unknown."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from emit.bash.generated import ENVIRONMENT, PROGRAMS, script, started, stubs
from scalewright.emit.bash.script import Script, read_script
from scalewright.emit.bash.unknown import known

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash isn't here")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stubs(tmp_path_factory.mktemp("programs") / "bin")


def followed(text: str, folder: Path) -> tuple[list[list[str]], Script]:
    """The programs' words as this package reads them; a launcher's own come first in them."""
    folder.mkdir()
    (folder / "env.sh").write_text(ENVIRONMENT)
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


@pytest.mark.slow
def test_three_hundred_more(tmp_path: Path, programs: Path) -> None:
    equal = [check(seed, tmp_path, programs) for seed in range(1000, 1300)]
    assert sum(equal) >= 285
