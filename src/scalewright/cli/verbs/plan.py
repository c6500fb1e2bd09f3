"""`scalewright plan MODEL --cluster C --devices N --seq-len S --global-batch B`: the best layout of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import All, Force, Json, choice, flag, option
from scalewright.cli.output import only_answer, print_json, searching
from scalewright.cli.terminal import show
from scalewright.cli.verbs.predict import (
    LAYOUT,
    Cloud,
    Cluster,
    Commitment,
    Currency,
    Diloco,
    Framework,
    From,
    Goodput,
    Model,
    OptimizerName,
    Options,
    Price,
    Prices,
    Region,
    Tokens,
    Version,
    check_given,
    option_words,
    read_diloco,
    read_pairs,
    read_question,
)
from scalewright.spec.errors import UserError

AIMS = ("time", "cost", "energy", "tokens-per-dollar")
AXES = LAYOUT | {"dp"}  # of --fix and --why-not
SIZES = {"devices", "global_batch"}  # which a layout to beat shares with the best
INTERRUPTED = 130


def plan(
    model: Model = None,
    cluster: Cluster = None,
    from_: From = None,
    devices: Annotated[int | None, flag("All devices.")] = None,
    nodes: Annotated[int | None, flag("The same, in the cluster's nodes.")] = None,
    seq_len: Annotated[int | None, flag("Tokens of a sequence.")] = None,
    global_batch: Annotated[int | None, flag("Sequences of a step.")] = None,
    global_batch_tokens: Annotated[int | None, flag("The same, in tokens.")] = None,
    objective: Annotated[str, choice("objective", AIMS, "What is best.")] = "time",
    fix: Annotated[str | None, option("KEY=VALUE,...", "Hold axes: tp=8,pp=4 or tp=[4,8].")] = None,
    precision: Annotated[str, flag("auto, fp32, tf32, bf16, fp16, fp8, ...; any: the fastest.")] = "auto",
    memory_headroom: Annotated[
        float | None, flag("Share of the memory to leave free; default: what p90 of the prediction needs.")
    ] = None,
    margin: Annotated[float, flag("The simplest layout comes first within this share of the fastest.")] = 0.02,
    top: Annotated[int, option("K", "Layouts to show.", min=1, max=1000)] = 5,
    why_not: Annotated[str | None, option("KEY=VALUE,...", "Why this layout isn't the best: tp=4,pp=8.")] = None,
    near: Annotated[
        str | None, option("KEY=VALUE,...", "Your layout: what would beat it, changes ranked by gain. tp=4,pp=2.")
    ] = None,
    scaling: Annotated[str | None, option("A..B", "The same run on A to B devices, doubling; or 8,24,96.")] = None,
    out: Annotated[Path | None, option("FILE", "Write the run file (--emit: your file) there.")] = None,
    data: Annotated[str | None, option("DIR", "The run file's token shards.")] = None,
    framework: Framework = None,
    software_version: Version = None,
    options: Options = None,
    optimizer: OptimizerName = None,
    diloco: Diloco = None,
    tokens: Tokens = None,
    price: Price = None,
    currency: Currency = None,
    goodput: Goodput = None,
    prices: Prices = None,
    commitment: Commitment = None,
    cloud: Cloud = None,
    region: Region = None,
    emit: Annotated[bool, flag("Your own file (--from) in the best layout: what changes in it.", "--emit")] = False,
    force: Force = False,
    everything: All = False,
    json: Json = False,
) -> None:
    """Find the best layout of a run, and say why others lose.

    \b
    scalewright plan llama-3.1-8b --cluster dgx-h100 --devices 64 --seq-len 8192 --global-batch 512
    scalewright plan llama-3.1-8b --cluster dgx-h100 --devices 64 --seq-len 8192 --global-batch 512 --fix tp=8
    scalewright plan llama-3.1-8b --cluster dgx-h100 --nodes 8 --seq-len 8192 --global-batch 512 --near tp=8
    scalewright plan --from pretrain_llama.sh --cluster dgx-h100 --emit
    """
    how = "write `scalewright plan MODEL --cluster C --devices N --seq-len S --global-batch B`, or --from FILE"
    if near is not None and from_ is not None:
        raise UserError("--near and --from are both given", "--near", "leave it out: FILE has your layout")
    asked = read_question(from_, model) if from_ is not None else model
    asked, place = check_given(asked, cluster, "scalewright plan", how)
    if data is not None and out is None and not json:
        raise UserError("--data is for the run file", "--data", "add --out run.yaml, or --json")
    counts = read_counts(scaling) if scaling else None
    yours = read_pairs(near, "--near", LAYOUT - SIZES) if near is not None else None
    from scalewright.api import plan as search
    from scalewright.report.present import show_answer

    with only_answer(json), searching() as (tell, stop):
        answer = search(
            asked, place, devices, seq_len, global_batch, nodes=nodes, global_batch_tokens=global_batch_tokens,
            objective=objective, fix=read_pairs(fix, "--fix", AXES), memory_headroom=memory_headroom, margin=margin,
            top=top, precision=precision, framework=framework, software_version=software_version,
            options=option_words(options), optimizer=optimizer, diloco=read_diloco(diloco), tokens=tokens, price=price,
            currency=currency, goodput=goodput, prices=prices, commitment=commitment, cloud=cloud, region=region,
            scaling=counts, out=out, data=data, emit=emit, force=force, tell=tell, stop=stop,
            why_not=read_pairs(why_not, "--why-not", AXES) if why_not else None, yours=yours,
        )  # fmt: skip
    print_json(answer) if json else show(show_answer(answer), everything)
    if not answer["complete"]:
        raise typer.Exit(INTERRUPTED)


def read_counts(text: str) -> list[int]:
    """`8..4096` as 8, 16, ..., 4096; `8,24,96` as they are. Raises UserError."""
    how = "write 8..4096, or 8,16,24"
    low, dots, high = text.partition("..")
    try:
        numbers = [int(low), int(high)] if dots else [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UserError(f"scaling is '{text}'", "--scaling", how) from None
    if not numbers or min(numbers) < 1 or max(numbers) > 10**7:
        raise UserError(f"scaling is '{text}'", "--scaling", "give counts from 1 to 10,000,000, as 8..4096")
    if not dots:
        return sorted(set(numbers))
    first, last = numbers
    if first > last:
        raise UserError(f"scaling is '{text}'", "--scaling", f"write {last}..{first}")
    doubled = [first << times for times in range((last // first).bit_length())]
    return doubled if doubled[-1] == last else [*doubled, last]
