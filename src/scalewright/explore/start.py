"""What the verb does: the first state, then a server until Ctrl-C, or a page written to a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalewright.explore.answer import picture, price_state
from scalewright.explore.frozen import freeze
from scalewright.explore.page import page_text
from scalewright.explore.server import Explorer
from scalewright.explore.state import TOKENS, State
from scalewright.report.page import check_page, write
from scalewright.spec.hardware.cluster import LOCAL, cluster_names, load_cluster
from scalewright.spec.presets import model_presets

MODEL, CLUSTER, DEVICES, LENGTH, BATCH_TOKENS = "llama-3.1-8b", "dgx-h100", 64, 8192, 4 << 20


def starting(
    model: str | None, cluster: str | None, seq_len: int | None, keys: Mapping[str, Any], tokens: float | None = None,
    price: float | None = None, framework: str | None = None,
) -> State:  # fmt: skip
    """The state to begin with, every key of its layout stated; raises UserError for one that can't be.

    Without a batch it has four million tokens, as many large runs do; without devices 64, or all of the cluster's.
    """
    place = load_cluster(cluster or CLUSTER)
    layout = dict(keys)
    if "devices" not in layout and "nodes" not in layout:
        layout["devices"] = min(DEVICES, place.devices or DEVICES)
    asked = State(model or MODEL, cluster or CLUSTER, seq_len, layout, int(tokens or TOKENS), price, framework)
    if seq_len is None:
        length = price_state(asked).question.seq_len
        asked = replace(asked, seq_len=min(length, LENGTH))
    if not {"global_batch", "global_batch_tokens", "micro_batch"} & {*layout}:
        first = price_state(replace(asked, layout={**layout, "micro_batch": 1})).layout
        sequences = max(BATCH_TOKENS // (asked.seq_len or LENGTH) // first.dp, 1) * first.dp
        asked = replace(asked, layout={**layout, "global_batch": sequences})
    return price_state(asked).full


def serve(start: State, host: str, port: int, tell: Callable[[str], None]) -> None:
    """Serves the page until Ctrl-C; `tell(url)` once it listens. Raises UserError for a port that is taken."""
    models = frozenset({*model_presets(), start.model})
    clusters = frozenset({*cluster_names(), start.cluster} - {LOCAL})
    picture(start)  # the first answer reads all tables: not while somebody waits
    with Explorer(host, port, page_text(start, models, clusters), models, clusters) as server:
        tell(server.url)
        with suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)


def write_page(start: State, out: Path, force: bool) -> Path:
    """Writes the page that needs no server. Raises UserError where something else would be replaced."""
    check_page(out, force)
    return write(out, page_text(start, (), (), freeze(start)), force)
