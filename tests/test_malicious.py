"""Files made to harm whoever reads them: nothing runs, nothing outside is touched, time and memory end.

    build(folder) ──► a valid checkpoint, Hugging Face folder, run ──► one thing in it is changed (CASES)
    one child process, its memory limited ──► scalewright.cli.main(arguments) for each case ──► code, output

An attacker can make every checksum right, so cases write COMMIT anew after their change.
"""

from __future__ import annotations

import io
import json
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from model.tiny_specs import make
from scalewright.checkpoint.boxes import StoredBox, StoredTensor
from scalewright.checkpoint.format import Manifest
from scalewright.checkpoint.pieces import describe_file
from scalewright.checkpoint.verify import commit_text
from scalewright.data.prepare import prepare
from scalewright.model.huggingface import write_huggingface
from scalewright.spec.base import write_yaml
from scalewright.spec.tensors import tensors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by RLIMIT_AS")

GIB = 1 << 30
CHILD = """
import json, os, resource, sys, time
import scalewright.serve.load, scalewright.checkpoint.convert, scalewright.train.run, tokenizers, torch
from scalewright.cli import main

with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 3 * 2**30, now + 3 * 2**30))
for line in sys.stdin:
    case = json.loads(line)
    for stream in (sys.stdout, sys.stderr):
        print("BEGIN", case["name"], file=stream, flush=True)
    before = resource.getrusage(resource.RUSAGE_SELF)
    os.chdir(case["cwd"])
    try:
        code = main(case["arguments"])
    except BaseException as error:
        code = repr(error)
    after = resource.getrusage(resource.RUSAGE_SELF)
    grown = (after.ru_maxrss - before.ru_maxrss) * 1024
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    answer = {"name": case["name"], "code": code, "seconds": seconds, "grown": grown}
    sys.stdout.flush()
    print("END", json.dumps(answer), file=sys.stderr, flush=True)
"""

Change = Callable[[Path], None]


class Runs:
    """A pickle that leaves a mark when it is loaded."""

    def __reduce__(self) -> Any:
        return (eval, ("open('PWNED', 'w')",))


# -- what is valid before it is changed ---------------------------------------------------------------


def build(folder: Path) -> None:
    """A run with one checkpoint, a Hugging Face folder, and data, all of one tiny model."""
    model = make("llama")
    step = folder / "run" / "checkpoints" / "step-00000001"
    step.mkdir(parents=True)
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(state, step / "model-00000-000.safetensors")
    stored = {
        name: StoredTensor(
            tuple(value.shape),
            "float32",
            (StoredBox("model-00000-000.safetensors", (0,) * value.dim(), tuple(value.shape), name),),
        )
        for name, value in state.items()
    }
    files = {"model-00000-000.safetensors": describe_file(step / "model-00000-000.safetensors")}
    manifest = Manifest(1, 1, "run", model.spec.dump(), {}, stored, files, version=1)
    (step / "manifest.json").write_text(json.dumps(asdict(manifest)))
    (step / "state.json").write_text('{"step": 1, "samples": 1, "tokens": 1, "optimizer": {}}')
    commit(folder)
    words = {"<|endoftext|>": 0, **{chr(ord("a") + i): i + 1 for i in range(26)}}
    Tokenizer(models.WordLevel(words, unk_token="a")).save(str(folder / "run" / "tokenizer.json"))
    write_huggingface(folder / "hf", model.spec, state.__getitem__, tokenizer_dir=folder / "run")
    assert {tensor.name for tensor in tensors(model.spec)} == set(state)
    (folder / "words.jsonl").write_text("".join(f'{{"text": "a {number}"}}\n' for number in range(99)))
    prepare(
        folder / "words.jsonl", folder / "valid", tokenizer=folder / "run" / "tokenizer.json",
        valid_fraction=0.5, workers=1, progress=None,
    )  # fmt: skip
    (folder / "run" / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 2.0}\n')
    write_yaml(folder / "run" / "run.yaml", {"name": "run", "model": "gpt2", "data": "nowhere"})


