"""Checks a custom resource as the API server would: its schema, then the CEL rules of its CRD.

    object ─► unknown fields, types, enums (jsonschema) ─► defaults filled in ─► every rule at every node

A rule with `oldSelf` applies to an update: to a field that was there before. Not checked: webhooks, quotas.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).parent.parent / "schemas"
RULES = "x-kubernetes-validations"
KEEP = "x-kubernetes-preserve-unknown-fields"
NUMBERS = {"int32", "int64", "byte"}  # formats that jsonschema has no word for
ABSENT: Any = object()

LABEL = {"type": "string", "maxLength": 63, "pattern": r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"}
METADATA = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "maxLength": 253, "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"},
        "namespace": {"type": "string", "maxLength": 63, "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
        "labels": {"type": "object", "additionalProperties": LABEL},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


@dataclass(frozen=True)
class Crd:
    """One kind of object: its name, and the schema of each version."""

    group: str
    kind: str
    versions: dict[str, Any]

    def check(self, body: Any, old: Any = ABSENT) -> list[str]:
        """What the API server would refuse, one line each; `old` is the object that `body` updates."""
        group, _, version = body["apiVersion"].rpartition("/")
        if (group, body["kind"]) != (self.group, self.kind) or version not in self.versions:
            return [f"{body['apiVersion']} {body['kind']} isn't {self.group} {self.kind}"]
        schema = self.versions[version]
        lines = schema_errors(schema, body)
        if lines:
            return lines  # rules are for what has the right types
        filled = fill(schema, copy.deepcopy(body))
        before = old if old is ABSENT else fill(schema, copy.deepcopy(old))
        for place, rule, value, previous in applied_rules(schema, filled, before, "$"):
            if not holds(rule["rule"], value, previous):
                lines.append(f"{place}: {rule.get('message', rule['rule'])}")
        return lines


@cache
def crd(name: str) -> Crd:
    """A vendored CRD by the name of its file."""
    return Crd(**json.loads(gzip.decompress((SCHEMAS / f"{name}.json.gz").read_bytes())))


def schema_errors(schema: Any, body: Any) -> list[str]:
    """Where the object isn't as its schema wants it."""
    from jsonschema import Draft202012Validator

    strict = closed(schema)
    strict["properties"]["metadata"] = METADATA
    errors = sorted(Draft202012Validator(strict).iter_errors(body), key=lambda e: [str(p) for p in e.path])
    return [f"$.{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in errors]


def closed(schema: Any) -> Any:
    """An OpenAPI schema as JSON Schema that refuses what it has no word for."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: closed(value) for key, value in schema.items() if not is_plain(key)}
    out |= {key: value for key, value in schema.items() if is_plain(key)}
    if schema.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if isinstance(schema.get("properties"), dict):
        out["properties"] = {name: closed(part) for name, part in schema["properties"].items()}
        if not schema.get(KEEP):
            out.setdefault("additionalProperties", False)
    if schema.get("nullable") and "type" in out:
        out["type"] = [out["type"], "null"]
    if out.get("format") in NUMBERS:
        del out["format"]
    return out


def is_plain(key: str) -> bool:
    """Whether a key's value isn't a schema."""
    return key in {"default", "enum", "required", "properties"}


def parts(schema: Any, value: Any) -> Iterator[tuple[Any, Any, str]]:
    """(key or index, its schema, as a path) of each part of a value that the schema describes."""
    if isinstance(value, dict):
        named, rest = schema.get("properties", {}), schema.get("additionalProperties")
        for key in value:
            if key in named:
                yield key, named[key], f".{key}"
            elif isinstance(rest, dict):
                yield key, rest, f".{key}"
    elif isinstance(value, list) and "items" in schema:
        yield from ((index, schema["items"], f"[{index}]") for index in range(len(value)))


def fill(schema: Any, value: Any) -> Any:
    """The value with the schema's defaults, in place: the server fills them in before it looks at rules."""
    if isinstance(value, dict):
        for key, part in schema.get("properties", {}).items():
            if key not in value and "default" in part:
                value[key] = copy.deepcopy(part["default"])
    for key, part, _ in parts(schema, value):
        fill(part, value[key])
    return value


def applied_rules(schema: Any, value: Any, old: Any, place: str) -> Iterator[tuple[str, Any, Any, Any]]:
    """(where, the rule, `self`, `oldSelf`) of every rule that applies."""
    for rule in schema.get(RULES, []):
        if "oldSelf" not in rule["rule"] or old is not ABSENT:
            yield place, rule, value, old
    for key, part, name in parts(schema, value):
        yield from applied_rules(part, value[key], previous(old, key, schema, value), place + name)


def previous(old: Any, key: Any, schema: Any, value: Any) -> Any:
    """The old value of a part; items of a list are the same where their map keys are."""
    if isinstance(old, dict):
        return old.get(key, ABSENT)
    keys = schema.get("x-kubernetes-list-map-keys")
    if isinstance(old, list) and keys:
        same = [item for item in old if all(item.get(k) == value[key].get(k) for k in keys)]
        return same[0] if same else ABSENT
    return ABSENT


def all_rules(schema: Any, place: str = "$") -> Iterator[tuple[str, str]]:
    """(where, the rule's text) of every rule of a schema."""
    yield from ((place, rule["rule"]) for rule in schema.get(RULES, []))
    for name, part in schema.get("properties", {}).items():
        yield from all_rules(part, f"{place}.{name}")
    if isinstance(schema.get("items"), dict):
        yield from all_rules(schema["items"], f"{place}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from all_rules(schema["additionalProperties"], f"{place}{{}}")


def holds(rule: str, value: Any, old: Any) -> bool:
    """Whether a rule is true of a value."""
    from celpy.adapter import json_to_cel

    names = {"self": json_to_cel(value)}
    if old is not ABSENT:
        names["oldSelf"] = json_to_cel(old)
    return bool(program(rule)(names))


@cache
def program(rule: str) -> Callable[[dict[str, Any]], Any]:
    """The rule, compiled."""
    import celpy

    environment = celpy.Environment()
    return environment.program(environment.compile(rule)).evaluate
