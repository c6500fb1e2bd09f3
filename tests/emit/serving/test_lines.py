"""serve.sh, run by bash with programs that print what they were given: each server once, on devices of its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml
from tests.emit.serving.answers import answer
from tests.emit.serving.started import started
from tests.emit.serving.test_engines import LOADERS

from scalewright.emit.emitted import Emitted
from scalewright.emit.serving.deployment import deployment
from scalewright.emit.serving.engines import ENGINES
from scalewright.emit.serving.lines import placed
from scalewright.emit.serving.write import write


def value(line: list[str], flag: str) -> str:
    return line[line.index(flag) + 1]


def laid_out(engine: str, question: str, **layout: int) -> Emitted:
    """A question's answer with another layout."""
    asked = answer(question, ENGINES[engine].names[0])
    return write(engine, {**asked, "layout": {**asked["layout"], **layout}})


@pytest.mark.parametrize("engine", LOADERS)
def test_one_server_is_one_line(tmp_path: Path, engine: str) -> None:
    asked = answer("plain", ENGINES[engine].names[0])
    emitted = write(engine, asked)
    d, report = deployment(asked, (), "x")
    (line,) = started(tmp_path, emitted, 0)
    flags = ENGINES[engine].flags(d, report, "")
    assert line[1:] == [
        *ENGINES[engine].launch,
        d.checkpoint,
        *flags,
        *line[1 + len(ENGINES[engine].launch) + 1 + len(flags) :],
    ]
    assert emitted.exact
    assert emitted.command == "bash serve.sh"


def test_copies_on_a_node(tmp_path: Path) -> None:
    """vLLM and SGLang start them; TensorRT-LLM has a server each, on devices of its own."""
    (vllm,) = started(tmp_path, write("vllm", answer("copies")), 0)
    assert value(vllm, "--data-parallel-size") == "4"
    (sglang,) = started(tmp_path, write("sglang", answer("copies", "sglang")), 0)
    assert value(sglang, "--dp-size") == "4"
    lines = started(tmp_path, write("trtllm", answer("copies", "tensorrt-llm")), 0)
    assert sorted(line[0] for line in lines) == ["0,1", "2,3", "4,5", "6,7"]
    assert len({value(line, "--port") for line in lines}) == 4


@pytest.mark.parametrize("engine", LOADERS)
def test_prefill_apart(tmp_path: Path, engine: str) -> None:
    """5 replicas of 2 devices on nodes of 8: one prefills, four decode, the last on a second node."""
    emitted = write(engine, answer("apart", ENGINES[engine].names[0]))
    first, second = started(tmp_path, emitted, 0), started(tmp_path, emitted, 1)
    router = [line for line in first if "sglang_router.launch_router" in line or "disaggregated" in line]
    servers = [line for line in first if line not in router]
    assert sorted(line[0] for line in servers) == ["0,1", "2,3", "4,5", "6,7"]
    assert len(second) == 1
    assert len({value(line, "--port") for line in [*servers, *second]}) == 5
    words = {
        "vllm": ("--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}'),
        "sglang": ("--disaggregation-mode", "prefill"), "trtllm": ("--config", "prefill.yaml"),
    }  # fmt: skip
    flag, wanted = words[engine]
    assert Counter(value(line, flag) == wanted for line in [*servers, *second]) == {True: 1, False: 4}
    assert len(router) == (engine != "vllm")
    if engine == "sglang":
        assert router[0].count("--decode") == 4
    if engine == "trtllm":
        file = yaml.safe_load(emitted.files["disaggregated.yaml"])
        assert (file["context_servers"]["num_instances"], len(file["generation_servers"]["urls"])) == (1, 4)


def test_a_replica_over_two_nodes(tmp_path: Path) -> None:
    vllm = write("vllm", answer("stages"))
    (head,), (other,) = started(tmp_path, vllm, 0), started(tmp_path, vllm, 1)
    assert (value(head, "--nnodes"), value(head, "--node-rank"), value(other, "--node-rank")) == ("2", "0", "1")
    assert value(other, "--master-addr") == "a"
    assert "--headless" in other
    assert "--headless" not in head
    ranks = write("vllm", answer("experts"))
    (head,), (other,) = started(tmp_path, ranks, 0), started(tmp_path, ranks, 1)
    assert (value(head, "--data-parallel-size-local"), value(other, "--data-parallel-start-rank")) == ("8", "8")
    sglang = write("sglang", answer("stages", "sglang"))
    (other,) = started(tmp_path, sglang, 1)
    assert (value(other, "--dist-init-addr"), value(other, "--node-rank")) == ("a:29500", "1")
    trtllm = write("trtllm", answer("stages", "tensorrt-llm"))
    assert started(tmp_path, trtllm, 1) == []
    (line,) = started(tmp_path, trtllm, 0)
    assert line[1:6] == ["mpirun", "-n", "16", "-H", "a:8,b:8"]


def test_each_server_over_nodes_has_a_first_node_of_its_own(tmp_path: Path) -> None:
    for engine, flag, wanted in (("vllm", "--master-addr", "c"), ("sglang", "--dist-init-addr", "c:29500")):
        emitted = laid_out(engine, "stages", replicas=2)
        assert [value(started(tmp_path, emitted, node)[-1], flag) for node in (2, 3)] == [wanted] * 2
    first, other = (started(tmp_path, laid_out("trtllm", "stages", replicas=2), node)[0] for node in (0, 2))
    assert (value(first, "-H"), value(other, "-H")) == ("a:8,b:8", "c:8,d:8")


def test_prefill_apart_is_reached_at_its_own_node(tmp_path: Path) -> None:
    """vLLM listens on a port for each rank of data parallelism."""
    emitted = laid_out("vllm", "apart", attention_dp=2)
    asked = [line[0] for node in (0, 1) for line in started(tmp_path, emitted, node, "1")]
    assert sorted(asked) == [f"10.0.0.1:{5600 + 2 * number}" for number in range(5)]


@pytest.mark.parametrize(
    ("tp", "pp", "replicas", "prefill"), [(2, 1, 7, 0), (8, 1, 3, 1), (8, 2, 2, 0), (3, 1, 5, 0), (4, 3, 2, 1)]
)
def test_no_device_is_given_twice(tp: int, pp: int, replicas: int, prefill: int) -> None:
    base, _ = deployment(answer("plain"), (), "x")
    d = type(base)(**{**vars(base), "tp": tp, "pp": pp, "replicas": replicas, "prefill": prefill})
    held = Counter(
        (server.node, device) for server in placed(d) for device in range(server.first, server.first + server.count)
    )
    assert max(held.values()) == 1
    assert all(device < d.per_node for _, device in held)
    assert Counter(server.role for server in placed(d) if not server.rank) == dict(d.roles)