def step_of(folder: Path) -> Path:
    return folder / "run" / "checkpoints" / "step-00000001"


def commit(folder: Path) -> None:
    """COMMIT anew, with the checksums of what lies there now."""
    step = step_of(folder)
    (step / "COMMIT").write_text(commit_text(step, 1))


def manifest(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Changes the manifest's data, and writes COMMIT anew."""

    def apply(folder: Path) -> None:
        path = step_of(folder) / "manifest.json"
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))
        commit(folder)

    return apply


def head(name: str, text: str) -> Change:
    """Replaces manifest.json or state.json by a text, and writes COMMIT anew."""

    def apply(folder: Path) -> None:
        (step_of(folder) / name).write_text(text)
        commit(folder)

    return apply


def weights(content: bytes) -> Change:
    """Replaces the checkpoint's tensors by other bytes, with the right checksum in the manifest."""

    def apply(folder: Path) -> None:
        path = step_of(folder) / "model-00000-000.safetensors"
        path.write_bytes(content.ljust(path.stat().st_size, b"\0"))  # as large as the boxes need it
        described = vars(describe_file(path))
        manifest(lambda data: data["files"].update({path.name: described}))(folder)

    return apply


def renamed(name: str) -> Change:
    """The manifest's one file under another name."""

    def change(data: dict[str, Any]) -> None:
        (entry,) = data["files"].values()
        data["files"] = {name: entry}
        for tensor in data["tensors"].values():
            for box in tensor["boxes"]:
                box["file"] = name

    return manifest(change)


def linked(inner: str, target: str) -> Change:
    """Puts a link to a file outside in the place of a file."""

    def apply(folder: Path) -> None:
        path = folder / inner
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(folder / "outside" / target)
        if "step-" in inner:
            commit(folder) if "COMMIT" not in inner else None

    return apply


def written(inner: str, content: str | bytes) -> Change:
    """Puts a file in the place of another."""

    def apply(folder: Path) -> None:
        path = folder / inner
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return apply


def pipe(folder: Path) -> None:
    """A pipe that nobody writes to, in the place of the tensors."""
    import os

    path = step_of(folder) / "model-00000-000.safetensors"
    path.unlink()
    os.mkfifo(path)


def config(**keys: Any) -> Change:
    """Changes keys of the Hugging Face config."""

    def apply(folder: Path) -> None:
        path = folder / "hf" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))

    return apply


def flipped(folder: Path) -> None:
    """One bit of a weight is another, and the size the same."""
    path = step_of(folder) / "model-00000-000.safetensors"
    content = bytearray(path.read_bytes())
    content[-2] ^= 64
    path.write_bytes(content)


def first(data: dict[str, Any]) -> dict[str, Any]:
    """The first tensor's entry in a manifest."""
    entry: dict[str, Any] = next(iter(data["tensors"].values()))
    return entry


