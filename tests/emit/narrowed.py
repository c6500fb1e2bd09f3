"""Random runs with layouts that a trainer has: axes that it lacks are set to what it has."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import yaml

from emit.random_runs import random_runs
from scalewright.emit.emitted import Emitted, Reading
from scalewright.emit.settings import Settings, settings_of
from scalewright.emit.trainers import module_of
from scalewright.emit.write import emit
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.run import RunSpec

# Axes as choices: `pp=(1,)` leaves pipelines out.
Axes = Mapping[str, tuple[Any, ...]]


def narrowed(name: str, runs: int, seed: int, axes: Axes) -> Iterator[tuple[Settings, Emitted, dict[str, Any]]]:
    """So many runs that the trainer takes: settings, what is written, and the keys that were drawn."""
    rng, made = random.Random(seed), 0
    for batch in count():
        for settings in random_runs(50, seed + batch, experts=False):
            drawn = {key: rng.choice(values) for key, values in axes.items()}
            try:
                layout = Layout.parse({**settings.layout.dump(), "sp": None, "stage_layers": None, **drawn})
                check_layout(layout, settings.model, settings.run.seq_len)
                again = settings_of(RunSpec.parse({**settings.run.dump(), "layout": layout.dump()}))
                emitted = emit(name, again)
            except UserError:
                continue
            yield again, emitted, drawn
            made += 1
            if made == runs:
                return


def document(text: str, file: str) -> Any:
    """A file's content, as its reader gets it."""
    if file.endswith(".json"):
        return json.loads(text)
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def read_back(name: str, emitted: Emitted, file: str) -> Reading:
    """What the trainer's reader makes of its own file; scripts must be Python."""
    for path, text in emitted.files.items():
        if path.endswith(".py"):
            ast.parse(text)
    content = document(emitted.files[file], file)
    assert module_of(name).recognises(content, emitted.files[file])
    reading: Reading = module_of(name).read(content, emitted.files[file], file)
    return reading
