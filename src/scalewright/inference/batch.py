"""A table of serving runs, each row priced: some thousand at a time, an error where a row can't be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from scalewright.inference import load
from scalewright.inference.checks import WORDS, checked
from scalewright.inference.constants import constants
from scalewright.inference.layouts import loads
from scalewright.inference.rows import RowOfTable, settle
from scalewright.inference.score import read_table
from scalewright.inference.setup import table
from scalewright.inference.spread import band, sigmas
from scalewright.spec.errors import UserError

BROKEN = "_problem"  # as cli/batch.py marks a row that couldn't be read


def columns() -> list[str]:
    """The columns that a row may have: those of the bundled table, an id, and a load in the command line's words."""
    return ["id", *read_table()[0], *WORDS]


def answers(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each row's answer, in order: its rate, latencies and memory, or {id, error}."""
    asked: list[RowOfTable | str] = []
    for row in rows:
        try:
            asked.append(str(row[BROKEN]) if BROKEN in row else checked(row))
        except UserError as error:
            asked.append(str(error))
        except (ArithmeticError, ValueError, KeyError, TypeError) as error:
            asked.append(f"can't be priced: {type(error).__name__}: {error}")
    sound = settle([item for item in asked if isinstance(item, RowOfTable)])
    priced = _priced(sound) if sound else iter(())
    for row, item in zip(rows, asked, strict=True):
        yield {"id": row.get("id"), "error": item} if isinstance(item, str) else {"id": row.get("id"), **next(priced)}


def _priced(sound: Sequence[RowOfTable]) -> Iterator[dict[str, Any]]:
    t, c = table([item.question for item in sound]), constants()
    shapes = [item.question.shape for item in sound]
    served = load.serve(t, c, loads([item.load for item in sound], shapes))
    spread, *latency = (sigmas(t, c, of) for of in ("rate", "ttft_s", "tpot_s"))
    for at, (item, shape) in enumerate(zip(sound, shapes, strict=True)):
        requests, sigma = float(served.requests_per_s[at]) * shape.units, float(spread[at])
        q, fits = item.question, bool(served.fits[at])
        out = requests * q.output_len
        filling = q.input_len / max(float(served.prefill_s[at]), 1e-12) * shape.units
        keys: dict[str, Any] = {
            "model": q.model.name, "device": q.cluster.device.id, "engine": q.engine.name, "precision": q.weights.name,
            "layout": shape.dump(), "fits": fits, "max_concurrency": int(served.most[at]) * shape.replicas,
            "batch": float(served.batch[at]), "prefill_s": float(served.prefill_s[at]),
            "decode_s": float(served.decode_s[at]),
        }  # fmt: skip
        if fits and q.output_len:
            keys["ttft_s"] = band(float(served.ttft_s[at]), float(latency[0][at]))
            keys["tpot_s"] = band(float(served.tpot_s[at]), float(latency[1][at]))
            keys["output_tokens_per_s"] = band(out, sigma)
            keys["total_tokens_per_s"] = requests * (q.input_len + q.output_len)
        elif fits:
            keys["input_tokens_per_s"] = band(filling, sigma)
        keys["overloaded"] = bool(served.overloaded[at])
        keys["assumed"] = list(q.assumed)
        yield {key: _finite(value) for key, value in keys.items()}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value
