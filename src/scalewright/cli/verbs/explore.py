"""`scalewright explore MODEL --cluster C`: a page with a slider for each axis, live or as one file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from scalewright.cli.options import Force, Json, flag, option
from scalewright.cli.output import only_answer, print, print_json, working
from scalewright.cli.verbs.predict import AS_WELL, LAYOUT, Cluster, Framework, Model, Price, Tokens, read_pairs
from scalewright.spec.errors import UserError


def explore(
    model: Model = None,
    cluster: Cluster = None,
    seq_len: Annotated[int | None, flag("Tokens of a sequence.")] = None,
    devices: Annotated[int | None, flag("All devices.")] = None,
    layout: Annotated[str | None, option("KEY=VALUE,...", "Where to start: tp=8,pp=4.", "--layout")] = None,
    framework: Framework = None,
    tokens: Tokens = None,
    price: Price = None,
    out: Annotated[Path | None, option("FILE", "Write one page that needs no server, with a search's layouts.")] = None,
    port: Annotated[int, flag("Where the page is served; 0: any free port.")] = 8642,
    host: Annotated[str, flag("Who may see it: 127.0.0.1 is this machine alone.")] = "127.0.0.1",
    force: Force = False,
    json: Json = False,
) -> None:
    """Explore layouts in a browser: every slider's step time, memory and pipeline at once.

    \b
    scalewright explore
    scalewright explore llama-3.1-70b --cluster dgx-h100 --devices 512 --layout tp=8,pp=4
    scalewright explore llama-3.1-8b --cluster dgx-h100 --devices 64 --out explore.html
    """
    from scalewright.explore.start import serve, starting, write_page

    if not 0 <= port < 65536:
        raise UserError(f"port is {port}", "--port", "give a number from 0 to 65535")
    keys = read_pairs(layout, "--layout", LAYOUT | set(AS_WELL))
    if devices is not None:
        keys["devices"] = devices
    with only_answer(json), working("pricing"):
        start = starting(model, cluster, seq_len, keys, framework=framework, tokens=tokens, price=price)
        if out is not None:
            path = write_page(start, out, force)
    if out is not None:
        print_json({"page": str(path), "state": start.query()}) if json else print(path)
        return

    def tell(url: str) -> None:
        if json:
            print_json({"url": url, "state": start.query()})
        else:
            print(f"{url}#{start.query()}\nCtrl-C ends it.")
        sys.stdout.flush()

    serve(start, host, port, tell)
