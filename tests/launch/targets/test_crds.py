"""Every CEL rule of the vendored CRDs, on an object that keeps it and on one that breaks it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from tests.launch.targets.crd import SCHEMAS, all_rules, crd
from tests.launch.targets.sites import job

from scalewright.launch.targets.kubernetes import write

NAMES = sorted(path.name.removesuffix(".json.gz") for path in SCHEMAS.glob("*.json.gz"))

IN_ORDER = (
    "!(has(self.startupPolicy) && self.startupPolicy.startupPolicyOrder == 'InOrder' && "
    "self.replicatedJobs.exists(x, has(x.dependsOn)))"
)
NO_NAMESPACE = "self.templates.all(t, !has(t.metadata.namespace) || size(t.metadata.namespace) == 0)"
IMMUTABLE = "self == oldSelf"
ONE_POLICY = (
    "[has(self.torch), has(self.mpi), has(self.jax), has(self.xgboost),has(self.flux)].filter(x, x).size() <= 1"
)


@dataclass(frozen=True)
class Case:
    """A rule, and keys of an object (as paths) with which it holds and doesn't; `old`: those before."""

    name: str
    rule: str
    good: dict[str, Any]
    bad: dict[str, Any]
    old: dict[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.rule[:40]}"


def second(prefix: str, order: str) -> dict[str, Any]:
    """A second replicated job that waits for the first, beside a policy of the order."""
    waits = {"name": "later", "template": {}, "dependsOn": [{"name": "node", "status": "Complete"}]}
    return {f"{prefix}.replicatedJobs.1": waits, f"{prefix}.startupPolicy": {"startupPolicyOrder": order}}


def volume(**metadata: str) -> list[dict[str, Any]]:
    """A policy with a template of a claim."""
    return [{"templates": [{"metadata": {"name": "data", **metadata}, "spec": {}}]}]


CASES = [
    Case("jobset", IN_ORDER, second("spec", "AnyOrder"), second("spec", "InOrder")),
    Case(
        "jobset", NO_NAMESPACE, {"spec.volumeClaimPolicies": volume()},
        {"spec.volumeClaimPolicies": volume(namespace="other")},
    ),
    Case("jobset", IMMUTABLE, {}, {"spec.failurePolicy.maxRestarts": 9}, old={}),
    Case(
        "pytorchjob", IMMUTABLE, {"spec.runPolicy.schedulingPolicy": {"queue": "a"}},
        {"spec.runPolicy.schedulingPolicy": {"queue": "b"}},
        old={"spec.runPolicy.schedulingPolicy": {"queue": "a"}},
    ),
    Case(
        "trainingruntime",
        ONE_POLICY,
        {"spec.mlPolicy": {"jax": {}}}, {"spec.mlPolicy": {"torch": {}, "jax": {}}},
    ),
    Case(
        "trainingruntime", "self >= 1", {"spec.mlPolicy": {"mpi": {"numProcPerNode": 1}}},
        {"spec.mlPolicy": {"mpi": {"numProcPerNode": 0}}},
    ),
    Case(
        "trainingruntime", "!self.exists(c, c == 'node')",
        {"spec.mlPolicy.torch.envInjection": {"targets": [{"jobName": "node", "containerNames": ["side"]}]}},
        {"spec.mlPolicy.torch.envInjection": {"targets": [{"jobName": "node", "containerNames": ["node"]}]}},
    ),
    Case(
        "trainingruntime", IN_ORDER, second("spec.template.spec", "AnyOrder"),
        second("spec.template.spec", "InOrder"),
    ),
    Case(
        "trainingruntime", NO_NAMESPACE, {"spec.template.spec.volumeClaimPolicies": volume()},
        {"spec.template.spec.volumeClaimPolicies": volume(namespace="other")},
    ),
    Case("trainingruntime", IMMUTABLE, {}, {"spec.template.spec.failurePolicy.maxRestarts": 9}, old={}),
    Case(
        "trainjob", "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')", {"metadata.name": "run-1"},
        {"metadata.name": "1-run"},
    ),
    Case(
        "trainjob", "size(self.metadata.name) <= 63", {"metadata.name": "a" * 63},
        {"metadata.name": "a" * 64},
    ),
    Case("trainjob", IMMUTABLE, {}, {"spec.trainer.numNodes": 9}, old={}),
    Case(
        "trainjob", "self == '' || self.matches('^[A-Za-z][A-Za-z0-9+.-]*://.+$')",
        {"spec.initializer": {"dataset": {"storageUri": "hf://team/data"}}},
        {"spec.initializer": {"dataset": {"storageUri": "/data"}}},
    ),
    Case(
        "trainjob", "self in ['trainer.kubeflow.org/trainjob-controller', 'kueue.x-k8s.io/multikueue']",
        {"spec.managedBy": "kueue.x-k8s.io/multikueue"}, {"spec.managedBy": "me"},
    ),
    Case("trainjob", "self >= 1", {"spec.trainer.numProcPerNode": 1}, {"spec.trainer.numProcPerNode": 0}),
    Case(
        "trainjob", "has(self.lastUpdatedTime)",
        {"status": {"trainerStatus": {"lastUpdatedTime": "2026-11-25T00:00:00Z"}}},
        {"status": {"trainerStatus": {"progressPercentage": 5}}},
    ),
]  # fmt: skip