def halves(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The box of a tensor's first half of the rows, twice: as many numbers as the tensor has."""
    half = {**entry["boxes"][0], "size": [entry["shape"][0] // 2, *entry["shape"][1:]]}
    return [half, half]


def zipped() -> bytes:
    """Two members of 64 MiB in some kB; their names lead out of the folder."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bomb:
        for name in ("../outside/page.html", "/arr_0.npy"):
            bomb.writestr(name, bytes(1 << 26))
    return file.getvalue()


DEEP = "[" * 200_000
HUGE_HEADER = (1 << 60).to_bytes(8, "little") + b"{}"
LYING = json.dumps({"x": {"dtype": "F32", "shape": [1 << 40, 1 << 20], "data_offsets": [0, 1 << 62]}}).encode()
PICKLE = pickle.dumps(Runs())
SOUND = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
HEADERS = {  # of safetensors files, before eight bytes of numbers
    "a length of 2^63": None,
    "overlapping offsets": {"x": SOUND, "y": SOUND},
    "a hole": {"x": SOUND, "y": {**SOUND, "data_offsets": [8, 12]}},
    "negative offsets": {"x": {**SOUND, "data_offsets": [-4, 0]}},
    "offsets backwards": {"x": {**SOUND, "data_offsets": [4, 0]}},
    "huge offsets": {"x": {**SOUND, "data_offsets": [0, 1 << 63]}},
    "offsets of 2^70": {"x": {**SOUND, "data_offsets": [1 << 70, (1 << 70) + 4]}},
    "another dtype": {"x": {**SOUND, "dtype": "F99"}},
    "a shape of 2^64": {"x": {**SOUND, "shape": [1 << 32, 1 << 32], "data_offsets": [0, 0]}},
    "a shape that is none": {"x": {**SOUND, "shape": [-1, -1]}},
}


def tensor_file(header: Any) -> bytes:
    """A safetensors file; a key twice is one of a text that is no JSON of Python's."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    length = len(text) if header is not None else 1 << 63
    return length.to_bytes(8, "little") + text + bytes(8)


TWICE = f'{{"x": {json.dumps(SOUND)}, "x": {json.dumps({**SOUND, "data_offsets": [4, 8]})}}}'
TEMPLATE = {"chat_template": "{{ cycler.__init__.__globals__.os.system('touch PWNED') }}"}
INDEX = "model.safetensors.index.json"
BOMB = "\n".join(
    ["    a: &a [x, x, x, x, x, x, x, x, x]"]
    + [f"    {b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefghi", "bcdefghij", strict=True)]
)
CODE = {"python": "os:system", "command": "touch PWNED"}
RUN_HEAD = "name: run\nout_dir: trained\n"

GENERATE = ("generate", "run", "--prompt", "a", "--max-tokens", "1")
GENERATE_HF = ("generate", "hf", "--prompt", "a", "--max-tokens", "1")
CONVERT = ("convert", "run", "out")
EVALUATE = ("evaluate", "run", "--data", "valid", "--seq-len", "8", "--batches", "1")
LIST = ("checkpoint", "ls", "run", "--json")
NOTHING: Change = lambda folder: None  # noqa: E731

# name: (what is changed, the command, exit code, a part of the message)
CASES: dict[str, tuple[Change, tuple[str, ...], int, str]] = {
    # valid, so that the others fail for their own reason
    "valid": (NOTHING, GENERATE, 0, ""),
    "valid hf": (NOTHING, GENERATE_HF, 0, ""),
    "valid export": (NOTHING, CONVERT, 0, ""),
    "valid evaluate": (NOTHING, EVALUATE, 0, ""),
    # code
    "model is code": (manifest(lambda d: d.update(model=CODE)), GENERATE, 2, "--trust-code"),
    "model is code, evaluate": (manifest(lambda d: d.update(model=CODE)), EVALUATE, 2, "--trust-code"),
    "data is code": (
        written("run/run.yaml", f"{RUN_HEAD}model: gpt2\ndata: {json.dumps(CODE)}\n"),
        ("evaluate", "run"), 2, "--trust-code",
    ),
    "all is code, report": (
        written("run/run.yaml", f"{RUN_HEAD}model: {json.dumps(CODE)}\ndata: {json.dumps(CODE)}\n"),
        ("report", "run"), 0, "",
    ),
    "pickle for safetensors": (weights(PICKLE), GENERATE, 2, "cannot read"),
    "pickle.bin": (
        lambda f: ((f / "hf/model.safetensors").unlink(), written("hf/pytorch_model.bin", PICKLE)(f))[0],
        GENERATE_HF, 2, "pickle",
    ),
    "auto_map": (config(auto_map={"AutoModelForCausalLM": "evil.Model"}), GENERATE_HF, 0, ""),
    "auto_map and its code": (
        lambda f: (config(auto_map={"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"},
                          trust_remote_code=True)(f), written("hf/evil.py", "open('PWNED', 'w')\n")(f))[0],
        ("convert", "hf", "out"), 0, "",
    ),
    "chat template": (
        written("hf/tokenizer_config.json", json.dumps(TEMPLATE)), GENERATE_HF, 0, "",
    ),
    "chat template, its file": (
        written("hf/chat_template.jinja", TEMPLATE["chat_template"]), ("convert", "hf", "out"), 0, "",
    ),
    "numpy's zip": (
        lambda f: (written("zip.npy", zipped())(f),
                   written("run.yaml", f"{RUN_HEAD}model: gpt2\ndata: zip.npy\n")(f))[0],
        ("train", "run.yaml"), 2, "an archive",
    ),
    "python tag": (
        written("run.yaml", "model: !!python/object/apply:os.system [touch PWNED]\n"),
        ("train", "run.yaml"), 2, "cannot read YAML",
    ),
    # paths
    "path up": (renamed("../../../outside/secret.safetensors"), GENERATE, 2, "outside its folder"),
    "path absolute": (renamed("/etc/passwd"), GENERATE, 2, "outside its folder"),
    "path up, unverified": (
        renamed("../../../outside/secret.safetensors"), (*GENERATE, "--no-verify"), 2, "outside its folder",
    ),
    "path up, verify": (renamed("../x"), ("checkpoint", "verify", "run"), 1, ""),
    "link": (
        linked("run/checkpoints/step-00000001/model-00000-000.safetensors", "secret.safetensors"),
        (*CONVERT, "--no-verify"), 2, "outside its folder",
    ),
    "link for the manifest": (
        linked("run/checkpoints/step-00000001/manifest.json", "secret.json"),
        GENERATE, 2, "outside its folder",
    ),
    "link for the tokenizer": (
        linked("run/tokenizer.json", "secret.json"), CONVERT, 2, "outside its folder",
    ),
    "hf index up": (
        written(f"hf/{INDEX}", json.dumps({"weight_map": {"x": "../outside/secret.safetensors"}})),
        GENERATE_HF, 2, "outside its folder",
    ),
    "hf index absolute": (
        written(f"hf/{INDEX}", json.dumps({"weight_map": {"x": "/etc/passwd"}})),
        GENERATE_HF, 2, "outside its folder",
    ),
    "hf index of no names": (written(f"hf/{INDEX}", '{"weight_map": [1]}'), GENERATE_HF, 2, "damaged"),
    "hf link": (linked("hf/model.safetensors", "secret.safetensors"), GENERATE_HF, 2, "outside its folder"),
    "hf config link": (linked("hf/config.json", "secret.json"), GENERATE_HF, 2, "outside its folder"),
    "report is a link": (linked("run/report.html", "page.html"), ("report", "run"), 2, "--force"),
    "pipe": (pipe, (*GENERATE, "--no-verify"), 2, "not a regular file"),
    # numbers
    "step NaN": (manifest(lambda d: d.update(step=float("nan"))), GENERATE, 2, "damaged manifest"),
    "bytes 1e400": (head("manifest.json", '{"version": 1, "step": 1e400}'), GENERATE, 2, "damaged manifest"),
    "bytes negative": (
        manifest(lambda d: next(iter(d["files"].values())).update(bytes=-1)), GENERATE, 2, "damaged manifest",
    ),
    "size NaN": (manifest(lambda d: first(d).update(shape=[float("nan"), 8])), GENERATE, 2, "damaged"),
    "size true": (manifest(lambda d: first(d).update(shape=[True, 8])), GENERATE, 2, "damaged"),
    "shape 2^60": (
        manifest(lambda d: (first(d).update(shape=[1 << 40, 32]), d["model"].update(vocab_size=1 << 40))),
        GENERATE, 2, "",
    ),
    "box 2^60": (
        manifest(lambda d: (first(d).update(shape=[1 << 30, 1 << 30]),
                            first(d)["boxes"][0].update(size=[1 << 30, 1 << 30]))),
        CONVERT, 2, "larger than its files",
    ),
    "file of 2^60 bytes": (
        manifest(lambda d: (next(iter(d["files"].values())).update(bytes=1 << 60),
                            first(d).update(shape=[1 << 26, 1 << 26]),
                            first(d)["boxes"][0].update(size=[1 << 26, 1 << 26]))),
        (*CONVERT, "--no-verify"), 2, "",
    ),
    "box outside": (
        manifest(lambda d: first(d)["boxes"][0].update(offset=[7, 7])), GENERATE, 2, "outside of it",
    ),
    "box of one row": (
        manifest(lambda d: first(d)["boxes"][0].update(size=[1, first(d)["shape"][1]])),
        GENERATE, 2, "covered",
    ),
    "boxes overlap over a hole": (
        manifest(lambda d: first(d)["boxes"].__setitem__(slice(None), halves(first(d)))),
        GENERATE, 2, "overlap",
    ),
    "dtype is a function": (manifest(lambda d: first(d).update(dtype="load")), GENERATE, 2, "dtype 'load'"),
    "layers 10^12": (
        manifest(lambda d: d["model"].update(num_hidden_layers=10**12)), GENERATE, 2, "num_hidden_layers",
    ),
    "hf layers 10^12": (config(num_hidden_layers=10**12), GENERATE_HF, 2, "num_hidden_layers"),
    "hf heads 10^12": (config(num_attention_heads=10**12, hidden_size=10**12), GENERATE_HF, 2, ""),
    "hf hidden 2^40": (config(hidden_size=1 << 40, head_dim=8), GENERATE_HF, 2, "shape"),
    "hf sizes are words": (config(hidden_size="many"), GENERATE_HF, 2, ""),
    # depth and headers
    "deep manifest": (head("manifest.json", DEEP), GENERATE, 2, "nested too deeply"),
    "deep manifest, ls": (head("manifest.json", DEEP), LIST, 0, '"state": "damaged"'),
    "deep state": (head("state.json", DEEP), GENERATE, 2, "nested too deeply"),
    "state is a list": (head("state.json", "[1]"), GENERATE, 2, "damaged state.json"),
    "deep COMMIT": (
        written("run/checkpoints/step-00000001/COMMIT", DEEP), GENERATE, 2, "COMMIT is damaged",
    ),
    "deep config": (written("hf/config.json", DEEP), GENERATE_HF, 2, "nested too deeply"),
    "config is a list": (written("hf/config.json", "[]"), GENERATE_HF, 2, "expected a JSON object"),
    "deep index": (written(f"hf/{INDEX}", DEEP), GENERATE_HF, 2, "damaged"),
    "deep tokenizer": (written("run/tokenizer.json", DEEP), GENERATE, 2, "damaged tokenizer"),
    "deep plan": (written("plan.json", DEEP), ("report", "plan.json"), 2, "not JSON"),
    "deep metrics": (written("run/metrics.jsonl", DEEP + "\n"), ("report", "run"), 0, ""),
    "deep line": (
        written("lines.jsonl", DEEP + "\n"), ("prepare", "lines.jsonl", "--out", "p"), 2, "line 1, byte 0",
    ),
    "header of 2^60": (weights(HUGE_HEADER), GENERATE, 2, "cannot read"),
    "hf header of 2^60": (written("hf/model.safetensors", HUGE_HEADER), GENERATE_HF, 2, "damaged"),
    "hf header lies": (
        written("hf/model.safetensors", len(LYING).to_bytes(8, "little") + LYING), GENERATE_HF, 2, "damaged",
    ),
    **{f"hf, {name}": (written("hf/model.safetensors", tensor_file(header)), GENERATE_HF, 2, "damaged")
       for name, header in {**HEADERS, "a key twice": TWICE}.items()},
    **{f"checkpoint, {name}": (weights(tensor_file(header)), GENERATE, 2, "cannot read")
       for name, header in {**HEADERS, "a key twice": TWICE}.items()},
    "aliases": (written("run.yaml", f"model:\n  name:\n{BOMB}\n"), ("train", "run.yaml"), 2, "aliases"),
    "aliases, report": (written("run/run.yaml", f"model:\n  name:\n{BOMB}\n"), ("report", "run"), 0, ""),
    "deep yaml": (written("run.yaml", f"model: {DEEP}"), ("train", "run.yaml"), 2, "deep"),
    "deep override": (written("run.yaml", RUN_HEAD), ("train", "run.yaml", f"model={DEEP}"), 2, "deep"),
    # damage that nobody meant
    "flipped, generate": (flipped, GENERATE, 2, "checksum differs"),
    "flipped, convert": (flipped, CONVERT, 2, "checksum differs"),
    "flipped, evaluate": (flipped, EVALUATE, 2, "checksum differs"),
    "flipped, unverified": (flipped, (*GENERATE, "--no-verify"), 0, ""),
    "edited manifest": (
        lambda f: written("run/checkpoints/step-00000001/manifest.json",
                          (step_of(f) / "manifest.json").read_text() + " ")(f),
        GENERATE, 2, "manifest.json has",
    ),
    "edited manifest, ls": (
        lambda f: written("run/checkpoints/step-00000001/manifest.json",
                          (step_of(f) / "manifest.json").read_text() + " ")(f),
        LIST, 0, '"state": "damaged"',
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every case's exit code, message, processor seconds and growth of memory, from one process."""
    root = tmp_path_factory.mktemp("malicious")
    build(root / "as it was")
    requests = []
    for name, (change, arguments, _, _) in CASES.items():
        folder = root / name.replace(" ", "-")
        shutil.copytree(root / "as it was", folder)
        outside = folder / "outside"
        outside.mkdir()
        save_file({"x": torch.zeros(3)}, outside / "secret.safetensors")
        (outside / "secret.json").write_text('{"secret": "SECRET"}')
        (outside / "page.html").write_text("mine")
        change(folder)
        requests.append(json.dumps({"name": name, "cwd": str(folder), "arguments": list(arguments)}))
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input="\n".join(requests),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    shown = {}
    for block in done.stdout.split("BEGIN ")[1:]:
        name, _, text = block.partition("\n")
        shown[name] = text
    found: dict[str, dict[str, Any]] = {}
    for block in done.stderr.split("BEGIN ")[1:]:
        message, end, answer = block.partition("END ")
        name, _, text = message.partition("\n")
        assert end, f"the process ended in '{name}' (exit code {done.returncode}): {text[-500:]}"
        found[name] = {
            **json.loads(answer.splitlines()[0]),
            "error": text,
            "out": shown[name],
            "folder": root / name.replace(" ", "-"),
        }
    assert len(found) == len(CASES), done.stderr[-2000:]
    return found


@pytest.mark.parametrize("name", CASES)
def test_it_ends_in_a_line(answers: dict[str, dict[str, Any]], name: str) -> None:
    answer, (_, _, code, part) = answers[name], CASES[name]
    text = answer["out"] if "--json" in CASES[name][1] else answer["error"]
    assert (answer["code"], part in text) == (code, True), text[-800:]
    assert not any(word in answer["error"] for word in ("unexpected", "Traceback"))
    if code:
        assert len([line for line in answer["error"].splitlines() if line.startswith("error:")]) <= 1
        assert len(answer["error"]) < 1000
    folder: Path = answer["folder"]
    assert not list(folder.rglob("PWNED"))
    outside = {path.name: path.read_bytes() for path in (folder / "outside").iterdir()}
    assert outside.keys() == {"secret.safetensors", "secret.json", "page.html"}
    assert outside["page.html"] == b"mine"
    assert "SECRET" not in answer["out"] + answer["error"]
    written = [path for path in folder.glob("out/**/*") if path.is_file()]
    assert not any("SECRET" in path.read_text(errors="replace") for path in written)
    assert answer["seconds"] < 60  # of the processor: whatever runs away needs hours
    assert answer["grown"] < GIB


def test_the_pickle_would_have_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark that the cases look for is left when somebody does load it."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(PICKLE)
    assert (tmp_path / "PWNED").exists()
