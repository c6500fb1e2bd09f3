"""What the answer lists: groups and their bandwidths, kernels, communicators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scalewright.report.page import Section
from scalewright.spec.text.words import metric, short_time

MOST = 20


def section(answer: Mapping[str, Any]) -> Section | None:
    tables = [
        table for make in (_groups, _bandwidths, _kernels, _ncu, _communicators) for table in make(answer)
    ]
    return Section("tables", "In numbers", "diagnosis_tables.html", {"tables": tables}) if tables else None


def _groups(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    groups = answer.get("communication", {}).get("per_group")
    if groups:
        ordered = sorted(groups, key=lambda group: -group["transfer_s"] - max(group["wait_s"]))
        yield {
            "title": "Process groups",
            "note": "Transfer: what the last rank needs; waiting: what the others spend in it before.",
            "heads": ["group", "collectives", "transfer", "waiting up to"],
            "rows": [
                [group["group"], f"{group['collectives']:,}", short_time(group["transfer_s"]),
                 short_time(max(group["wait_s"]))]
                for group in ordered[:MOST]
            ],
        }  # fmt: skip


def _bandwidths(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    rates = answer.get("communication", {}).get("bandwidths")
    if rates:
        yield {
            "title": "Collectives",
            "note": "Bus bandwidth as nccl-tests count it, of the large ones.",
            "heads": ["group", "collective", "calls", "largest", "bus bandwidth", "link"],
            "rows": [
                [rate["group"].partition(" [")[0], rate["kind"], f"{rate['calls']:,}",
                 metric(rate["largest_bytes"], "B"), metric(rate["busbw_bytes_per_s"], "B/s"),
                 metric(rate["link_bytes_per_s"], "B/s") if rate["link_bytes_per_s"] else "–"]
                for rate in rates[:MOST]
            ],
        }  # fmt: skip


def _kernels(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if answer.get("top_kernels"):
        yield {
            "title": "Kernels of the first rank",
            "note": "",
            "heads": ["kernel", "kind", "count", "mean, µs", "% of kernels"],
            "rows": [
                [kernel["short_name"], kernel["kind"], f"{kernel['count']:,}", f"{kernel['mean_us']:,.1f}",
                 f"{kernel['share_pct']:.1f}"]
                for kernel in answer["top_kernels"][:MOST]
            ],
        }  # fmt: skip


def _ncu(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if answer["kind"] == "kernels":
        keys = [key for key, value in answer["kernels"][0].items() if isinstance(value, (str, int, float))]
        yield {
            "title": "Kernels",
            "note": "",
            "heads": [key.replace("_", " ") for key in keys],
            "rows": [[_plain(kernel.get(key)) for key in keys] for kernel in answer["kernels"][:MOST]],
        }


def _communicators(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if answer.get("nccl", {}).get("communicators"):
        yield {
            "title": "Communicators",
            "note": "",
            "heads": ["communicator", "ranks", "channels", "links"],
            "rows": [
                [some["id"], _plain(some["ranks"]), _plain(some["channels"]),
                 ", ".join(f"{link}: {count}" for link, count in some["links"].items())]
                for some in answer["nccl"]["communicators"][:MOST]
            ],
        }  # fmt: skip


def _plain(value: object) -> str:
    return "–" if value is None else f"{value:,.4g}" if isinstance(value, float) else str(value)
