"""Odd values of every key of a run file, by its schema: one line with the key; none is accepted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from scalewright.spec.errors import UserError
from scalewright.spec.launch import LaunchSpec
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec
from scalewright.spec.run import RunSpec

LEAST: dict[str, Any] = {"model": "tiny", "data": {"train": "tokens"}}
ODD: dict[Any, tuple[Any, ...]] = {
    int: (1e39, -1e39, 10**30, 1.5, "3", True, math.nan),
    float: (1e300, -1e300, 1e-300, math.inf, math.nan, "3", True),
    bool: ("true", "no", 1, 0, 0.0),
    str: ("", " ", "a\0b", "\ud800", True, 3),
}
FREE = {"environment", "engine_options", "cluster"}  # the user's own keys
TEXTS = (str, str | None)
UNSET = {("out_dir",), ("model", "name"), ("model", "family"), ("launch", "setup")} | {
    ("launch", name) for name, field in LaunchSpec.model_fields.items() if field.annotation in TEXTS
}  # '' is the default there


def leaves(field: Any) -> Iterator[tuple[tuple[str, ...], type, Any]]:
    """(path, kind, a function from a value to the data that hold it) of each value that a field may hold."""
    kind = field.annotation if isinstance(field, FieldInfo) else field
    parts = [part for part in get_args(kind) if part is not Ellipsis]
    if kind in ODD:
        yield (), kind, lambda value: value
    elif get_origin(kind) is Literal:
        yield from (((), int, lambda value: value) for _ in parts[:1] if type(parts[0]) is int)
    elif get_origin(kind) is tuple:
        for path, leaf, hold in leaves(parts[0]):
            yield path, leaf, lambda value, hold=hold: [hold(value), hold(value)]
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        needed = {name: least(inner) for name, inner in kind.model_fields.items() if inner.is_required()}
        for name, inner in kind.model_fields.items():
            key = inner.alias or name
            for path, leaf, hold in leaves(inner) if name not in FREE else ():
                yield (
                    (key, *path),
                    leaf,
                    lambda value, key=key, hold=hold, needed=needed: {**needed, key: hold(value)},
                )
    elif hasattr(kind, "__metadata__"):
        yield from leaves(parts[0])
    elif get_origin(kind) is not dict:
        for part in parts:
            yield from leaves(part)


def least(field: FieldInfo) -> Any:
    """A value of a key that must be given."""
    if field.annotation is str:
        return "own.part:name"
    if get_origin(field.annotation) is Literal:
        return get_args(field.annotation)[0]
    return "tokens" if get_origin(field.annotation) is tuple else 1


LEAVES = [leaf for leaf in leaves(RunSpec) if leaf[0]]


def test_the_schema_is_walked_to_its_depths() -> None:
    keys = {".".join(path) for path, _, _ in LEAVES}
    assert {"checkpoint.async", "model.moe.top_k", "data.train.weight", "train.guard.leave_out"} < keys
    assert len(keys) > 190


@pytest.mark.parametrize(("path", "kind", "hold"), LEAVES, ids=lambda part: getattr(part, "__name__", part))
def test_an_odd_value_of_any_key_is_refused(path: tuple[str, ...], kind: type, hold: Any) -> None:
    others = {other for keys, other, _ in LEAVES if keys == path} - {kind}
    for value in (*ODD[kind], [[]]):
        if type(value) in others:
            continue  # what the key's other form takes
        if value == "" and path in UNSET:
            continue
        data = hold(value)
        with pytest.raises(UserError) as caught:
            RunSpec.parse({**data, **{key: value for key, value in LEAST.items() if key != path[0]}}, "run.yaml")
        assert path[-1] in str(caught.value), (value, str(caught.value))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", sorted({path[:-1] for path, _, _ in LEAVES if path[1:]}), ids=".".join)
@pytest.mark.parametrize("value", [3, "own", [1], {"x": 1}], ids=str)
def test_a_section_of_another_shape_is_refused(path: tuple[str, ...], value: Any) -> None:
    hold = next(hold for keys, _, hold in LEAVES if keys[:-1] == path)
    node = data = hold(1)
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    if value == "own" and path[-1] in ("model", "data", "train", "valid"):
        return  # a preset, a folder
    with pytest.raises(UserError, match=path[-1]):
        RunSpec.parse({**data, **{key: value for key, value in LEAST.items() if key != path[0]}}, "run.yaml")


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"data": ""}, "data"),
        ({"data": {"train": []}}, "give 1 or more"),
        ({"name": ".."}, "letters"),
        ({"optimizer": {"weight_decay": 1e30}}, "weight_decay"),
        ({"optimizer": {"clip_norm": 1e30}}, "clip_norm"),
        ({"optimizer": {"lr": 1e30}}, "lr"),
        ({"train": {"z_loss": 1e30}}, "z_loss"),
        ({"train": {"timeouts": {"steady_s": 1e-30}}}, "steady_s"),
        ({"profile": {"steps": [0]}}, "profile.steps.*counted from 1"),
        ({"launch": {"reservation": " "}}, "leave the key out"),
        ({"init": ""}, "leave the key out"),
        ({"resume": ""}, "leave the key out"),
        ({"launch": {"shared_memory": "²"}}, "a size"),
        ({"launch": {"memory": "٣G"}}, "a size"),
        ({"launch": {"time_limit": "٣"}}, "minutes"),
        ({"launch": {"env": {"": "1"}}}, "env"),
        ({"launch": {"hosts": ["node-a", "", "node-b"]}}, "hosts"),  # a host fewer would train on fewer
        ({"launch": {"nodes": ""}}, "nodes"),
        ({"launch": {"preflight": ""}}, "preflight"),
    ],
)
def test_values_in_range_that_no_run_can_use(keys: dict[str, Any], match: str) -> None:
    with pytest.raises(UserError, match=match):
        RunSpec.parse({**LEAST, **keys}, "run.yaml")


def test_what_files_write_for_numbers_stays() -> None:
    run = RunSpec.parse({**LEAST, "train": {"steps": 1e3}, "optimizer": {"lr": 1, "clip_norm": 1e9}})
    assert (run.train.steps, run.optimizer.dump()["lr"], run.optimizer.dump()["clip_norm"]) == (1000, 1.0, 1e9)
    assert LaunchSpec.parse({"env": {"A": ""}}).env == {"A": ""}


def test_what_older_releases_took_for_null_is_null() -> None:
    """Their folders hold it: the run that was trained, and the model in its checkpoint."""
    texts = {
        name: ""
        for name, field in LaunchSpec.model_fields.items()
        if field.annotation in (str, str | None) and name != "time_limit"
    }
    site = LaunchSpec.parse({**texts, "setup": ["", "a", ""]})
    assert site == LaunchSpec.parse({"setup": ["a"]})
    run = RunSpec.parse({**LEAST, "out_dir": "", "name": "small"})
    assert run.dump() == RunSpec.parse({**LEAST, "name": "small"}).dump()
    assert tiny_model(name="", family="") == tiny_model()


def tiny_model(**keys: str) -> ModelSpec:
    return load_model_spec("tiny").replace(name="model", family="llama").replace(**keys)


@pytest.mark.parametrize("number", [1e-38, 1e-40, 1e-45])
def test_numbers_that_fp32_has_below_its_normal_ones(number: float) -> None:
    run = RunSpec.parse({**LEAST, "optimizer": {"eps": number, "lr": number}})
    assert (run.optimizer.dump()["eps"], run.optimizer.dump()["lr"]) == (number, number)
