"""What the page asks about, as a query: `model=llama-3.1-8b&cluster=dgx-h100&seq_len=8192&tokens=1000000000000&tp=2`.

The same text is the page's link, the request to the server and the name of an answer in a frozen page.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from scalewright.plan.frameworks import framework_names
from scalewright.spec.errors import UserError, unknown
from scalewright.spec.layout import Layout

TOKENS, MOST_PRICE = 10**12, 1e6  # of the whole run, where the link says nothing; of a device and hour
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
    tokens: int = TOKENS
    price: float | None = None  # of a device and hour; None: the list's
    framework: str | None = None  # None: this package's own

    def query(self) -> str:
        """The state as text; `read_state` gives it back."""
        named = {"seq_len": self.seq_len, **self.run}
        length = {key: value for key, value in named.items() if value is not None}
        written = {key: _written(value) for key, value in self.layout.items() if value is not None and key != "dp"}
        return urlencode({"model": self.model, "cluster": self.cluster, **length, **written})

    @property
    def run(self) -> dict[str, Any]:
        """What is asked about beside the layout, by the command line's flags."""
        price = None if self.price is None else f"{self.price:g}"
        return {"tokens": self.tokens, "price": price, "framework": self.framework}

    def command(self, verb: str = "predict") -> str:
        """The command line that gives the same answer."""
        pairs = ",".join(f"{k}={_paired(v)}" for k, v in self.layout.items() if v is not None and k != "dp")
        length = [] if self.seq_len is None else ["--seq-len", str(self.seq_len)]
        layout = ["--layout", pairs] if pairs else []
        more = [word for key, value in self.run.items() if value is not None for word in (f"--{key}", str(value))]
        return shlex.join(["scalewright", verb, self.model, "--cluster", self.cluster, *length, *layout, *more])


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
    tokens, price, framework = (keys.pop(key, None) for key in ("tokens", "price", "framework"))
    if framework is not None and framework not in framework_names():
        raise unknown("framework", framework, framework_names(), "link", HOW)
    if strange := next((key for key in keys if key not in Layout.model_fields), None):
        raise unknown("key", strange, sorted(Layout.model_fields), "link", HOW)
    layout = {key: _read(key, text) for key, text in keys.items()}
    return State(
        model, cluster, None if length is None else _number("seq_len", length), layout,
        TOKENS if tokens is None else _number("tokens", tokens), None if price is None else _money(price), framework,
    )  # fmt: skip


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


def _money(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = 0.0
    if not 0 < price <= MOST_PRICE:
        raise UserError(f"price is '{text}'", "link", "give what a device costs for an hour, such as 2.5")
    return price


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
