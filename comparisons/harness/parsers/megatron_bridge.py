"""Megatron-Bridge's own checks: the recipe imported, and its ConfigContainer validated.

It imports every model and logger that it knows; what isn't installed here is a stand-in.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import logging
import os
import sys
import types
import typing
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

from harness.parsers import stand_ins
from harness.parsers.words import words
from scalewright.emit.emitted import Emitted
from scalewright.emit.settings import Settings

TITLE = "Megatron-Bridge"
NEEDS = """torch, omegaconf, hydra-core, einops, transformers, megatron-core 0.19.2 and megatron-bridge 0.6.2,
both unpacked (they are for Python 3.12) and on PYTHONPATH"""
CHECKS = (
    "names of all fields", "world size by tp x pp x cp", "global batch by micro-batch x dp",
    "heads and groups by tp", "layers by stages", "combinations with FSDP, fp8 and offloading",
    "iterations of the schedule", "TransformerConfig's and OptimizerConfig's own conditions",
)  # fmt: skip
UNCHECKED = (
    "types of fields", "experts by ep", "hidden size by heads", "the word in cp_comm_type",
    "experts with tp but without sp", "micro-batches by pp with interleaving", "whether data paths exist",
    "anything of Transformer Engine", "memory",
)  # fmt: skip
ABSENT = (
    "matplotlib", "nvidia_resiliency_ext", "mlflow", "comet_ml", "wandb", "flashinfer", "fla",
    "causal_conv1d", "mamba_ssm", "modelopt", "multistorageclient", "nemo_run", "qwen_vl_utils", "open_clip",
    "timm", "diffusers", "peft", "mistral_common", "PIL", "megatron.energon", "torchvision", "decord",
    "webdataset", "datasets",
)  # fmt: skip


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stand-ins for packages that aren't installed, and their parts."""

    def __init__(self) -> None:
        self.names = tuple(name for name in ABSENT if not _is_here(name))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if any(name == absent or name.startswith(f"{absent}.") for absent in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        module = mock.MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
        module.__version__ = "3.6.0"
        return module

    def exec_module(self, module: Any) -> None:
        return None


def _is_here(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


class _Meta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Meta(name, (_Base,), {})


class _Base(metaclass=_Meta):
    pass


def _transformer_engine() -> None:
    """A package whose every name is a class: what is imported from it is subclassed or called, never run."""
    top = types.ModuleType("transformer_engine")
    top.__path__, top.__version__ = [], "2.9.0"  # type: ignore[attr-defined]
    top.__spec__ = importlib.machinery.ModuleSpec("transformer_engine", None)
    for name in ("pytorch", "common", "common.recipe", "pytorch.module", "pytorch.module.base"):
        module = types.ModuleType(f"transformer_engine.{name}")
        module.__path__ = []
        module.__getattr__ = lambda attribute: _Meta(attribute, (_Base,), {})  # type: ignore[method-assign]
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        sys.modules[module.__name__] = module
    sys.modules["transformer_engine"] = top
    top.pytorch, top.common = (sys.modules[f"transformer_engine.{name}"] for name in ("pytorch", "common"))  # type: ignore[attr-defined]


def prepare() -> str:
    """Imports its configuration under stand-ins."""
    if not hasattr(typing, "override"):
        import typing_extensions

        typing.override = typing_extensions.override  # type: ignore[attr-defined,unused-ignore]
    stand_ins.triton()
    stand_ins.hopper()
    sys.meta_path.append(_Absent())
    warnings.simplefilter("ignore")
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="8", CUDA_DEVICE_MAX_CONNECTIONS="1")
    importlib.import_module("megatron.core")  # sees that Transformer Engine is absent
    _transformer_engine()
    importlib.import_module("megatron.bridge.training.config")
    logging.disable(logging.WARNING)
    for name in ("megatron-bridge", "megatron_bridge"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return "0.6"


def refusal(folder: Path, emitted: Emitted, settings: Settings) -> str:
    """What ConfigContainer.validate says of an emitted recipe."""
    os.environ["WORLD_SIZE"] = str(settings.layout.devices)
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    if emitted.command.startswith("CUDA_DEVICE_MAX_CONNECTIONS=1"):
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    sys.path.insert(0, str(folder))
    quiet = io.StringIO()
    try:
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            config: Any = importlib.import_module("recipe").config()
            config.mixed_precision.finalize()
            config.mixed_precision.setup(config.model, config.optimizer, config.ddp)
            config.validate()
    except Exception as error:
        return words(error)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("recipe", None)
    return ""
