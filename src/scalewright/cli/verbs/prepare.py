"""`scalewright prepare INPUT... --out DIR`: text to token shards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from scalewright.cli.options import Json, argument, choice, flag, option
from scalewright.cli.output import only_answer, print, print_json
from scalewright.spec.common.formatting import counted
from scalewright.spec.ends import BOS_CHOICES

if TYPE_CHECKING:
    from scalewright.data.prepare import Summary


def prepare(
    inputs: Annotated[
        list[str],
        argument("INPUT", "Text, JSONL or parquet files, folders; or shakespeare, python-stdlib, wikitext-2."),
    ],
    out: Annotated[Path, option("DIR", "Where the shards go.")],
    vocab_size: Annotated[int | None, flag("Train a byte-level BPE of this size.")] = None,
    tokenizer: Annotated[Path | None, option("FILE", "Take this tokenizer.json instead of training one.")] = None,
    valid_fraction: Annotated[float | None, flag("Share kept for validation; default 0.1.")] = None,
    text_key: Annotated[str, flag("Key of the text in JSONL, its column in parquet.")] = "text",
    eod: Annotated[str | None, flag("The token that ends a document; default: found.")] = None,
    bos: Annotated[
        str, choice("bos", BOS_CHOICES, "Whether a token begins each document; auto: as the tokenizer does.")
    ] = "auto",
    special_tokens: Annotated[
        list[str] | None,
        option("TOKEN|FILE", "Add to the tokenizer: a token, or a file with one a line; again for more."),
    ] = None,
    workers: Annotated[int | None, flag("Processes; default: one per core.")] = None,
    stats: Annotated[bool, flag("Show how long the documents are.", "--stats")] = False,
    overwrite: Annotated[bool, flag("Delete what an earlier prepare left there.", "--overwrite")] = False,
    renew: Annotated[bool, flag("Begin anew where other texts or options were prepared.", "--renew")] = False,
    skip_bad: Annotated[bool, flag("Leave out lines of JSON that hold no text, and list them.", "--skip-bad")] = False,
    json: Json = False,
) -> None:
    """Turn text into token shards that training reads.

    Stopped anywhere, the same command goes on where it was.
    """
    from scalewright.data.prepare import prepare as prepare_text

    with only_answer(json):
        summary = prepare_text(
            inputs, out, vocab_size=vocab_size, tokenizer=tokenizer, valid_fraction=valid_fraction, text_key=text_key,
            eod=eod, bos=bos, special_tokens=special_tokens, workers=workers, stats=stats, overwrite=overwrite,
            skip_bad=skip_bad, renew=renew,
        )  # fmt: skip
    print_json(summary.plain()) if json else _show(summary)


def _show(summary: Summary) -> None:
    from scalewright.data.inputs import shown_lines
    from scalewright.data.join import histogram_lines

    made = "learnt here" if summary.tokenizer_trained else "as given"
    print(f"{summary.out}: vocabulary {summary.vocab_size} ({made}), {summary.seconds:.1f} s")
    print(f"  a document is {summary.ends}")
    for name, split in summary.splits.items():
        print(
            f"  {name}: {counted(split['tokens'], 'tokens')} in {counted(split['documents'], 'documents')}, "
            f"{split['bytes_per_token']:.2f} bytes/token"
        )
    if summary.unvalidated:
        print(f"  valid: {summary.unvalidated}")
    if summary.pieces_kept:
        print(f"  {summary.pieces_kept} of {summary.pieces} pieces were done already")
    for reason, count in summary.left_out.items():
        print(f"  left out: {counted(count, reason)}")
    for line in shown_lines(summary.bad_lines, summary.left_out):
        print(line)
    for reason, count in summary.mended.items():
        print(f"  taken, but repaired: {counted(count, reason)}")
    for path in summary.mended_files[:10]:
        print(f"    {path}")
    for name, statistics in (summary.statistics or {}).items():
        print(f"\n{name}, documents by tokens:")
        print("\n".join(histogram_lines(statistics)))
