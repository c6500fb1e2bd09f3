"""MaxText's parser: `pyconfig.initialize`, base.yml and the conditions of types.py, for so many devices."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import io
import logging
import os
import sys
import types
import typing
from importlib import metadata
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

from scalewright.emit.emitted import Emitted
from scalewright.emit.settings import Settings

TITLE = "MaxText"
NEEDS = """pip install jax omegaconf pydantic, and maxtext, whose wheel is for Python 3.12:
pip download --no-deps --python-version 3.12 --only-binary :all: maxtext==0.2.5; unzip it onto PYTHONPATH"""
CHECKS = (
    "names and types of all keys", "layers by stages and repeats", "micro-batches by stages",
    "kinds of context parallelism by hardware and attention", "fp8 with accumulated gradients",
    "the shares of a WSD schedule",
    "(ours:) that the product of the axes is the number of devices, and the global batch is ours",
)  # fmt: skip
UNCHECKED = ("whether data and tokenizer exist", "its sharding", "its model", "memory")
ABSENT = (
    "aqt", "chex", "cloud_tpu_diagnostics", "datasets", "drjax", "fastapi", "flax", "gcsfs", "google",
    "grain", "huggingface_hub", "jsonlines", "ml_goodput_measurement", "opentelemetry", "optax", "orbax",
    "pathwaysutils", "qwix", "sentencepiece", "starlette", "tensorboardX", "tensorflow", "tiktoken",
    "tokamax", "tpu_info", "transformers", "tunix", "uvicorn",
)  # fmt: skip


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules for what its files import and no check uses."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """A package of any name below those."""
        if name.split(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        """A module that has any attribute."""
        module = mock.MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__, module.__version__ = spec, [], spec.name, "1"
        return typing.cast("types.ModuleType", module)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing."""


def prepare() -> str:
    """Imports its configuration on the CPU."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.meta_path.insert(0, StandIns())
    if not hasattr(typing, "override"):  # of Python 3.12
        import typing_extensions

        typing.override = typing_extensions.override  # type: ignore[attr-defined,unused-ignore]
    from maxtext.configs import pyconfig  # noqa: F401

    logging.disable(logging.CRITICAL)
    return metadata.version("maxtext")


def refusal(folder: Path, emitted: Emitted, settings: Settings) -> str:
    """The parser's words on an emitted file."""
    from maxtext.configs import pyconfig

    devices = {"internal_compile": True, "internal_compile_num_devices": settings.layout.devices}
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            config = pyconfig.initialize(["", str(folder / "maxtext.yml")], skip_jax_distributed_system=True, **devices)
    except Exception as error:
        return _said(error)
    product = prod(config.ici_parallelism) * prod(config.dcn_parallelism)
    if product != settings.layout.devices:
        return f"its axes are of {product} devices, not of {settings.layout.devices}"
    batch = config.global_batch_size_to_train_on
    return "" if batch == settings.layout.global_batch else f"its batch is {batch}"


def _said(error: Exception) -> str:
    """A validator's words, without its input."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line.split(" [type=")[0] for line in lines[1:] if line), lines[0] if lines else repr(error))
