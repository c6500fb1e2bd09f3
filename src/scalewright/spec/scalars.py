"""What a number, a truth value and a text of a spec may be, whatever key they stand in.

    bool    true or false; not 'true', not 1
    int     a whole number of 64 bits, also as 1e3 or 8k (common/numbers.py); not '3', not true
    float   a number that fp32 has, in which training computes: 1e-40, but not 1e300, which is inf there, nor
            1e-300, which is 0; a whole number will do, and 80GiB or 25 Gbit/s of bytes; '3' and true won't
    str     more than spaces (null leaves a key out), in UTF-8, without NUL, which no path may have; values of
            dictionaries may be empty, and so may what is empty by default

It is applied to pydantic's core schema of each class, so that no key needs to ask for it. The state of a
checkpoint isn't narrowed (checkpoint/format.py); values of `Any`, as a user's own arguments, may be
anything. Where an older release took '' for null, the class reads it so (spec/launch.py).
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from pydantic_core import PydanticCustomError, core_schema

from scalewright.spec.common.numbers import number_of

INT64 = (1 << 63) - 1
LARGEST, ZERO = 3.4028234663852886e38, 2.0**-150  # of fp32: its largest, and the largest that rounds to 0
_INSIDE = ("schema", "items_schema", "choices", "keys_schema", "values_schema", "fields")


def narrowed(schema: Any, cls: type, empty: bool = False, name: str = "") -> Any:
    """A class's core schema with these rules, its nested classes as they are; changes `schema` itself.

    `empty`: whether a text may be empty, as a variable's value or a default.
    """
    kind = schema["type"]
    if kind == "model" and schema["cls"] is not cls:
        return schema
    if kind == "bool":
        schema["strict"] = True
    elif kind == "int":
        schema.update(le=min(schema.get("le", INT64), INT64), ge=max(schema.get("ge", -INT64), -INT64))
        return core_schema.no_info_before_validator_function(partial(_whole, name), schema)
    elif kind == "literal" and all(type(value) is int for value in schema["expected"]):
        return core_schema.no_info_before_validator_function(partial(_whole, name), schema)
    elif kind == "float":
        schema.update(strict=True, le=schema.get("le", LARGEST), ge=schema.get("ge", -LARGEST))
        checked = core_schema.no_info_after_validator_function(_in_fp32, schema)
        return core_schema.no_info_before_validator_function(partial(_number, name), checked)
    elif kind == "str":
        return core_schema.no_info_after_validator_function(_text if empty else _filled_text, schema)
    empty = schema.get("default") == "" or (empty and kind != "model-field")
    for key in _INSIDE:
        if key in schema:
            schema[key] = _parts(schema[key], cls, empty or key == "values_schema", name)
    return schema


def _parts(part: Any, cls: type, empty: bool, name: str) -> Any:
    """The schema of a field, those of a list (a choice may have its tag), or of the fields by name."""
    if isinstance(part, (list, tuple)):
        return type(part)(_parts(item, cls, empty, name) for item in part)
    if isinstance(part, dict) and not isinstance(part.get("type"), str):
        return {key: _parts(field, cls, empty, key) for key, field in part.items()}
    return narrowed(part, cls, empty, name) if isinstance(part, dict) else part


def _number(name: str, value: Any) -> Any:
    """A number with a suffix or a unit as a number; any other value as it is."""
    number = number_of(value, name) if isinstance(value, str) else None
    return value if number is None else number


def _whole(name: str, value: Any) -> Any:
    value = _number(name, value)
    if isinstance(value, (str, bool)):
        raise PydanticCustomError("int_type", "it should be a whole number")
    return value


def _in_fp32(value: float) -> float:
    if 0 < abs(value) <= ZERO:
        raise PydanticCustomError("too_small", "it is 0 in fp32: write a larger number, or 0 itself")
    return value


def _text(value: str) -> str:
    if re.search("[\0\ud800-\udfff]", value):
        raise PydanticCustomError("text", "write it in UTF-8, without NUL")
    return value


def _filled_text(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("empty", "write something, or leave the key out")
    return _text(value)
