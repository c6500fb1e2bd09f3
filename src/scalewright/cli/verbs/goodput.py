"""`scalewright goodput [RUN.yaml|RUN_DIR] [--devices N]`: the share of a run's time that trains."""

from __future__ import annotations

from typing import Annotated

from scalewright.cli.options import All, Json, argument, flag
from scalewright.cli.output import only_answer, print_json, working
from scalewright.cli.terminal import show
from scalewright.cli.verbs.predict import Cloud, Cluster, Commitment, Currency, Price, Prices, Region


def goodput(
    source: Annotated[str | None, argument("RUN.yaml|RUN_DIR", "A run file, or a run's folder.")] = None,
    devices: Annotated[int | None, flag("All devices; default: the run's.")] = None,
    cluster: Cluster = None,
    params: Annotated[float | None, flag("Of the model, where no run is given: 12 bytes each are saved.")] = None,
    save_s: Annotated[
        float | None, flag("Seconds that a save stops the run; default: by its size and storage.")
    ] = None,
    storage_bytes_per_s: Annotated[float | None, flag("All devices together: 2TB/s; default: 0.14 GB/s each.")] = None,
    restart_s: Annotated[float | None, flag("Seconds from a stop to work again, all together.")] = None,
    detect_s: Annotated[float | None, flag("Seconds until a stop is found; with --restart-s besides it.")] = None,
    failures_per_device_hour: Annotated[
        float | None, flag("All stops; default: as in published runs, a range.")
    ] = None,
    interval_s: Annotated[float | None, flag("Seconds of work between saves; default: the run's, or the best.")] = None,
    spares: Annotated[int | None, flag("Spare nodes; default: as many as pay.")] = None,
    days: Annotated[float | None, flag("Days of work; default: the run's, or 30.")] = None,
    price: Price = None,
    currency: Currency = None,
    prices: Prices = None,
    commitment: Commitment = None,
    cloud: Cloud = None,
    region: Region = None,
    trials: Annotated[int, flag("Runs to simulate.")] = 200,
    seed: Annotated[int, flag("Of the simulation.")] = 0,
    everything: All = False,
    json: Json = False,
) -> None:
    """Simulate failures of a run: the time that trains, the best interval between saves, spares, days, money.

    \b
    scalewright goodput --devices 16384 --params 405B --storage-bytes-per-s 2TB/s
    scalewright goodput run.yaml --cluster dgx-h100 --price 2.5
    scalewright goodput runs/run
    """
    flags = {key: value for key, value in locals().items() if key not in ("everything", "json", "source")}
    from scalewright.api import goodput as ask
    from scalewright.report.present import show_answer

    with only_answer(json), working("simulating"):
        answer = ask(source, **flags)
    print_json(answer) if json else show(show_answer(answer), everything)
