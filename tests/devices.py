"""The devices that a test runs on: a CPU everywhere, a GPU where there is one.

`from devices import DEVICES` (or ON_GPU, where a CPU has nothing of the kind) is what the GPU check looks for
when it collects files: whatever has a GPU parameter imports it from here.
"""

from __future__ import annotations

import pytest
import torch

_MARKS = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
ON_GPU = [pytest.param("cuda", marks=_MARKS)]
DEVICES = ["cpu", *ON_GPU]