def manifest(name: str) -> Any:
    """The object of that kind that `launch kubernetes` writes."""
    kind = "trainjob" if name == "trainingruntime" else name
    (text,) = write(job(kubernetes=kind)).files.values()
    return next(body for body in yaml.safe_load_all(text) if body["kind"].lower() == name)


def changed(body: Any, keys: dict[str, Any]) -> Any:
    """The object with keys of keys set; a number is a position in a list, or the end of one."""
    body = copy.deepcopy(body)
    for path, value in keys.items():
        *parents, last = path.split(".")
        place = body
        for key in parents:
            place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
        if isinstance(place, list):
            place.insert(int(last), value)
        else:
            place[last] = value
    return body


def test_every_rule_has_a_case():
    for name in NAMES:
        rules = {rule for schema in crd(name).versions.values() for _, rule in all_rules(schema)}
        assert rules == {case.rule for case in CASES if case.name == name}, name


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_object_that_keeps_the_rule(case):
    base = manifest(case.name)
    body, old = changed(base, case.good), () if case.old is None else (changed(base, case.old),)
    assert crd(case.name).check(body, *old) == []


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_object_that_breaks_the_rule(case):
    """And no other one: the line has the rule's own message."""
    base = manifest(case.name)
    body, old = changed(base, case.bad), () if case.old is None else (changed(base, case.old),)
    lines = crd(case.name).check(body, *old)
    messages = {rule.get("message", rule["rule"]) for rule in rule_records(case.name) if rule["rule"] == case.rule}
    assert len(lines) == 1
    assert lines[0].partition(": ")[2] in messages


def rule_records(name: str) -> list[dict[str, str]]:
    """Every rule of a kind, with its message."""
    found: list[dict[str, str]] = []

    def walk(part: Any) -> None:
        if isinstance(part, dict):
            found.extend(part.get("x-kubernetes-validations", []))
        for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            walk(inner)

    walk(crd(name).versions)
    return found


BROKEN = [
    ("jobset", {"spec.failurePolicy.rules.0": {"name": "x", "action": "Restart"}}, "is not one of"),
    ("jobset", {"spec.network.dns": True}, "'dns' was unexpected"),
    ("jobset", {"spec.suspend": "yes"}, "is not of type 'boolean'"),
    ("trainjob", {"spec.trainer.numGpus": 8}, "'numGpus' was unexpected"),
    ("trainjob", {"spec.trainer.numProcPerNode": "auto"}, "is not of type 'integer'"),
    ("trainjob", {"spec.trainer.env": [{"name": "A", "value": 1}]}, "is not of type 'string'"),
    ("pytorchjob", {"spec.nprocPerNode": 8}, "is not of type 'string'"),
    ("pytorchjob", {"metadata.labels": {"a": "b/c"}}, "does not match"),
]


@pytest.mark.parametrize(("name", "keys", "text"), BROKEN)
def test_what_a_schema_refuses(name, keys, text):
    body = changed(manifest(name), keys)
    assert any(text in line for line in crd(name).check(body)) or pytest.fail(str(crd(name).check(body)))
