"""Whether serving engines' own parsers take what `emit` writes: for the tests' questions, and for random layouts.

    python comparisons/serving_parsers.py sglang --count 60 [--seed 1]        some minutes, no GPU

Each needs the engine's Python files on the path (`pip install --no-deps`, and what its parser then imports): vllm,
sglang; dynamo (ai-dynamo) with the engine that it launches; kserve with kubernetes. TensorRT-LLM's package on PyPI is a
stub that fetches its wheel elsewhere: Dynamo's parser of its flags is asked. Control: a wrong flag, a wrong value.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import yaml
from harness.facts import facts
from harness.parsers.words import words
from harness.result import Result, facts_text, table

import scalewright as sw
from scalewright.emit.emitted import Emitted
from scalewright.emit.serving.write import write
from scalewright.spec.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # questions are the tests'
OURS = ("--host", "--port", "--disaggregation-bootstrap-port")  # of the server around the engine
MODELS = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "gpt-oss-120b",
    "mixtral-8x7b",
    "gemma-3-27b",
)
NAMES = {"vllm": "vllm", "sglang": "sglang", "dynamo": "ai-dynamo", "kserve": "kserve"}
PRICED = {
    "vllm": ("vllm",), "sglang": ("sglang",), "dynamo": ("sglang", "vllm", "tensorrt-llm"), "kserve": ("vllm",),
}  # fmt: skip
CONTROLS = {
    "vllm": {"a flag": ("--max-model-len", "--max-model-lengths"), "a value": ("bfloat16", "bf15")},
    "sglang": {"a flag": ("--context-length", "--context-lengths"), "a value": ("bf16", "bf15")},
    "dynamo": {"a flag": ("--context-length", "--context-lengths"), "a value": ("bf16", "bf15")},
    "kserve": {"a size": ("tensor:", "tensors:"), "a key of a pod": ("resources:", "resource:")},
}  # fmt: skip
Judge = Callable[[Emitted, str], None]  # raises what the parser raises


def main() -> None:
    """Emits, asks, and writes the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("engine", choices=NAMES)
    parser.add_argument("--count", type=int, default=40, help="random layouts that fit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where the result goes")
    options = parser.parse_args()
    judge, version = JUDGES[options.engine](), metadata.version(NAMES[options.engine])
    title = f"{options.engine}'s own parser on served models"
    result = Result(f"serving-parsers-{options.engine}", title, facts(), options.out)
    result.data |= {"engine": options.engine, "version": version, "seed": options.seed}
    result.say(facts_text(result.data["facts"]), f"- {options.engine} {version}")
    rows = list(asked(options.engine, judge, options.count, options.seed))
    result.put("answers", rows)
    refused = Counter(row["refusal"] for row in rows if row["refusal"])
    lost = sum(bool(row["lost"]) for row in rows)
    accepted = len(rows) - refused.total()
    result.say(
        f"Of {len(rows)} served models {accepted} accepted, {refused.total()} refused; of {lost} something is reported."
    )
    if refused:
        result.say(table(["refused", "times"], [[why, times] for why, times in refused.most_common()]))
    for what, wrong in CONTROLS.get(options.engine, CONTROLS["vllm"]).items():
        result.say(f"Control, {what} that it hasn't: {control(options.engine, judge, wrong)}.")
    result.close()


