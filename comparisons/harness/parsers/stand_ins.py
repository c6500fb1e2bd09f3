"""Stand-ins for what other trainers import, or ask the device, and no check of theirs uses."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from unittest import mock


def hopper() -> None:
    """Answers of an H100, where torch is asked for the device's properties."""
    import torch

    device = types.SimpleNamespace(
        major=9, minor=0, multi_processor_count=132, total_memory=80 << 30, name="NVIDIA H100 80GB HBM3"
    )
    torch.cuda.get_device_properties = lambda *_, **__: device
    torch.cuda.get_device_capability = lambda *_, **__: (9, 0)


def triton() -> None:
    """An empty Triton, where there is none: kernels are decorated when a file is imported, and never run."""
    importlib.import_module("torch._inductor.compile_fx")  # first: it keeps to the Triton that it meets
    try:
        import triton  # noqa: F401
    except ImportError:
        for name in ("triton", "triton.language", "triton.language.extra", "triton.language.extra.libdevice"):
            module = mock.MagicMock(name=name)
            module.__spec__, module.__path__ = importlib.machinery.ModuleSpec(name, None), []
            module.__version__ = "3.6.0"
            sys.modules[name] = module
