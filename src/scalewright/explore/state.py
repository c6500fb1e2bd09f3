"""What the page asks about, as a query: `model=llama-3.1-8b&cluster=dgx-h100&seq_len=8192&devices=64&tp=2`.

The same text is the page's link, the request to the server and the name of an answer in a frozen page.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from scalewright.spec.errors import UserError, unknown
from scalewright.spec.layout import Layout

HOW = "open the page again, or write key=value&key=value"
NUMBERS = (
    "devices", "tp", "pp", "virtual_stages", "cp", "ep", "etp", "dp_replicate", "zero_stage", "micro_batch",
    "global_batch",
)  # fmt: skip


@dataclass(frozen=True)
class State:
    """A run, and the keys of its layout that are stated."""

    model: str
    cluster: str
    seq_len: int | None
    layout: Mapping[str, Any]

    def query(self) -> str:
        """The state as text; `read_state` gives it back."""
        length = {} if self.seq_len is None else {"seq_len": self.seq_len}
        written = {key: _written(value) for key, value in self.layout.items() if value is not None and key != "dp"}
        return urlencode({"model": self.model, "cluster": self.cluster, **length, **written})

    def command(self, verb: str = "predict") -> str:
        """The command line that gives the same answer."""
        pairs = ",".join(f"{k}={_paired(v)}" for k, v in self.layout.items() if v is not None and k != "dp")
        length = [] if self.seq_len is None else ["--seq-len", str(self.seq_len)]
        layout = ["--layout", pairs] if pairs else []
        return shlex.join(["scalewright", verb, self.model, "--cluster", self.cluster, *length, *layout])


def read_state(query: str, models: Collection[str], clusters: Collection[str]) -> State:
    """The state of a query. Raises UserError for keys, names and numbers that mean nothing.

    `models`, `clusters`: the names that may be asked about. Any other would be a path of this machine, and a page may
    come from anyone.
    """
    try:
        keys = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=64))
    except ValueError as error:
        raise UserError(f"the page's address can't be read: {error}", "link", HOW) from error
    for name, known in (("model", models), ("cluster", clusters)):
        if keys.get(name) not in known:
            raise unknown(name, keys.get(name, ""), sorted(known), "link", HOW)
    model, cluster, length = keys.pop("model"), keys.pop("cluster"), keys.pop("seq_len", None)
    if strange := next((key for key in keys if key not in Layout.model_fields), None):
        raise unknown("key", strange, sorted(Layout.model_fields), "link", HOW)
    layout = {key: _read(key, text) for key, text in keys.items()}
    return State(model, cluster, None if length is None else _number("seq_len", length), layout)


def _read(key: str, text: str) -> Any:
    if key in NUMBERS:
        return _number(key, text)
    if key == "sp":
        return {"true": True, "false": False}.get(text, text)
    kind, equals, value = text.partition("=")
    if key == "recompute" and equals:
        return {kind: _number(kind, value) if kind == "every" else _share(value)}
    return text


def _number(key: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise UserError(f"{key} is '{text}'", "link", "give a whole number")
    return int(text)


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UserError(f"budget is '{text}'", "link", "give a share, such as 0.5") from error


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{kind}={number}" for kind, number in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _paired(value: Any) -> str:
    """A value of `--layout key=value,...`: YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{kind}: {number}" for kind, number in value.items()) + "}"
    return f"[{_written(value)}]" if isinstance(value, (list, tuple)) else _written(value)
