"""Random runs with the sizes that a trainer has, and its answers to them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from emit.random_runs import DENSE, MIXTURE, random_layout, random_runs
from scalewright.emit.emitted import Emitted, Reading
from scalewright.emit.settings import Settings, settings_of
from scalewright.emit.trainers import module_of
from scalewright.emit.write import emit
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import RunSpec


def run_of(**keys: Any) -> Settings:
    """A small run with these keys."""
    model = ModelSpec.parse(keys.pop("model", DENSE))
    base = {"model": model.dump(), "data": {"train": "corpus", "seq_len": 2048}, "train": {"steps": 200}}
    return settings_of(RunSpec.parse({**base, **keys}))


def limited_runs(fixed: Mapping[str, Any], count: int, seed: int, experts: bool = True) -> Iterator[Settings]:
    """So many runs with `fixed` in their layouts; experts are often split over tp."""
    rng, models = random.Random(seed), [ModelSpec.parse(DENSE), ModelSpec.parse(MIXTURE)]
    for index, settings in enumerate(random_runs(count, seed, experts=False)):
        model = models[index % 2 if experts else 0]
        layout = None
        while layout is None:
            layout = _layout(rng, fixed, model)
        run = {**settings.run.dump(), "model": model.dump(), "layout": layout.dump()}
        yield settings_of(RunSpec.parse(run))


def _layout(rng: random.Random, fixed: Mapping[str, Any], model: ModelSpec) -> Layout | None:
    """A layout; None for one that the checks refuse."""
    keys = {**random_layout(rng, model.moe is not None), **fixed}
    if keys["pp"] == 1:
        keys |= {"virtual_stages": 1, "schedule": "1f1b"}
    keys["etp"] = keys["tp"] if model.moe and rng.random() < 0.5 else 1
    try:
        layout = Layout.parse(keys)
        check_layout(layout, model, 2048)
    except UserError:
        return None
    return layout


def written(name: str, settings: Settings) -> Emitted | str:
    """What is written, or why nothing is."""
    try:
        return emit(name, settings)
    except UserError as error:
        return str(error)


def document_of(emitted: Emitted) -> dict[str, Any]:
    """The YAML, with the faster of the two loaders."""
    (text,) = emitted.files.values()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document: dict[str, Any] = yaml.load(text, loader)
    return document


def reread(emitted: Emitted) -> Reading:
    """The file as its reader gets it."""
    ((name, text),) = emitted.files.items()
    document, module = document_of(emitted), module_of(emitted.trainer)
    assert module.recognises(document, text)
    reading: Reading = module.read(document, text, name)
    return reading


def reported(emitted: Emitted) -> dict[str, str | None]:
    """Keys that were dropped or changed, with what was written."""
    return {item.key: getattr(item, "written", None) for item in (*emitted.dropped, *emitted.changed)}