def asked(engine: str, judge: Judge, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """What became of the tests' questions and of random layouts."""
    from tests.emit.serving.answers import QUESTIONS, answer

    for name in QUESTIONS:
        for priced in PRICED[engine]:
            yield row(f"{name}, {priced}", engine, judge, answer(name, priced))
    draw, done = random.Random(seed), 0
    while done < count:
        keys = drawn(draw)
        model, cluster, priced = keys.pop("model"), keys.pop("cluster"), draw.choice(PRICED[engine])
        try:
            answered = sw.inference(model, cluster, 1024, 256, engine=priced, explain=False, **keys)
        except UserError:
            continue
        if answered["fits"]:
            done += 1
            yield row(f"{model} on {cluster}, {priced}, {keys}", engine, judge, dict(answered))


def drawn(draw: random.Random) -> dict[str, Any]:
    """A random layout, format and load."""
    tp = draw.choice((1, 2, 4, 8, 16))
    layout = {"tp": tp, "pp": draw.choice((1, 1, 1, 2)), "replicas": draw.choice((1, 1, 2, 3))}
    if draw.random() < 0.4:
        layout |= {"ep": tp, "attention_dp": draw.choice((1, tp))}
    if draw.random() < 0.3:
        layout["prefill"] = draw.choice((1, 2))
    keys = {
        "model": draw.choice(MODELS), "cluster": draw.choice(("dgx-h100", "hgx-h200", "dgx-b200")), "layout": layout,
        "precision": draw.choice((None, "bf16", "fp8", "int4", "fp4")), "kv_precision": draw.choice((None, "fp8")),
        "concurrency": draw.choice((1, 16, 256)), "prefix_hit": draw.choice((None, 0.5)),
    }  # fmt: skip
    if draw.random() < 0.3:
        keys["speculate"] = {"tokens": draw.choice((1, 3)), "accept": 0.7, "cost": draw.choice((0.0, 0.05))}
    return keys


def row(name: str, engine: str, judge: Judge, answered: dict[str, Any]) -> dict[str, Any]:
    """An answer's outcome."""
    emitted = write(engine, answered)
    lost = [item.key for item in (*emitted.dropped, *emitted.changed)]
    return {"question": name, "lost": lost, "refusal": refusal(judge, emitted, answered["engine"])}


def refusal(judge: Judge, emitted: Emitted, priced: str) -> str:
    """The parser's words; "" where it accepts."""
    quiet = io.StringIO()
    try:
        with contextlib.redirect_stderr(quiet), contextlib.redirect_stdout(quiet):
            judge(emitted, priced)
    except SystemExit:  # argparse's
        return quiet.getvalue().strip().splitlines()[-1][-300:]
    except Exception as error:
        return words(error)
    return ""


def control(engine: str, judge: Judge, wrong: tuple[str, str]) -> str:
    """What it says of the first question with a wrong word in its place."""
    from tests.emit.serving.answers import answer

    priced = PRICED[engine][0]
    right = write(engine, answer("plain", priced))
    files = {name: text.replace(*wrong) for name, text in right.files.items()}
    assert files != dict(right.files)
    said = refusal(judge, Emitted(right.trainer, right.version, files, right.command), priced)
    return said or "nothing"


def lines(emitted: Emitted) -> Iterator[list[str]]:
    """The engine's own flags of every server that a script starts."""
    from tests.emit.serving.started import started

    with tempfile.TemporaryDirectory() as folder:
        nodes = re.findall(r"^(\d+)\)$", emitted.files["serve.sh"], re.M)
        for node in map(int, nodes or ["0"]):
            for line in started(Path(folder), emitted, node):
                if "sglang_router.launch_router" not in line:
                    yield line[2:]


def bare(flags: list[str]) -> list[str]:
    """Without those of the server around the engine, and without the verb."""
    kept: list[str] = []
    skipping = False
    for word in flags:
        if word in OURS:
            skipping = True
        elif skipping:
            skipping = False
        elif word not in ("serve", "-m", "sglang.launch_server", "--headless"):
            kept.append(word)
    return kept


def vllm() -> Judge:
    """AsyncEngineArgs by their FlexibleArgumentParser, then the dataclass itself; a CPU stands in for the GPU."""
    _stand_in()
    arguments: Any = import_module("vllm.engine.arg_utils").AsyncEngineArgs
    flexible: Any = import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    parser = arguments.add_cli_args(flexible())

    def judge(emitted: Emitted, priced: str) -> None:
        for line in lines(emitted):
            model, *flags = bare(line)
            arguments.from_cli_args(parser.parse_args(["--model", model, *flags]))

    return judge


def sglang() -> Judge:
    """ServerArgs by its own argparse, then the record itself."""
    server: Any = import_module("sglang.srt.server_args").ServerArgs
    parser = argparse.ArgumentParser()
    server.add_cli_args(parser)

    def judge(emitted: Emitted, priced: str) -> None:
        for line in lines(emitted):
            server.from_cli_args(parser.parse_args(bare(line)))

    return judge


def dynamo() -> Judge:
    """Its model of a graph, then the flags of each worker by the engine's parser and by its own."""
    for name in ABSENT:  # not on PyPI, and asked for nothing here
        sys.modules.setdefault(name, MagicMock())
    fields = {key: SimpleNamespace(default=None) for key in TRTLLM_LIMITS}
    sys.modules["tensorrt_llm.llmapi"].BuildConfig = SimpleNamespace(model_fields=fields)  # type: ignore[attr-defined]
    config: Any = import_module("dynamo.profiler.utils.config").Config
    engines: dict[str, Any] = {}

    def judge(emitted: Emitted, priced: str) -> None:
        graph = config.model_validate(yaml.safe_load(emitted.files["deploy.yaml"]))
        for component in graph.spec.components[1:]:
            (main,) = component.podTemplate.spec.containers
            engine = main.command[-1].removeprefix("dynamo.")
            own = argparse.ArgumentParser(allow_abbrev=False)
            import_module(f"dynamo.{engine}.backend_args").__dict__[OWN_ARGUMENTS[engine]]().add_arguments(own)
            if engine not in ENGINE_PARSERS:  # TensorRT-LLM's flags are all Dynamo's own
                own.parse_args(main.args)
                continue
            _, rest = own.parse_known_args(main.args)
            if engine not in engines:
                engines[engine] = ENGINE_PARSERS[engine]()
            engines[engine].parse_args(rest)

    return judge


ABSENT = ("aisimulate_core", "aisimulate_core.sdk", "tensorrt_llm", "tensorrt_llm.llmapi")
TRTLLM_LIMITS = ("max_batch_size", "max_num_tokens", "max_seq_len", "max_beam_width")
OWN_ARGUMENTS = {"vllm": "DynamoVllmArgGroup", "sglang": "DynamoSGLangArgGroup", "trtllm": "DynamoTrtllmArgGroup"}


def _stand_in() -> None:
    """The device that vLLM asks for before it lists its flags."""
    platforms: Any = import_module("vllm.platforms")
    platforms._current_platform = import_module("vllm.platforms.cpu").CpuPlatform()


def _vllm_parser() -> Any:
    _stand_in()
    flexible: Any = import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    return import_module("vllm.engine.arg_utils").AsyncEngineArgs.add_cli_args(flexible())


def _sglang_parser() -> Any:
    parser = argparse.ArgumentParser()
    import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    return parser


ENGINE_PARSERS = {"vllm": _vllm_parser, "sglang": _sglang_parser}


def kserve() -> Judge:
    """Its client's model of the service, Kubernetes' of each pod; the flags, where vLLM is here, by vLLM."""
    client: Any = import_module("kubernetes.client").ApiClient()
    package = ModuleType("kserve")  # its models alone: the package itself imports a server
    package.__path__ = [str(metadata.distribution("kserve").locate_file("kserve"))]
    sys.modules["kserve"] = package
    service: Any = import_module("kserve.models.v1alpha2_llm_inference_service").V1alpha2LLMInferenceService

    def judge(emitted: Emitted, priced: str) -> None:
        data = yaml.safe_load(emitted.files["deploy.yaml"])
        names = {theirs: ours for ours, theirs in service.attribute_map.items()}
        service(**{names[key]: value for key, value in data.items()})
        for part in filter(None, (data["spec"], data["spec"].get("prefill"))):
            for pods in filter(None, (part["template"], part.get("worker"))):
                text = json.dumps(pods)
                pod = client.deserialize(text, "V1PodSpec", "application/json")
                if client.sanitize_for_serialization(pod) != pods:
                    raise ValueError("a key of the pod isn't Kubernetes'")
            if set(part["parallelism"]) - SIZES:
                raise ValueError("a size isn't KServe's")

    return judge


SIZES = {"tensor", "pipeline", "data", "dataLocal", "dataRPCPort", "expert"}  # ParallelismSpec, v1alpha2
JUDGES: dict[str, Callable[[], Judge]] = {"vllm": vllm, "sglang": sglang, "dynamo": dynamo, "kserve": kserve}


if __name__ == "__main__":
    main()
