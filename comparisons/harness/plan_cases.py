"""The cases of docs/plans.md: each command run as a user types it, its line's claims held against the answer.

plan_cases.yaml --> Case --scalewright plan ... --json--> Outcome --holds--> broken claims
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.report.layouts import one_line
from scalewright.spec.base import read_yaml
from scalewright.spec.schedules.kinds import KINDS

FILE = Path(__file__).with_name("plan_cases.yaml")
PUBLISHED = ("tokens_per_s_per_device", "tflops_per_device", "mfu", "step_time_s")
SIGNED = ("yes", "layout", "no")


@dataclass(frozen=True)
class Case:
    """One command, what was published of such a run, and what an expert says of the plan."""

    title: str
    command: str
    published: Mapping[str, Any]
    signed: str
    line: str
    holds: Mapping[str, Any]
    asked: str = ""
    file: Mapping[str, str] | None = None

    def run(self, folder: Path) -> Outcome:
        """Types the command in a folder; raises CalledProcessError with what it wrote where it fails."""
        if self.file is not None:
            (folder / self.file["name"]).write_text(self.file["text"], encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "scalewright", "plan", *self.command.split(), "--json"],
            cwd=folder, check=True, stdout=subprocess.PIPE, env=dict(os.environ), timeout=280,
        )  # fmt: skip
        return Outcome(self, json.loads(done.stdout))


@dataclass(frozen=True)
class Outcome:
    """A case's answer: the keys of `plan --json`."""

    case: Case
    answer: Mapping[str, Any]

    @property
    def best(self) -> Mapping[str, Any]:
        """The first layout, as `predict` gives it."""
        first: Mapping[str, Any] = self.answer["best"][0]
        return first

    @property
    def layout(self) -> str:
        """It in a line."""
        return one_line(self.best["layout"])

    @property
    def asked(self) -> Mapping[str, Any]:
        """The layout of `--why-not`; what its words leave open is as is best."""
        asked = self.answer["asked"]
        best = {**asked, **asked["best_such"], "fits": True} if "best_such" in asked else asked
        return dict(best)

    def published(self) -> tuple[str, float, float] | None:
        """The published number's key, that number, and the plan's own of the same key."""
        for key in PUBLISHED:
            if key in self.case.published:
                own = self.best[key]
                return key, float(self.case.published[key]), own["p50"] if key == "step_time_s" else own
        return None

    def broken(self) -> list[str]:
        """Claims of the line that this answer doesn't bear out."""
        return list(self._broken())

    def _broken(self) -> Iterator[str]:
        for key, asked in self.case.holds.items():
            value = self._value(key)
            if key == "techniques":
                held = value <= asked
            elif key in self.best["layout"]:
                held = value in (asked if isinstance(asked, list) else [asked])
            elif isinstance(asked, list):
                held = asked[0] <= value <= asked[1]
            else:
                held = value == asked
            if not held:
                yield f"{self.case.title}: {key} is {value}, claimed {asked} ({self.layout})"

    def _value(self, key: str) -> Any:
        if key == "techniques":
            return techniques(self.best["layout"])
        if key == "published_in_band":
            return self._in_band()
        if key == "asked_slower_pct":
            return round(self.asked["slower_pct"], 2)
        return self.best["layout"][key] if key in self.best["layout"] else self.best[key]

    def _in_band(self) -> bool:
        """Whether the published number is between the plan's p10 and p90."""
        found, step = self.published(), self.best["step_time_s"]
        assert found is not None, "a published number is needed"
        key, theirs, own = found
        seconds = theirs if key == "step_time_s" else step["p50"] * own / theirs
        return bool(step["p10"] <= seconds <= step["p90"])


def techniques(layout: Mapping[str, Any]) -> int:
    """Techniques of a layout, counted as plan/search/shortage.py does."""
    recompute = layout["recompute"]
    count = KINDS[layout["schedule"]].complexity if layout["pp"] > 1 else 0
    count += 0 if recompute == "none" else 2 if isinstance(recompute, Mapping) else 1
    return count + 2 * (layout["offload"] != "none") + (layout["etp"] > 1)


def load_cases() -> tuple[str, list[Case]]:
    """The date of the judgements, and the cases in the page's order."""
    data = read_yaml(FILE)
    cases = [Case(**entry) for entry in data["cases"]]
    assert all(case.signed in SIGNED for case in cases)
    return str(data["date"]), cases
