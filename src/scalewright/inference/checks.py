"""A user's row before it is priced: the command line's words taken, blanks filled and said, the rest refused.

concurrency 32   -->  concurrency_or_batch 32         input_len abc            -->  UserError
rate 4           -->  concurrency_or_batch "qps 4"    8 devices by tp 3        -->  UserError
engine blank     -->  vllm, in `assumed`              tp 3, of 32 heads        -->  UserError

The bundled table has blanks and words on purpose, which rows.py reads as its sources meant them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

from scalewright.inference.ask import MOST_DEVICES, MOST_TOKENS, check_formats, check_layout
from scalewright.inference.constants import engine_of
from scalewright.inference.rows import RowOfTable, row_of, workload_of
from scalewright.plan.rows.cells import number, text
from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import UserError

LOAD = "concurrency_or_batch"
TEXTS = ("precision", "kv_precision", "engine", "engine_version")
TABLES = {"layout": {"tp": 2}, "speculate": {"tokens": 3}}
WORDS = {"concurrency": "{:.12g}", "rate": "qps {:.12g}"}  # columns in the command line's words, as LOAD has them


def checked(given: Mapping[str, Any]) -> RowOfTable:
    """The row as a question of a layout that engines take; raises UserError for a cell that would mean another one."""
    row, assumed = dict(given), []
    for key, such in (("model", "llama-3.1-8b"), ("device", "h100-sxm")):
        if not text(row, key):
            raise UserError(f"{key} is blank", "row", f"fill it, such as {such}")
    if not text(row, "engine"):
        row["engine"] = "vllm"
        assumed.append("engine vllm")
    try:
        engine = engine_of(text(row, "engine").split()[0])
        _fill_load(row, assumed)
        _check_lengths(row)
        _fill_sizes(row, engine.splits == "layers", assumed)
        asked = row_of(row)
        assumed += check_formats(asked.question)
        if not asked.free:
            check_layout(asked.question, asked.question.shape)
    except UserError as error:
        raise UserError(error.what, "row" if error.where.startswith("--") else error.where, error.how) from None
    return replace(asked, question=replace(asked.question, assumed=(*assumed, *asked.question.assumed)))


def _fill_load(row: dict[str, Any], assumed: list[str]) -> None:
    """The load in the table's words, of whichever of the three columns has it."""
    stated = [key for key in (LOAD, *WORDS) if text(row, key)]
    if len(stated) > 1:
        raise UserError(f"{stated[0]} and {stated[1]} are both given", "row", "keep one")
    if stated and stated[0] in WORDS:
        value = number(row, stated[0])
        if not value:
            raise UserError(f"{stated[0]} is {row[stated[0]]}", "row", "give a number above 0")
        row[LOAD] = WORDS[stated[0]].format(value)
    elif not stated and "requests" not in text(row, "notes"):
        row[LOAD] = "1"
        assumed.append("concurrency 1")
    elif text(row, LOAD).lower() in ("server", "interactive") and not workload_of(row).get(text(row, LOAD).lower()):
        assumed.append("ttft_s 2, tpot_s 0.2 (targets)")


def _check_lengths(row: Mapping[str, Any]) -> None:
    if workload_of(row):  # it has lengths for blanks and for words
        return
    for key in ("input_len", "output_len"):
        value = number(row, key)
        if value is None:
            raise UserError(f"{key} is blank", "row", f"give tokens, such as {key}=256, or 0 for none")
        if value > MOST_TOKENS:
            raise UserError(f"{key} is {value:g}", "row", f"give tokens, at most {MOST_TOKENS:.0f}")


def _fill_sizes(row: dict[str, Any], by_layers: bool, assumed: list[str]) -> None:
    """Devices and ranks as whole numbers, of which one makes up the other."""
    devices, tp, pp = (_size(row, key) for key in ("n_devices", "tp", "pp"))
    each = (tp or 1) * (pp or 1)
    if tp is None and pp is not None and pp > 1 and not by_layers:
        row["tp"] = "1"
        assumed.append("tp 1")
    if devices is None and (tp or pp):
        row["n_devices"] = str(each)
        assumed.append(f"n_devices {each} (tp x pp)")
    elif devices is not None and devices % each and "disaggregated" not in text(row, "notes"):
        how = f"a replica takes {counted(each, 'devices')}: give n_devices a multiple of it"
        raise UserError(f"n_devices {devices} can't be shared out by tp {tp or 1}, pp {pp or 1}", "row", how)
    word = text(row, "ep").lower()
    if word not in ("", "y", "n", "1", str(tp)):
        raise UserError(f"ep is '{word}'", "row", "give y (whole experts, over all ranks of tp), or leave it blank")
    row["ep"] = "y" if word == "y" or (word == str(tp) and word != "1") else ""


def _size(row: Mapping[str, Any], key: str) -> int | None:
    value = number(row, key)
    if value is not None and (value != int(value) or not 1 <= value <= MOST_DEVICES):
        raise UserError(f"{key} is {value:g}", "row", f"give a whole number from 1 to {MOST_DEVICES}")
    return None if value is None else int(value)


def check_types(given: Mapping[str, Any]) -> None:
    """Raises UserError for what Python gives in place of a number, a text, or a table of numbers; None is not given."""
    for key, value in given.items():
        if value is None or key == "offline":
            continue
        if key in TEXTS:
            if not isinstance(value, str):
                raise UserError(f"{key} is {value!r}", "inference", "give a name in quotes")
        elif key not in TABLES:
            _check_number(key, value, f"{key}=8")
        elif not isinstance(value, Mapping):
            raise UserError(f"{key} is {value!r}", "inference", f"give a dictionary: {key}={TABLES[key]}")
        else:
            for name, size in value.items():
                _check_number(f"{key}'s {name}", size, f"{key}={TABLES[key]}")


def _check_number(name: str, value: Any, example: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UserError(f"{name} is {value!r}", "inference", f"give a number: {example}")
