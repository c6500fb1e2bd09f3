"""Every rule speaks of its failing fixture alone, and none of a clean start."""

from __future__ import annotations

import pytest

from launch.preflight.cases import CASES, START, Case
from launch.preflight.templates import JOBS, SLURM_H100, SRUN, STARTS, both, env, machine, place
from scalewright.launch.preflight.facts import NEEDS, Facts
from scalewright.launch.preflight.rules import RULES, check, merge, stop_for
from scalewright.spec.errors import UserError


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.rule}" for number, case in enumerate(CASES)])
def test_a_rule_speaks_of_its_failing_fixture_alone(case: Case) -> None:
    findings = check(case.broken(case.clean), *case.moments)
    assert [finding.rule for finding in findings] == [case.rule]
    line = findings[0].line
    assert case.words in line
    assert "\n" not in line
    assert findings[0].how
    assert check(case.mended(case.clean), *case.moments) == ()


def test_every_rule_has_a_failing_fixture() -> None:
    assert {case.rule for case in CASES} == {rule.name for rule in RULES}
    assert len(RULES) == len({rule.name for rule in RULES}) >= 40


@pytest.mark.parametrize("name", [*STARTS, *JOBS])
def test_no_rule_speaks_on_a_clean_start(name: str) -> None:
    facts = {**STARTS, **JOBS}[name]
    assert check(facts, *(("submit",) if facts.place.target else START)) == ()


def test_rules_name_their_source_and_needs_that_exist() -> None:
    for rule in RULES:
        assert len(rule.source) > 5
        assert set(rule.needs) <= set(NEEDS)
        assert rule.title[0] in "`" or rule.title[0].isalpha()


def test_nothing_known_is_nothing_said() -> None:
    assert check(Facts(), "meeting", "node", "nodes", "submit") == ()
    assert check(Facts(gpus=True), "meeting", "node", "nodes", "submit") == ()


def test_problems_come_first_and_stop_a_start() -> None:
    facts = both(env(NCCL_DEBUG="INFO"), machine(port_taken=True), place(port=70000))(SRUN)
    findings = check(facts, *START)
    assert [finding.severity for finding in findings] == ["problem", "problem", "warn"]
    with pytest.raises(UserError) as caught:
        stop_for(findings, "stop")
    assert "MASTER_PORT=70000 is no port (environment): choose" in str(caught.value)
    assert str(caught.value).startswith("2 things to mend: ")
    assert "(environment): end what holds it" in str(caught.value)
    assert "launch.preflight=warn" in str(caught.value)
    assert stop_for(findings, "warn") == findings
    assert stop_for(findings[2:], "stop") == findings[2:]


@pytest.mark.parametrize(
    ("holder", "what", "how"),
    [
        ("", "is taken by an earlier run", "end what holds it (ss -ltnp 'sport = :29500')"),
        ("process 7 (python a.py)", "is taken by process 7 (python a.py)", "end it (kill 7), or take another port"),
    ],
)
def test_a_taken_port_names_who_has_it(holder: str, what: str, how: str) -> None:
    (finding,) = check(both(machine(port_taken=True, port_holder=holder), place(port=29500))(SRUN), "meeting")
    assert finding.what.endswith(what)
    assert finding.how.startswith(how)


def test_a_finding_of_several_nodes_stands_once() -> None:
    (debug,) = check(env(NCCL_DEBUG="INFO")(SLURM_H100), "node")
    (port,) = check(machine(port_taken=True)(SRUN), "meeting")
    together = merge([("n1", [debug]), ("n2", [debug, port]), ("n3", [debug]), ("n4", [debug])])
    assert [finding.rule for finding in together] == ["port-taken", "nccl-debug"]
    assert "(environment on n1, n2, n3 and 1 more)" in together[1].line
    assert "(environment on n2)" in together[0].line
