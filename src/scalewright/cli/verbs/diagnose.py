"""`scalewright diagnose PATH...`: where the time of a run went, and what would help."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalewright.cli.options import All, Force, Json, argument, flag, option
from scalewright.cli.output import only_answer, print, print_json, working
from scalewright.cli.terminal import show
from scalewright.spec.errors import RunError, UserError

if TYPE_CHECKING:
    from scalewright.diagnose.diagnose import Drawing


def diagnose(
    paths: Annotated[
        list[Path],
        argument(
            "PATH...",
            "Traces of PyTorch's profiler or Nsight Systems, one a rank, or their folder; flight recorder dumps; "
            "memory snapshots; `ncu --csv`; a pipeline's operations (parquet); a log of training, a run's folder; "
            "`example`, `example-log`.",
        ),
    ],
    from_: Annotated[
        str | None,
        option("FILE", "Of a log: the configuration, script or command line of its run, as `read` takes it.", "--from"),
    ] = None,
    model: Annotated[str | None, option("MODEL", "The model, where a log doesn't state it.")] = None,
    cluster: Annotated[
        str | None,
        option("CLUSTER", "Likewise; of traces, whose links their collectives should reach.", "--cluster", "-c"),
    ] = None,
    layout: Annotated[str | None, option("KEY=VALUE,...", "Likewise, of the layout: devices=64,tp=8.")] = None,
    seq_len: Annotated[int | None, flag("Likewise, tokens of a sequence.")] = None,
    what_if: Annotated[
        list[str] | None,
        option(
            "NAME=FACTOR", "The step's time with a cost changed: compute=0.8, data=0, rank3.host=0.5, attention=0.5."
        ),
    ] = None,
    against: Annotated[
        Path | None, option("OTHER", "Another run, trace or log, an earlier --json, or a plan's.")
    ] = None,
    fail_if_slower: Annotated[
        float | None, option("PCT", "Exit with 1 where a step is slower than OTHER's by more than this.")
    ] = None,
    markdown: Annotated[bool, flag("As text for a ticket.", "--markdown")] = False,
    html: Annotated[Path | None, option("FILE", "As a page: causes, timeline, ranks, memory.")] = None,
    perfetto: Annotated[
        Path | None, option("FILE", "As a trace for ui.perfetto.dev; with --against PLAN its parts, too.")
    ] = None,
    everything: All = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Where the time of a run went, what bounds it, and what would help.

    Traces of several ranks are matched, so that waiting for a slow rank is told from transfer. From flight
    recorder dumps: the rank that a hang began with. From a memory snapshot: the peak, what it was made of and
    what would save memory. Needs no torch, and runs nothing that is in a file.

    \b
    scalewright diagnose example            # four ranks, made up
    scalewright diagnose trace.json.gz
    scalewright diagnose traces/            # a file a rank
    scalewright diagnose nccl.log           # of a run with NCCL_DEBUG=INFO
    scalewright diagnose train.log --cluster dgx-h100       # of Megatron-LM, torchtitan, NeMo, ...
    scalewright diagnose train.log --from pretrain.sh --cluster dgx-h100
    scalewright diagnose new/ --against old/ --fail-if-slower 3
    """
    from scalewright.diagnose.diagnose import drawn
    from scalewright.diagnose.logs.given import Given

    if json and markdown:
        raise UserError("one form at a time", "--json and --markdown", "leave one of them out")
    if fail_if_slower is not None and against is None:
        raise UserError("slower than what", "--fail-if-slower", "add `--against OTHER`")
    _check_files(html, perfetto, force)
    with only_answer(json), working("reading"):
        given = Given(model, cluster, seq_len=seq_len)
        if from_ is not None or layout is not None:
            from scalewright.cli.verbs.predict import layout_keys, read_question

            configured = read_question(from_, model) if from_ is not None else None
            given = replace(given, layout=layout_keys({}, layout), configured=configured)
        answer, drawing = drawn(paths, given, what_if or (), against)
        _write_files(answer, drawing, html, perfetto, force)
    if json:
        print_json(answer)
    else:
        from scalewright.report.present import show_answer
        from scalewright.report.present.markdown import markdown as as_markdown

        shown = show_answer(answer)
        print(as_markdown(shown)) if markdown else show(shown, everything)
    if not understood(answer):
        raise typer.Exit(1)
    if fail_if_slower is not None:
        from scalewright.diagnose.compare.compare import slower_than

        if slower_than(answer["against"], fail_if_slower):
            raise typer.Exit(1)


def understood(answer: Mapping[str, Any]) -> bool:
    """Whether a log holds anything that is known: steps, facts of its run, an end, lines of NCCL."""
    if answer["kind"] != "log":
        return True
    log = answer["log"]
    return bool(log["steps"] or log["framework"] or log["dims"] or answer["ended"] or "nccl" in answer)


def _check_files(html: Path | None, perfetto: Path | None, force: bool) -> None:
    """Raises UserError for a file of the user's that would be replaced; called before long work."""
    if html is None and perfetto is None:
        return
    from scalewright.diagnose.timeline import is_ours
    from scalewright.report.page import check_page

    with contextlib.suppress(OSError):  # a path that can't be written, either
        if html is not None:
            check_page(html, force)
        if perfetto is None or perfetto.parts[:2] == ("/", "dev"):  # `>(...)`, /dev/null
            return
        if perfetto.is_fifo():
            raise UserError("nobody may read this pipe", str(perfetto), "give a file's name")
        if (perfetto.is_symlink() or perfetto.is_file()) and not force and not is_ours(perfetto):
            what = "the file is there already, and isn't as `--perfetto` wrote it"
            raise UserError(what, str(perfetto), "give another name, or --force to replace it")


def _write_files(
    answer: Mapping[str, Any], drawing: Drawing, html: Path | None, perfetto: Path | None, force: bool
) -> None:
    """Writes those that were asked for; UserError where there is nothing to draw, RunError where it fails."""
    if perfetto is not None and drawing.lanes is None:
        raise UserError("only traces have a timeline", "--perfetto", "leave it out, or give traces")
    lanes = drawing.lanes() if drawing.lanes is not None and (html or perfetto) else None
    if html is not None:
        from scalewright.report.diagnosis import write_diagnosis

        write_diagnosis(answer, html, lanes, force)
    if perfetto is not None and lanes is not None:
        from scalewright.diagnose.timeline import write_perfetto

        try:
            write_perfetto(lanes, perfetto, drawing.plan)
        except OSError as error:
            raise RunError(f"cannot write {perfetto}: {error.strerror or error}") from error
