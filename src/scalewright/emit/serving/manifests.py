"""Manifests for Kubernetes: NVIDIA Dynamo's DynamoGraphDeployment and KServe's LLMInferenceService.

    dynamo    a frontend, and one component a role: command, flags, devices, replicas, nodes of each
    kserve    spec: model, replicas, parallelism, template; the same again under `prefill`; vLLM alone

Forms as of ai-dynamo 1.6.1 (dynamo/profiler/templates/dgd) and KServe 0.21 (pkg/apis/serving/v1alpha2): Apache 2.0.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from scalewright.emit.emitted import Emitted, yaml_text
from scalewright.emit.serving.deployment import Deployment, Report
from scalewright.emit.serving.engines import ENGINES, adapted, flags_of, options
from scalewright.spec.common.shell import line

DYNAMO, KSERVE = "1.6.1", "0.21"
RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "google": "google.com/tpu", "intel": "habana.ai/gaudi"}
RUNTIME = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrtllm"}
NEARBY = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--enable-expert-parallel")


def dynamo(d: Deployment, report: Report) -> Emitted:
    """Dynamo's graph, over the engine that was priced."""
    engine = engine_for(d, report)
    d = adapted(engine, d, report)
    image = f"nvcr.io/nvidia/ai-dynamo/{RUNTIME[engine]}-runtime:{DYNAMO}"
    front = {"name": "main", "image": image, "command": ["python3"], "args": ["-m", "dynamo.frontend"]}
    components: list[dict[str, Any]] = [
        {"name": "Frontend", "type": "frontend", "replicas": 1, "podTemplate": {"spec": {"containers": [front]}}}
    ]
    for role, replicas in d.roles:
        main = {
            "name": "main", "image": image, "command": ["python3", "-m", f"dynamo.{engine}"],
            "args": _dynamo_flags(engine, d, report, role), "resources": _resources(d),
        }  # fmt: skip
        part: dict[str, Any] = {"name": role or "worker", "type": role or "worker", "replicas": replicas}
        if d.nodes_each > 1:
            part["multinode"] = {"nodeCount": d.nodes_each}
        components.append({**part, "podTemplate": {"spec": {"containers": [main]}}})
    data: dict[str, object] = {
        "apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment", "metadata": {"name": d.name},
        "spec": {"components": components},
    }  # fmt: skip
    report.assume("the images may reach the checkpoint: a gated one needs a secret with HF_TOKEN (envFrom)")
    return _emitted("dynamo", DYNAMO, data, report)


def _dynamo_flags(engine: str, d: Deployment, report: Report, role: str) -> list[str]:
    flags = ENGINES[engine].flags(d, report, "")
    mode = ["--disaggregation-mode", role] if role else []
    if engine == "vllm":
        transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
        moved = ["--kv-transfer-config", json.dumps(transfer)] if role == "prefill" else []
        return ["--model", d.checkpoint, *flags, *mode, *moved]
    if engine == "sglang":
        if role:
            mode += ["--disaggregation-transfer-backend", "nixl", "--host", "0.0.0.0"]
        return ["--model-path", d.checkpoint, *flags, *mode]
    sizes = {
        "--tensor-parallel-size": d.tp, "--pipeline-parallel-size": d.pp,
        "--expert-parallel-size": d.ep if d.ep > 1 else None, "--enable-attention-dp": d.attention_dp > 1,
        "--max-batch-size": d.max_seqs, "--max-num-tokens": d.batched_tokens, "--max-seq-len": d.max_len,
        "--free-gpu-memory-fraction": d.free_share, "--gpus-per-node": d.per_node if d.nodes_each > 1 else None,
    }  # fmt: skip
    more = {key: value for key, value in options(d, report, role).items() if key != "enable_attention_dp"}
    return ["--model", d.checkpoint, *flags_of(sizes), *mode, "--override-engine-args", json.dumps(more)]


def kserve(d: Deployment, report: Report) -> Emitted:
    """KServe's LLMInferenceService: vLLM behind its own router and scheduler."""
    if d.priced_as != "vllm":
        report.change("engine", d.priced_as, "vllm", "LLMInferenceService runs vLLM: price that (--engine vllm)")
    d = adapted("vllm", d, report)
    spec: dict[str, Any] = {
        "model": {"uri": _uri(d.checkpoint), "name": d.checkpoint},
        **_workload(d, report, "decode" if d.prefill else "", d.replicas),
    }
    if d.prefill:
        spec["prefill"] = _workload(d, report, "prefill", d.prefill)
    spec["router"] = {"route": {}, "gateway": {}, "scheduler": {}}
    data: dict[str, object] = {
        "apiVersion": "serving.kserve.io/v1alpha2", "kind": "LLMInferenceService", "metadata": {"name": d.name},
        "spec": spec,
    }  # fmt: skip
    return _emitted("kserve", KSERVE, data, report)


def _workload(d: Deployment, report: Report, role: str, replicas: int) -> dict[str, Any]:
    """One role: its sizes, where KServe has words for them; the rest as vLLM's own flags."""
    flags = ENGINES["vllm"].flags(d, report, role)
    sizes: dict[str, Any] = {"tensor": d.tp // d.attention_dp}
    if d.pp > 1:
        sizes["pipeline"] = d.pp
    if d.attention_dp > 1:
        sizes |= {"data": d.attention_dp, "dataLocal": max(1, d.attention_dp // d.nodes_each)}
    if d.ep > 1:
        sizes["expert"] = True
    rest = line(_without(flags, NEARBY))
    main = {"name": "main", "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": rest}], "resources": _resources(d)}
    pods = {"template": {"containers": [main]}}
    if d.nodes_each > 1:
        pods["worker"] = {"containers": [deepcopy(main)]}  # or YAML refers to the first
    return {"replicas": replicas, "parallelism": sizes, **pods}


def _without(flags: list[str], names: tuple[str, ...]) -> list[str]:
    """The flags but these, with their values."""
    kept: list[str] = []
    skipping = False
    for word in flags:
        skipping = word in names if word.startswith("--") else skipping
        if not skipping:
            kept.append(word)
    return kept


def _uri(checkpoint: str) -> str:
    """A hub's name as hf://; what has a scheme already, and a folder of a volume (pvc://), as it is."""
    return checkpoint if "://" in checkpoint else f"hf://{checkpoint}"


def _resources(d: Deployment) -> dict[str, Any]:
    name = RESOURCES.get(d.vendor, f"{d.vendor}.com/gpu")
    return {"limits": {name: str(min(d.devices, d.per_node))}}


def engine_for(d: Deployment, report: Report) -> str:
    """The engine that was priced, where it can be launched; else vLLM, which is reported."""
    for name, engine in ENGINES.items():
        if d.priced_as in engine.names:
            return name
    report.change("engine", d.priced_as, "vllm", "what was priced is another engine's speed: price vllm")
    return "vllm"


def _emitted(target: str, version: str, data: dict[str, object], report: Report) -> Emitted:
    text = yaml_text((f"Written by `scalewright emit {target}`, for {target} {version}.",), data)
    return Emitted(
        target, version, {"deploy.yaml": text}, "kubectl apply -f deploy.yaml", tuple(report.dropped.values()),
        tuple(report.changed.values()), tuple(report.assumed),
    )  # fmt: skip
