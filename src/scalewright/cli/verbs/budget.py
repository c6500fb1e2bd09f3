"""`scalewright budget`: a size, its tokens, its layout and what they take; `ladder` and `fit`: a law of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.options import All, Force, Json, argument, choice, flag, option
from scalewright.cli.output import only_answer, print, print_json, working
from scalewright.cli.terminal import print_table, show
from scalewright.cli.verbs.predict import Cloud, Cluster, Commitment, Currency, Goodput, Price, Prices, Region
from scalewright.cli.verbs.presets import _model_names
from scalewright.spec.common.formatting import count
from scalewright.spec.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence


def _law_names() -> list[str]:
    from scalewright.budget.laws import laws

    return [*laws(), "all"]


Law = Annotated[
    str | None, option("NAME|all", "The scaling law to follow; all: every one beside it.", "--law", words=_law_names)
]
Like = Annotated[str | None, flag("The family, or a preset of it, whose shape to follow; default: llama.")]
Vocab = Annotated[int | None, flag("Vocabulary size; default: a usual one for the size.", min=1)]


def budget(
    ctx: typer.Context,
    flops: Annotated[float | None, flag("FLOPs of the training, 6 x parameters x tokens: 1e23.")] = None,
    device_hours: Annotated[float | None, flag("Hours of one device: 50k.")] = None,
    days: Annotated[
        float | None, flag("On these devices; beside another amount, the deadline.", "--days", "--deadline")
    ] = None,
    money: Annotated[float | None, flag("At --price, or at the list's price of this device.")] = None,
    energy: Annotated[float | None, flag("kWh, at the wall of the data centre.")] = None,
    loss: Annotated[float | None, flag("Nats a token to reach, as the law counts them.")] = None,
    params: Annotated[float | None, flag("Hold the size: 8B.")] = None,
    tokens: Annotated[float | None, flag("Hold the training tokens: 15T.")] = None,
    model: Annotated[
        str | None, option("MODEL", "Hold the model, as `predict` takes it.", "--model", words=_model_names)
    ] = None,
    cluster: Cluster = None,
    clusters: Annotated[
        str | None, option("C,C,...", "The same on each of these, side by side: dgx-h100,dgx-b200.", "--clusters")
    ] = None,
    devices: Annotated[int | None, flag("All devices.", min=1)] = None,
    law: Law = None,
    serve: Annotated[float | None, flag("Tokens to serve later: what training and serving cost together.")] = None,
    unique: Annotated[float | None, flag("Tokens at hand; more are repeats.")] = None,
    like: Like = None,
    vocab: Vocab = None,
    seq_len: Annotated[int, flag("Tokens of a sequence.")] = 4096,
    price: Price = None,
    currency: Currency = None,
    prices: Prices = None,
    commitment: Commitment = None,
    cloud: Cloud = None,
    goodput: Goodput = None,
    region: Region = None,
    pue: Annotated[float | None, flag("All of the site's power over its computers'.")] = None,
    out: Annotated[Path | None, option("FILE", "Write the run file there; x.html: a page of the answer.")] = None,
    data: Annotated[str | None, option("DIR", "The run file's token shards.")] = None,
    force: Force = False,
    everything: All = False,
    json: Json = False,
) -> None:
    """How large a model, on how many tokens, for a budget; or what a model and its tokens take.

    \b
    scalewright budget --days 30 --cluster dgx-h100 --devices 64
    scalewright budget --money 250k --cluster dgx-h100 --serve 2T --out run.yaml
    scalewright budget --params 8B --tokens 15T --cluster dgx-h100 --devices 1024
    scalewright budget --params 8B --tokens 1T --days 30 --clusters dgx-h100,dgx-b200
    scalewright budget --flops 1e23 --law all
    """
    if ctx.invoked_subcommand is not None:
        if any(value not in (None, False, 4096) for value in ctx.params.values()):
            how = f"write `scalewright budget {ctx.invoked_subcommand} --flag ...`"
            raise UserError(f"a flag stands before '{ctx.invoked_subcommand}'", "scalewright budget", how)
        return
    from scalewright.api import budget as ask
    from scalewright.report.present import show_answer

    if out is not None and out.suffix not in (".yaml", ".yml", ".html"):
        raise UserError(f"{out} is no run file's name", "--out", "end it in .yaml, or .html for a page of the answer")
    if data is not None and out is None and not json:
        raise UserError("--data is of a run file", "--data", "add --out run.yaml, or leave it out")
    page = out if out is not None and out.suffix == ".html" else None
    if page is not None:
        from scalewright.report.page import check_page

        check_page(page, force)
    with only_answer(json), working("following the law") as tell:
        answer = ask(
            flops=flops, device_hours=device_hours, days=days, money=money, energy=energy, loss=loss, params=params,
            tokens=tokens, model=model, cluster=cluster, devices=devices, law=law, serve=serve, unique=unique,
            like=like, vocab=vocab, seq_len=seq_len, price=price, currency=currency, prices=prices,
            commitment=commitment, cloud=cloud, goodput=goodput, region=region, pue=pue, data=data,
            out=None if page else out, force=force, tell=tell,
            clusters=[name.strip() for name in (clusters or "").split(",") if name.strip()],
        )  # fmt: skip
        if page is not None:
            from scalewright.report.answer import write_answer

            write_answer(answer, page, force)
    print_json(answer) if json else show(show_answer(answer), everything)


def ladder(
    out: Annotated[Path, option("DIR", "Where the run files go; their runs go to DIR/runs.")],
    flops: Annotated[float | None, flag("FLOPs of the largest run: 1e16.")] = None,
    params: Annotated[
        str | None, option("N,N,...", "Sizes: 0.2M,0.5M,1M; default: five, up to the best for --flops.")
    ] = None,
    tokens: Annotated[
        str | None, option("D,D,...", "Tokens: 0.5M,1M; default: 10, 20 and 40 for each parameter.")
    ] = None,
    law: Law = None,
    like: Like = None,
    vocab: Vocab = None,
    seq_len: Annotated[int, flag("Tokens of a sequence.", min=2)] = 1024,
    data: Annotated[
        str | None, option("DIR", "Token shards, as `prepare` writes them, with their validation part.")
    ] = None,
    device: Annotated[str, choice("device", ("auto", "cpu", "cuda", "mps"), "Where they will run.")] = "auto",
    force: Force = False,
    json: Json = False,
) -> None:
    """Write run files of a ladder of small models, to fit a law of your own to.

    \b
    scalewright budget ladder --flops 1e17 --data data/mine --out ladder
    for run in ladder/*.yaml; do scalewright train $run; done
    scalewright budget fit ladder
    """
    from scalewright.budget.ladder import ladder as make
    from scalewright.budget.ladder import write
    from scalewright.budget.laws import find_law

    if vocab is None and data is not None:
        vocab = _vocabulary(Path(data))
    rungs = make(find_law(law), flops, _numbers(params, "--params"), _numbers(tokens, "--tokens"), like, vocab)
    paths = write(rungs, out, data, seq_len, device, force)
    total = sum(rung.flops for rung in rungs)
    rows = [
        {"file": str(path), "params": rung.params, "tokens": rung.tokens, "flops": rung.flops}
        for path, rung in zip(paths, rungs, strict=True)
    ]
    if json:
        print_json({"runs": rows, "flops": total})
        return
    table = [
        [str(path), count(rung.params), count(rung.tokens), f"{rung.tokens / rung.params:.3g}", f"{rung.flops:.2e}"]
        for path, rung in zip(paths, rungs, strict=True)
    ]
    print_table(("file", "params", "tokens", "a param", "FLOPs"), table)
    print(f"{len(rungs)} runs, {total:.3g} FLOPs; train each, then: scalewright budget fit {out}")


def fit(
    runs: Annotated[list[str], argument("RUN_DIR|CSV", "Run folders, a ladder's, or CSV with params, tokens, loss.")],
    flops: Annotated[float | None, flag("Extrapolate to the best size for these FLOPs.")] = None,
    params: Annotated[float | None, flag("Extrapolate to this size (with --tokens).")] = None,
    tokens: Annotated[float | None, flag("Extrapolate to these tokens (with --params).")] = None,
    bootstrap: Annotated[int, flag("Fits to runs drawn again, for the intervals.", min=10, max=10000)] = 100,
    plot: Annotated[Path | None, option("FILE", "Draw runs and fit: fit.svg, fit.png.")] = None,
    json: Json = False,
) -> None:
    """Fit L = E + A/N^alpha + B/D^beta to your own runs, and say how far to trust it.

    \b
    scalewright budget fit ladder --flops 1e19 --plot fit.svg
    """
    from scalewright.budget.fit import fit_runs, read_runs
    from scalewright.report.present.budget import show_fit

    with only_answer(json), working("fitting"):
        answer = fit_runs(read_runs(runs), flops, params, tokens, bootstrap)
        if plot is not None:
            from scalewright.budget.plot import draw

            draw(answer, plot)
    print_json(answer) if json else show(show_fit(answer), False)


def _numbers(text: str | None, where: str) -> Sequence[float]:
    """`0.2M,0.5M` as numbers above 0; raises UserError."""
    from scalewright.spec.common.numbers import number_of

    numbers = []
    for part in (text or "").split(","):
        if not part.strip():
            continue
        try:
            value = number_of(part, where.removeprefix("--"))
            numbers.append(float(part) if value is None else value)
        except ValueError:
            numbers.append(0.0)
        if not 0 < numbers[-1] < 1e18:
            raise UserError(f"{part.strip()!r} is no size", where, "write numbers above 0, such as 0.2M,0.5M,1M")
    return numbers


def _vocabulary(folder: Path) -> int | None:
    """Of prepared shards, by their metadata; None where there are none."""
    from scalewright.spec.common.untrusted import read_json

    try:
        found = read_json(folder / "metadata.json")
    except (OSError, ValueError):
        raise UserError(
            "no token shards are here", str(folder), "give a folder that `scalewright prepare` wrote"
        ) from None
    size = found.get("vocab_size") if isinstance(found, dict) else None
    return size if isinstance(size, int) else None
