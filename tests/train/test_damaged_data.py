"""Damage that no sample at the start need find stops a run while it trains, with the file and the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forked import fork_cli
from runs import end, events, run, run_data, write_run
from scalewright.data.shards import block_checksums, checksum
from scalewright.spec.errors import UserError

TOKENS = 18 << 20  # 36 MiB: too many to be read whole at the start
PLACE = (12 << 20) + 5  # of the damaged token


def prepared(folder: Path) -> dict[str, Any]:
    """A split as `prepare` writes it, one bit of which changed later."""
    train = folder / "prepared" / "train"
    train.mkdir(parents=True)
    tokens = np.random.default_rng(1).integers(1, 60, TOKENS).astype("<u2")
    tokens.tofile(train / "tokens-00000.bin")
    np.array([0, TOKENS], "<i8").tofile(train / "documents.bin")
    counts = {"tokens": TOKENS, "documents": 1, "text_bytes": 3 * TOKENS}
    metadata = {
        "format": "scalewright-tokens",
        "version": 1,
        "split": "train",
        "dtype": "uint16",
        **counts,
        "eod": 0,
        "vocab_size": 67,
        "tokenizer_sha256": "0" * 64,
        "index": _file(train / "documents.bin"),
        "shards": [{**_file(train / "tokens-00000.bin"), **counts}],
    }
    (train / "metadata.json").write_text(json.dumps(metadata))
    tokens[PLACE] ^= 1
    tokens.tofile(train / "tokens-00000.bin")
    return {"path": str(train)}


def _file(path: Path) -> dict[str, Any]:
    sums = {"sha256": checksum(path), "block_crc32": block_checksums(path)}
    return {"file": path.name, "bytes": path.stat().st_size, **sums}


def bare(folder: Path) -> dict[str, Any]:
    """Bare numbers, one of which the model has no row for."""
    tokens = np.random.default_rng(1).integers(1, 60, TOKENS).astype("<u2")
    tokens[PLACE] = 70
    tokens.tofile(folder / "bare.bin")
    return {"path": str(folder / "bare.bin"), "format": "uint16"}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (prepared, rf"checksum differs.*tokens-00000\.bin, bytes {24 << 20} to {(25 << 20) - 1}"),
        (bare, rf"token 70, but the model's vocab_size is 67 \(.*bare\.bin, byte {2 * PLACE}\)"),
    ],
)
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_damage_stops_the_run(tmp_path, kind, message, devices):
    data = {"train": [kind(tmp_path)], "valid": []}
    layout = {"devices": devices, "global_batch": 2}
    whole = run_data(tmp_path, data=data, layout=layout, train={"steps": 20_000})
    with pytest.raises(UserError, match=message):
        run(whole)


def test_the_exit_code_and_one_line_of_what_is_not_checked(tmp_path):
    data = {"train": [bare(tmp_path)], "valid": []}
    path = write_run(tmp_path, run_data(tmp_path, data=data, train={"steps": 20_000}))
    process = fork_cli(tmp_path, "train", str(path))
    try:
        _, error = process.communicate(timeout=120)
    finally:
        end(process)
    assert process.returncode == 2, error
    assert error.count("no checksums of") == 1
    assert error.splitlines()[-1].startswith("error: the data has token 70")
    assert "Traceback" not in error
    assert events(tmp_path / "out", "fault")[-1]["message"].startswith("the data has token 70")
