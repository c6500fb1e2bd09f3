"""A model from a Hugging Face folder, or a preset's name with fresh weights.

    load_model("llama-3.2-1b")            fresh weights of that shape (seed 0)
    load_model("my.yaml")                 the same for a model file
    load_model("path/to/hf-folder")       config.json + safetensors

The module is made without memory, given memory once in the requested dtype and on the requested device, and filled
tensor by tensor: never a second copy of the model. `serve/load.py` has the `load_model` that opens checkpoints, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from scalewright.model.decoder import Decoder
from scalewright.model.huggingface import HuggingFaceFolder, has_predictions, torch_dtype
from scalewright.model.init import init_tensor, named_tensors, on_meta, to_empty
from scalewright.spec.errors import UserError, unknown
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec
from scalewright.spec.trains import check_runs


class TensorReader(Protocol):
    """A source of a model's tensors by canonical name."""

    @property
    def spec(self) -> ModelSpec: ...

    def read(self, name: str) -> Tensor: ...


def load_model(source: str | Path, dtype: str = "float32", device: str = "cpu") -> nn.Module:
    """The model, ready for `model(tokens)`: LongTensor [B, T] -> logits [B, T, V]. Raises UserError."""
    path = Path(source)
    if path.is_dir():
        return build(open_huggingface(path), dtype, device)
    return build(FreshWeights(load_model_spec(str(source)), device=device), dtype, device)


def is_checkpoint(path: Path) -> bool:
    """Whether this folder is a run of ours or one of its checkpoints."""
    return (path / "manifest.json").is_file() or (path / "checkpoints").is_dir() or any(path.glob("step-*/COMMIT"))


def open_huggingface(folder: Path) -> HuggingFaceFolder:
    """The tensors of a Hugging Face folder and its config.json's spec, less prediction modules that its files lack."""
    if not (folder / "config.json").is_file():
        raise UserError("no config.json here", str(folder), "give a Hugging Face folder or a run's folder")
    spec = load_model_spec(folder)
    check_runs(spec)
    if spec.mtp_layers and not has_predictions(folder, spec):
        spec = spec.replace(mtp_layers=0)
    return HuggingFaceFolder(folder, spec)


class FreshWeights:
    """The first values of a model as a reader: the start of a training."""

    def __init__(self, spec: ModelSpec, seed: int = 0, device: str = "cpu") -> None:
        self.spec, self.seed, self.device = spec, seed, device
        self._tensors = named_tensors(spec)

    def read(self, name: str) -> Tensor:
        """One whole tensor, fp32."""
        return init_tensor(self._tensors[name], self.spec, self.seed, self.device)


@torch.no_grad()
def build(reader: TensorReader, dtype: str = "float32", device: str = "cpu", *, mtp: bool = True) -> Decoder:
    """A decoder filled from a reader, in evaluation mode; `mtp`: with its prediction modules."""
    kind, place = torch_dtype(dtype), torch_device(device)
    spec = reader.spec if mtp else reader.spec.replace(mtp_layers=0)
    with on_meta():
        module = Decoder(spec).to(kind)
    to_empty(module, place)
    for name, parameter in module.named_parameters():
        parameter.copy_(reader.read(name))
    return module.eval()


def torch_device(name: str) -> torch.device:
    """cpu, cuda, cuda:1 or mps by name, if this machine has it; raises UserError."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise unknown("device", name, ["cpu", "cuda", "mps"]) from None
    absent = {"cuda": not torch.cuda.is_available(), "mps": not torch.backends.mps.is_available()}
    if absent.get(device.type, False):
        raise UserError(f"device '{name}' isn't here", "device", "use cpu")
    return device
