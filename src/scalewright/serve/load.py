"""A model, and its tokenizer, from a Hugging Face folder, a run's folder or one of its checkpoints.

Hugging Face folder      config.json, *.safetensors, tokenizer.json
runs/run                 checkpoints/step-00000010/ (the newest that is whole), tokenizer.json in either
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from scalewright.checkpoint.format import MANIFEST
from scalewright.checkpoint.read import CheckpointReader, find_checkpoint, text_files
from scalewright.checkpoint.store.bring import bring
from scalewright.model import load as model_load
from scalewright.model.companions import end_of_text
from scalewright.model.huggingface import torch_dtype
from scalewright.model.load import TensorReader, build, is_checkpoint, open_huggingface, torch_device
from scalewright.model.python import build_python_model
from scalewright.spec.common.untrusted import inside
from scalewright.spec.common.urls import is_url
from scalewright.spec.ends import CONFIG, Ends, beginning, json_object, started, token_name, with_ends
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import PythonRef
from scalewright.spec.tensors import tensors
from scalewright.spec.user_code import check_trusted


def load_model(
    source: str | Path, dtype: str = "float32", device: str = "cpu", *, trust_code: bool = False, verify: bool = True
) -> nn.Module:
    """A model ready for `model(tokens)`: LongTensor [B, T] -> logits [B, T, V]. Raises UserError.

    `source`: a preset or a model file (fresh weights), a Hugging Face folder, a run's folder, a checkpoint; or the URL
    of one of these folders in a store.
    `trust_code` lets a checkpoint's manifest name the code that builds its model; `verify` compares the files of a
    checkpoint with their checksums (its manifest always is).
    """
    path = bring(source)
    if is_checkpoint(path):
        return _from_checkpoint(find_checkpoint(path), dtype, device, trust_code, verify)
    return model_load.load_model(path if is_url(source) else source, dtype, device)


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode, and how text becomes its tokens and back."""

    model: nn.Module
    tokenizer: Any  # tokenizers.Tokenizer
    end_of_text: frozenset[int]
    beginning: int | None = None  # the token before a text, where training or the tokenizer's files name one
    end: int | None = None  # the one of `end_of_text` that ended documents in training
    start: tuple[int, ...] = ()  # put before a text, as in training

    def encode(self, text: str) -> list[int]:
        """Token ids, begun as in training (once); an empty text starts a document. Raises UserError."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError("the prompt is no UTF-8 text", "generate", "write it in UTF-8") from None
        ids = started(self.tokenizer.encode(text, add_special_tokens=False).ids, self.start)
        return ids or ([] if self.end is None else [self.end])

    def decode(self, ids: list[int]) -> str:
        """Text without special tokens."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text


GIVE = "give a Hugging Face folder, a run's folder or a checkpoint"
Build = Callable[[TensorReader, str, str], nn.Module]  # of a reader, a dtype and a device


def without_predictions(reader: TensorReader, dtype: str, device: str) -> nn.Module:
    """A whole model, without prediction modules."""
    return build(reader, dtype, device, mtp=False)


def load_for_generation(
    source: str, device: str = "cpu", dtype: str = "float32", trust_code: bool = False, verify: bool = True,
    make: Build = without_predictions,
) -> Loaded:  # fmt: skip
    """The model that `make` builds, and the tokenizer at `source`; raises UserError when either is missing."""
    path = bring(source)
    if not path.exists():
        raise UserError("no such folder", source, GIVE)
    check_model(path)
    if is_checkpoint(path):
        folders, trained = text_files(path)
        tokenizer = _tokenizer(folders, CheckpointReader(folders[0], verify).check_tokenizer)
        model = _from_checkpoint(folders[0], dtype, device, trust_code, verify, make)
    else:
        folders, trained = [path], Ends()
        tokenizer = _tokenizer(folders)
        model = make(open_huggingface(path), dtype, device)
    ends = _end_of_text(folders, trained.eod)
    config = next((found for folder in folders if (found := json_object(folder / CONFIG))), {})
    start = beginning(tokenizer, config) if trained.bos is None else trained.bos
    named = tokenizer.token_to_id(token_name(config, "bos_token") or "") if trained.bos is None else None
    first = start[-1] if start else named
    return Loaded(model, tokenizer, frozenset(ends), first, next(iter(trained.eod or ends), None), start)


