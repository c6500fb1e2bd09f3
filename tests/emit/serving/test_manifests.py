"""Dynamo's and KServe's manifests: roles, sizes, devices and nodes, and flags that the engine's own line has."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml
from tests.emit.serving.answers import answer

from scalewright.emit.serving.write import write


def document(target: str, question: str, engine: str = "vllm") -> dict[str, Any]:
    text = write(target, answer(question, engine)).files["deploy.yaml"]
    assert "*id" not in text  # each part is whole
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def main(component: dict[str, Any]) -> dict[str, Any]:
    (container,) = component["podTemplate"]["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize(
    ("engine", "model"), [("vllm", "--model"), ("sglang", "--model-path"), ("tensorrt-llm", "--model")]
)
def test_dynamo_has_a_component_a_role(engine: str, model: str) -> None:
    graph = document("dynamo", "apart", engine)
    assert (graph["apiVersion"], graph["kind"]) == ("nvidia.com/v1beta1", "DynamoGraphDeployment")
    front, prefill, decode = graph["spec"]["components"]
    assert front["type"] == "frontend"
    assert (prefill["type"], prefill["replicas"], decode["type"], decode["replicas"]) == ("prefill", 1, "decode", 4)
    for part, role in ((prefill, "prefill"), (decode, "decode")):
        args = main(part)["args"]
        assert args[args.index("--disaggregation-mode") + 1] == role
        assert args[args.index(model) + 1] == "meta-llama/Llama-3.1-70B"
        assert main(part)["resources"] == {"limits": {"nvidia.com/gpu": "2"}}
        assert all(isinstance(word, str) for word in args)


def test_dynamo_over_two_nodes() -> None:
    _, worker = document("dynamo", "experts")["spec"]["components"]
    assert worker["multinode"] == {"nodeCount": 2}
    assert main(worker)["resources"] == {"limits": {"nvidia.com/gpu": "8"}}


def test_kserve_has_sizes_and_the_rest_as_flags() -> None:
    spec = document("kserve", "apart")["spec"]
    assert spec["model"]["uri"] == "hf://meta-llama/Llama-3.1-70B"
    assert (spec["replicas"], spec["prefill"]["replicas"]) == (4, 1)
    assert spec["parallelism"] == spec["prefill"]["parallelism"] == {"tensor": 2}
    (container,) = spec["template"]["containers"]
    (variable,) = container["env"]
    words = shlex.split(variable["value"])
    assert words[words.index("--max-num-seqs") + 1] == "1024"
    assert not {"--tensor-parallel-size", "--pipeline-parallel-size"} & set(words)
    assert words[words.index("--kv-transfer-config") + 1].startswith("{")


def test_kserve_with_experts_over_two_nodes() -> None:
    spec = document("kserve", "experts")["spec"]
    assert spec["parallelism"] == {"tensor": 1, "data": 16, "dataLocal": 8, "expert": True}
    assert spec["worker"] == spec["template"]


def test_another_engine_is_reported() -> None:
    others = (("kserve", answer("plain", "sglang")), ("dynamo", {**answer("plain"), "engine": "jetstream"}))
    for target, asked in others:
        assert [item.key for item in write(target, asked).changed] == ["engine", "max_batched_tokens"]
    assert write("dynamo", answer("plain", "sglang")).exact
