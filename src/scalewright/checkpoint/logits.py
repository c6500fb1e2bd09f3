"""A Hugging Face folder in transformers, beside the same weights here: the logits of random tokens in fp32.

Where both agree they differ by 1e-6 of the largest logit; a setting that transformers ignores shows at 1e-3
and more. A router that is undecided may send a token of one row elsewhere, so the median of the rows counts.
"""

from __future__ import annotations

from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch

from scalewright.model.load import build, open_huggingface
from scalewright.spec.errors import RunError
from scalewright.spec.model import ModelSpec

TOLERANCE = 1e-4  # of the largest logit, both in fp32 from the weights as they are stored
LARGEST = 1_000_000_000  # parameters that are compared unasked: two copies in fp32 are 8 GB
ROWS, LENGTH, LONGEST = 3, 128, 1024  # tokens: longer than a window, where that isn't long itself


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
    how = "--no-check writes the folder all the same"
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(reader.spec.vocab_size, (ROWS, _length(reader.spec)), generator=generator)
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


def _length(spec: ModelSpec) -> int:
    """Tokens of a row: beyond a window, where it isn't too long."""
    most = spec.learned_positions if spec.positions == "learned" else spec.context
    window = spec.sliding_window or 0
    return min(most, max(LENGTH, window + 8) if window < LONGEST else LENGTH)