def check_model(path: Path) -> None:
    """Raises UserError for a file, and for a folder without a model: with the models that lie in it."""
    if path.is_file():
        raise UserError("a file, and no model's folder", str(path), GIVE)
    if is_checkpoint(path) or (path / "config.json").is_file():
        return
    inside = [each for each in path.iterdir() if is_checkpoint(each) or (each / "config.json").is_file()]
    inside.sort(key=lambda each: each.stat().st_mtime, reverse=True)
    names = " or ".join(str(each) for each in inside[:3])
    raise UserError("there is no model here", str(path), f"did you mean {names}?" if names else GIVE)


class Checkpoint:
    """A checkpoint of ours as a reader for `build`: the spec of its manifest, tensors by canonical name.

    Raises UserError when it lacks one of the spec's tensors, or has it in another shape: before memory is taken.
    """

    def __init__(self, reader: CheckpointReader) -> None:
        self._reader = reader
        self.spec = ModelSpec.parse(reader.manifest.model, str(reader.folder))
        reader.check({reader.stored_name(t.name): t.shape for t in tensors(self.spec, mtp=True)})

    def read(self, name: str) -> Tensor:
        """One whole tensor; a tied head is the embedding."""
        return self._reader.read(self._reader.stored_name(name))


def _from_checkpoint(
    folder: Path, dtype: str, device: str, trust_code: bool, verify: bool, make: Build = build
) -> nn.Module:
    """The network of a checkpoint: ours, as `make` builds it, or the user's own module."""
    reader = CheckpointReader(folder, verify)
    if "python" not in reader.manifest.model:
        return make(Checkpoint(reader), dtype, device)
    ref = PythonRef.parse(reader.manifest.model, str(folder / MANIFEST))
    check_trusted(ref.python, str(folder / MANIFEST), trust_code)
    module = build_python_model(ref.python, ref.arguments, seed=0)
    state = {name: reader.read(name) for name in reader.names()}
    state |= {name: buffer for name in reader.buffers() if (buffer := reader.read_buffer(name)) is not None}
    module.load_state_dict(state, strict=False)  # tied names are not tensors of the checkpoint
    return module.to(torch_device(device), torch_dtype(dtype)).eval()


def _tokenizer(folders: list[Path], check: Callable[[Path], None] | None = None) -> Any:
    """The first tokenizer.json among the folders; `check` looks at it first."""
    from tokenizers import Tokenizer

    for folder in folders:
        path = inside(folder, "tokenizer.json")
        if path.is_file():
            if check is not None:
                check(path)
            try:
                return Tokenizer.from_file(str(path))
            except Exception as error:  # the library raises plain Exception
                raise UserError(f"damaged tokenizer: {error}", str(path), "copy it again") from None
    how = "copy the tokenizer.json that the model was trained with there"
    raise UserError("no tokenizer.json", str(folders[0]), how)


def _end_of_text(folders: list[Path], trained: tuple[int, ...]) -> list[int]:
    """The tokens that end a text: those of training and of the folders' files, else of the tokenizer's."""
    for folder in folders:
        for name in ("generation_config.json", "config.json"):
            given = json_object(folder / name).get("eos_token_id")
            if given not in (None, []):
                ids = with_ends(given, trained)
                return [end for end in (ids if isinstance(ids, list) else [ids]) if type(end) is int]
    usual = (end_of_text(folder / "tokenizer.json")[1] for folder in folders if not trained)
    return [*trained, *[end for end in usual if end is not None][:1]]
