"""What the answer lists: groups and their bandwidths, layers, kernels, communicators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scalewright.report.page import Section
from scalewright.spec.common.formatting import metric, short_time

MOST, MOST_LAYERS = 20, 200


def section(answer: Mapping[str, Any]) -> Section | None:
    tables = [table for make in TABLES for table in make(answer)]
    return Section("tables", "In numbers", "diagnosis_tables.html", {"tables": tables}) if tables else None


def _groups(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    groups = answer.get("communication", {}).get("per_group")
    if groups:
        ordered = sorted(groups, key=lambda group: -group["transfer_s"] - max(group["wait_s"]))
        yield {
            "title": "Process groups",
            "note": "Transfer: what the last rank needs; waiting: what others spend in it before; exposed: "
            "beside no computation, on the mean rank.",
            "heads": ["group", "collectives", "transfer", "waiting up to", "exposed"],
            "rows": [
                [group["group"], f"{group['collectives']:,}", short_time(group["transfer_s"]),
                 short_time(max(group["wait_s"])),
                 short_time(sum(group["exposed_s"]) / len(group["exposed_s"]))]
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


def _roofs(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    roofs = answer.get("roofs")
    if roofs:
        yield {
            "title": "Products and attention of the first rank",
            "note": f"Together {roofs['of_roof_pct']:.0f}% of the device's roof while they run, and "
            f"{roofs['of_peak_pct']:.0f}% of its peak over the window. The roof: its published peak, or its "
            "memory's rate where that binds.",
            "heads": ["operator", "precision", "calls", "mean", "FLOP/s", "of the roof", "bound by"],
            "rows": [
                [row["name"], row["precision"], f"{row['calls']:,}",
                 short_time(row["total_s"] / row["calls"]), metric(row["flops_per_s"], "FLOP/s"),
                 f"{100 * row['share_of_roof']:.0f}%", row["bound"]]
                for row in roofs["products"][:MOST]
            ],
        }  # fmt: skip


def _layers(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if answer.get("layers"):
        yield {
            "title": "Layers of the first rank",
            "note": "While the device works on one; recomputation counts as forward.",
            "heads": ["layer", "forward", "backward", "% of the window"],
            "rows": [
                [row["layer"], short_time(row["forward_s"]), short_time(row["backward_s"]),
                 f"{row['share_pct']:.1f}"]
                for row in answer["layers"][:MOST_LAYERS]
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


def _occupancy(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if answer.get("occupancy"):
        yield {
            "title": "How kernels fill the device",
            "note": "Occupancy: resident warps of the most there can be, and what limits them. Filled: the "
            "part of its waves' room that a grid uses.",
            "heads": ["kernel", "of kernels", "blocks", "threads", "occupancy", "limit", "waves", "filled"],
            "rows": [
                [row["kernel"], f"{row['share_pct']:.1f}%", f"{row['grid']:,}", f"{row['block']:,}",
                 f"{row['occupancy_pct']:.0f}%", row["limited_by"], f"{row['waves']:.2f}",
                 f"{row['filled_pct']:.0f}%"]
                for row in answer["occupancy"][:MOST]
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
                [communicator["id"], _plain(communicator["ranks"]), _plain(communicator["channels"]),
                 ", ".join(f"{link}: {count}" for link, count in communicator["links"].items())]
                for communicator in answer["nccl"]["communicators"][:MOST]
            ],
        }  # fmt: skip


def _plain(value: object) -> str:
    return "–" if value is None else f"{value:,.4g}" if isinstance(value, float) else str(value)


TABLES = (_groups, _bandwidths, _layers, _roofs, _kernels, _occupancy, _ncu, _communicators)
