"""`events.jsonl`: a run's events with their times; append only, so that those of earlier lives stay.

    {"time": 1767225600.25, "kind": "save", "step": 400, "seconds": 0.8, "path": "checkpoints/step-00000400"}

| kind | fields beside `step` |
| --- | --- |
| `start`, `resume` | `began` (when the command did), `load_s` (of reading a checkpoint) |
| `start` | `world`, `peak_flops` (FLOP/s a device), `peak_source`, `pid`; `scheduler`, `job`, `restarts` |
| `resume` | `path` of the checkpoint, or `in_process`: from what ranks have; and what `start` has |
| `changed` | `changes`: {dotted key: [old, new]} between the checkpoint's run and the one that goes on |
| `save` | `path`, `seconds` |
| `evaluate` | a validation: `seconds` |
| `lost` | work that is done again after a resume or a rewind: `steps`, `seconds`; `until`: the last sign of it |
| `stop` | saved, and left: `cause` (SIGTERM, SIGUSR1, file STOP, time limit, callback, ...) |
| `fault` | `message`; of one that ended an attempt: `failure` (alike for like ones), `ranks`, `detect_s`; `gave_up` |
| `restart` | `attempt`, `world`, `world_before`, `in_process`; `detect_s`, `rendezvous_s`, `load_s`, `first_step_s` |
| `regroup` | ranks come together, to take new ones in (`elastic.in_process`) |
| `memory` | a resume from a step in the nodes' memory: `copies`, of ranks whose part came from another node |
| `lags` | a save waits for the one before (`seconds`), or steps in memory for their copies on other nodes |
| `world` | other ranks than the run file's (`elastic`): `asked`, `devices`, `micro_batch`, `accumulation` |
| `slow` | a rank that the others wait for, for long: `rank`, `host`, `pid`, `times`, `work_s` |
| `back` | failures alike: the newest checkpoint is set `aside` |
| `nonfinite` | a step's loss or gradient norm: `action` (skipped, stopped), `where`, `rank`, `values`, `again` |
| `copies` | steps between comparisons (train/guard/copies.py): `every`; `share` of the weights that has copies |
| `corrupt` | they differ: `action` (stopped, logged), `count`, `tensors`: [{tensor, ranks, ...}] |
| `spike` | far above the usual: `action` (logged, skipped, clipped, rewound), `of`, `value`, `usual`, `z`, `again` |
| `outer` | DiLoCo's outer step: `fragments`, `outer_grad_norm` |
| `islands` | a resume with another number of islands: `saved`, `now`; `message` has what they go on from |
| `overflow` | fp16 gradients were too large for their scale, which is halved: `loss_scale` |
| `predicted` | the step's predicted time: `p10`, `p50`, `p90`, `breakdown_s`; or nulls, and why in `note` |
| `tracker` | a tracker failed or fell behind, or answers again: `name`, `error`, `dropped` or `message` |
| `finish` | the last line of a run that reached its end |

Other kinds are allowed: readers skip unknown ones.
"""

from __future__ import annotations

import time
from typing import Any

from scalewright.spec.common.formatting import counted
from scalewright.spec.common.jsonl import scan_jsonl
from scalewright.track.lines import LineWriter, finite
from scalewright.track.saved import Saved


class EventsFile(LineWriter):
    """Appends events; the launcher, rank 0 and the trackers' thread may each hold one on the same file."""

    def write(self, kind: str, **fields: Any) -> dict[str, object]:
        """Appends one event and returns it; `time` is in seconds since 1970 (UTC)."""
        event = {"time": time.time(), "kind": kind, **finite(fields)[0]}
        self.append(event)
        return event

    def bring_back(self, saved: Saved | None) -> str:
        """Appends the lines that a checkpoint has and the file hasn't; a line about that, empty for none.

        In place: the file is the run's lock (train/state/claim.py), and others may have it open.
        """
        if saved is None or saved.is_in(self.path):
            return ""
        there = {text for text, _ in scan_jsonl(self.path)}
        back = [row for text, row in saved.rows if text not in there]
        for row in back:
            self.append(row)
        return saved.note(f"{counted(len(back), 'lines')} came back from the checkpoint")
