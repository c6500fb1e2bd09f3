"""Between a checkpoint of ours and a Hugging Face folder, both ways, streaming, and read back to be sure.

    runs/run/checkpoints/step-00000010  --convert-->  config.json, model-*.safetensors, tokenizer.json
    a Hugging Face folder               --convert-->  OUT/checkpoints/step-00000000, tokenizer.json
    a folder of another trainer         --convert-->  the same (foreign/)

Either end may be a URL of a store: what is read is fetched first, what is written is put there once it is checked.

A tensor is read when its file is written, so that memory holds one file's worth at a time. A Hugging Face folder may
also be run in transformers, beside the same weights here: their logits of random tokens in fp32 differ by 1e-6 of the
largest logit; a setting that transformers ignores shows at 1e-3 and more. A router that is undecided may send a token
of one row elsewhere, so the median of the rows counts.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalewright.checkpoint.card import model_card
from scalewright.checkpoint.foreign.folder import ForeignFolder, find_foreign
from scalewright.checkpoint.format import COMMIT, step_folder
from scalewright.checkpoint.lint import lint
from scalewright.checkpoint.read import CheckpointReader, find_checkpoint, text_files
from scalewright.checkpoint.store.bring import bring
from scalewright.checkpoint.write import Chunk, commit, make_empty, write_rank
from scalewright.model.companions import Training, copy_origin
from scalewright.model.huggingface import MAX_SHARD_BYTES, torch_dtype, write_huggingface
from scalewright.model.load import TensorReader, build, is_checkpoint, open_huggingface
from scalewright.spec.common.files import scratch_folder
from scalewright.spec.common.untrusted import inside
from scalewright.spec.common.urls import Url, is_url, parse_url
from scalewright.spec.ends import COMPANIONS, ORIGIN
from scalewright.spec.errors import Finding, RunError, UserError
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import count, tensors
from scalewright.storage.objects import open_store
from scalewright.storage.publish import check_empty, publish


@dataclass(frozen=True)
class Converted:
    """The result of a conversion."""

    out: str
    kind: str  # "huggingface" or "checkpoint"
    model: str
    parameters: int
    tensors_checked: int  # read back and compared, all of them
    dtype: str
    compared: str = ""  # with transformers: what, or why not
    findings: tuple[Finding, ...] = ()  # of a Hugging Face folder (lint/)

    def dump(self) -> dict[str, object]:
        """Plain data."""
        return {**vars(self), "findings": [finding.row for finding in self.findings]}


def convert(
    source: str | Path,
    out: str | Path,
    dtype: str | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    *,
    verify: bool = True,
    model: str | None = None,
    check: bool | None = False,
) -> Converted:
    """Converts a checkpoint (or a run's newest) to a Hugging Face folder, or such a folder to a checkpoint.

    A checkpoint of another trainer becomes one of ours; `model` names its model where the folder doesn't. `dtype` is
    that of the Hugging Face folder (default float32, as checkpoints are), `max_shard_bytes` the size of its files, and
    of the memory that is needed beside one tensor. `verify` compares the checkpoint's files with their checksums before
    they are converted. `check` compares a Hugging Face folder's logits with transformers' (null: a small one's); none
    that differs stays. What else engines would trip over is in `findings`. Raises UserError for a source of neither
    kind or an `out` that holds something, RunError when the result reads back otherwise.
    """
    if is_url(out):
        return _to_store(source, parse_url(out), dtype, max_shard_bytes, verify=verify, model=model, check=check)
    source, out = bring(source), Path(out)
    if not source.exists():
        raise UserError("no such folder", str(source), "give a checkpoint, a run's folder or a Hugging Face folder")
    if out.exists() and any(out.iterdir()):
        raise UserError("the folder is not empty", str(out), "give a new one")
    if is_checkpoint(source):
        if model is not None:
            raise UserError("a checkpoint of ours has its model", "--model", "leave it out")
        return _to_huggingface(find_checkpoint(source), out, dtype or "float32", max_shard_bytes, verify, check)
    theirs = find_foreign(source)
    if theirs is None and not (source / "config.json").exists():
        how = "give a folder with manifest.json or config.json, or one of another trainer (docs/exports.md)"
        raise UserError("neither a checkpoint nor a Hugging Face folder", str(source), how)
    if dtype is not None:
        raise UserError("checkpoints are kept in float32", "--dtype", "leave it out")
    if theirs is not None:
        return _to_checkpoint(ForeignFolder(theirs, model), source, out)
    if model is not None:
        raise UserError("a Hugging Face folder has its model", "--model", "leave it out")
    return _to_checkpoint(open_huggingface(source), source, out)


def _to_store(source: str | Path, url: Url, *options: Any, **keys: Any) -> Converted:
    """Converts into a folder of this disk, and puts that where the URL says: what readers look for comes last."""
    store = open_store(url, create=True)
    check_empty(store)
    with scratch_folder("convert") as scratch:
        made = convert(source, scratch / "out", *options, **keys)
        folder = scratch / "out"
        last = folder / "config.json" if made.kind == "huggingface" else step_folder(folder / "checkpoints", 0) / COMMIT
        publish(folder, store, last.relative_to(folder).as_posix())
    return replace(made, out=str(url))


def _to_huggingface(
    folder: Path, out: Path, dtype: str, max_shard_bytes: int, verify: bool, check: bool | None
) -> Converted:
    reader = CheckpointReader(folder, verify)
    if "python" in reader.manifest.model:
        raise UserError("a user's own model has no Hugging Face names", str(folder), "save it in your own code")
    spec = ModelSpec.parse(reader.manifest.model, str(folder))

    def get(name: str) -> Tensor:
        return reader.read(reader.stored_name(name))

    training = _training(reader, spec)
    if training.tokenizer is not None:
        reader.check_tokenizer(training.tokenizer / "tokenizer.json")
    write_huggingface(out, spec, get, dtype, max_shard_bytes, training=training)
    kind, parameters = torch_dtype(dtype), _parameters(spec)
    checked = _compare(spec, out, open_huggingface(out).read, lambda name: get(name).to(kind))
    reason = why_not(parameters, check)
    try:
        compared = f"not compared with transformers: {reason}" if reason else compare_logits(out)
    except RunError:
        shutil.rmtree(out)
        raise
    findings = tuple(lint(out))
    return Converted(str(out), "huggingface", spec.name, parameters, checked, dtype, compared, findings)


def _training(reader: CheckpointReader, spec: ModelSpec) -> Training:
    """What a checkpoint's run says of its texts, its length and itself."""
    folders, ends = text_files(reader.folder)
    run, nearest = reader.state.get("run", {}), folders[:2]
    return Training(
        tokenizer=next((folder for folder in nearest if (folder / "tokenizer.json").is_file()), None),
        origin=next(iter(folders[2:]), None),
        ends=ends,
        seq_len=run.get("data", {}).get("seq_len"),
        fresh=run.get("init") == "random",
        card=model_card(spec, reader.manifest, reader.state, nearest[-1]) if run else None,
    )


def _to_checkpoint(folder: TensorReader, source: Path, out: Path) -> Converted:
    spec, root = folder.spec, out / "checkpoints"
    final = step_folder(root, 0)
    partial = final.with_name(final.name + ".tmp")
    try:
        make_empty(root, partial)
        chunks = [_chunk(folder, t.name, t.shape) for t in tensors(spec, mtp=True)]
        written, state = write_rank(partial, chunks, 0), {"step": 0, "samples": 0, "tokens": 0, "optimizer": {}}
        head = {"run_id": uuid.uuid4().hex[:12], "model": spec.dump(), "layout": Layout().dump()}
        commit(partial, final, [written], state, step=0, samples=0, **head)
        for name in ("tokenizer.json", *COMPANIONS):
            if inside(source, name).is_file():
                shutil.copyfile(source / name, out / name)
        if (source / "config.json").is_file():
            copy_origin(source, out / ORIGIN)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise RunError(f"cannot write {out}: {error.strerror or error}") from error
    checked = _compare(spec, out, CheckpointReader(final).read, lambda name: folder.read(name).float())
    return Converted(str(out), "checkpoint", spec.name, _parameters(spec), checked, "float32")


def _compare(spec: ModelSpec, out: Path, read_back: Callable[[str], Tensor], read: Callable[[str], Tensor]) -> int:
    """The number of tensors compared with their source; raises RunError for one that differs."""
    names = [tensor.name for tensor in tensors(spec, mtp=True)]
    for name in names:
        if not torch.equal(read_back(name), read(name)):
            raise RunError(f"tensor '{name}' reads back otherwise from {out}")
    return len(names)


def _parameters(spec: ModelSpec) -> int:
    counted = count(spec)
    return counted.total + counted.mtp


def _chunk(folder: TensorReader, name: str, shape: tuple[int, ...]) -> Chunk:
    box = ((0,) * len(shape), shape)
    return Chunk(name, shape, torch.float32, box, lambda: folder.read(name).float())


TOLERANCE = 1e-4  # of the largest logit, both in fp32 from the weights as they are stored
LARGEST = 1_000_000_000  # parameters that are compared unasked: two copies in fp32 are 8 GB
ROWS, LENGTH, LONGEST = 3, 128, 1024  # tokens of a row


def why_not(parameters: int, check: bool | None) -> str | None:
    """Why a folder isn't compared; None where it is: with `check`, or unasked where it is small."""
    if check is False:
        return "as asked"
    try:
        metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return "it isn't installed"
    large = parameters > LARGEST and not check
    return f"it has more than {LARGEST:.0e} parameters: --check compares it all the same" if large else None


@torch.no_grad()
def compare_logits(folder: Path) -> str:
    """What was compared, in words; raises RunError where transformers computes something else, or can't."""
    transformers: Any = import_module("transformers")
    reader, version = open_huggingface(folder), transformers.__version__
    how, spec = "--no-check writes the folder all the same", reader.spec
    most = spec.learned_positions if spec.positions == "learned" else spec.context
    window = spec.sliding_window or 0  # rows are longer than it, where it isn't long itself
    length = min(most, max(LENGTH, window + 8) if window < LONGEST else LENGTH)
    tokens = torch.randint(spec.vocab_size, (ROWS, length), generator=torch.Generator().manual_seed(0))
    transformers.utils.logging.disable_progress_bar()
    ours = build(reader, mtp=False)(tokens)
    try:
        options = {"dtype": torch.float32, "attn_implementation": "eager", "local_files_only": True}
        options["trust_remote_code"] = False  # else transformers may ask about an auto_map that came along
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()(tokens).logits
    except Exception as error:  # of any class of theirs
        raise RunError(f"transformers {version} can't run {folder}: {error} ({how})"[:400]) from error
    distance = (ours - theirs).abs().amax(dim=(1, 2)).median() / theirs.abs().max()
    if not distance <= TOLERANCE:
        raise RunError(f"transformers {version} computes other logits, by {distance:.1e} of the largest: {how}")
    return f"logits of {tokens.numel()} tokens are those of transformers {version}, to {distance:.0e}"
