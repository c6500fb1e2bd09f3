"""A bash script: its commands as it would start them, what a scheduler's header asks for, what can't be known.

#SBATCH --nodes=4 --gpus-per-node=8        header {"nodes": "4", "gpus-per-node": "8"}; SLURM_NNODES is 4
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from scalewright.emit.bash.header import environ_of, header
from scalewright.emit.bash.result import Command, Result
from scalewright.emit.bash.state import State
from scalewright.emit.bash.statements import Interpreter
from scalewright.emit.bash.tree import parse
from scalewright.emit.bash.unknown import Mark, cleaned
from scalewright.spec.errors import UserError


@dataclass(frozen=True)
class Script:
    """What following a script gives."""

    commands: list[Command]
    result: Result
    state: State
    file: Callable[[str], str | None]  # the text of a file beside the script, or of one that it wrote
    header: dict[str, str] = field(default_factory=dict)

    def unknown(self, words: list[str]) -> list[Mark]:
        """The parts of these words that the script doesn't tell."""
        return self.result.marks.of(words)

    def written(self, name: str) -> str | None:
        """The text of a file that the script wrote, by its name as `shown`; None for two of the same."""
        path = self.state.path(name)
        texts = [text for key, text in self.state.files.items() if self.result.marks.shown(key) == path]
        return texts[0] if len(texts) == 1 else None

    def shown(self, words: list[str]) -> list[str]:
        """Words with the script's own text where a part isn't known."""
        return [self.result.marks.shown(word) for word in words]


def read_script(text: str, where: str = "script.sh", folder: Path | None = None) -> Script:
    """Follows a script; `folder`: where files that it sources lie. Raises UserError where bash would refuse it."""
    text = cleaned(text)
    stated = header(text)
    variables = environ_of(stated)
    state = State(where, dict(variables), set(variables))
    result = Result()
    shell = Interpreter(state, result, text.encode(), folder)
    try:
        statements = parse(text, where)
        shell.follow(lambda: shell.run(statements))
    except RecursionError:
        raise UserError("its statements lie too deep in each other", where, "give the command line itself") from None
    result.assumed = list(dict.fromkeys(result.assumed))
    return Script(result.commands, result, shell.state, shell.file, stated)
