"""A diagnosis beside another run or a plan, and with costs changed.

what if   compute=0.8: a step takes 5.9 ms, 16% less
against   then.json: a step takes 7.03 ms, was 5.86 ms: +20% (95%: +19 to +21%), beyond the steps' spread
  compute                   5.4 ms  was 4.3 ms    +1.1 ms
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalewright.report.document import JSON
from scalewright.report.present.blocks import Block, Line, Table
from scalewright.spec.common.formatting import against, decimal, short_time

MOST = 5  # kernels
LEAST = 0.005  # of a step: smaller changes aren't listed
PARTS = {
    "compute": "compute", "exposed_communication": "communication (exposed)",
    "exposed_copy": "memcpy (exposed)", "idle": "idle", "idle and memcpy": "idle and memcpy",
}  # fmt: skip
NOISE = {True: ", beyond the steps' spread", False: ", within the steps' spread", None: ""}
FEW = "; too few steps to tell that from noise"


def show_what_if(effects: Sequence[JSON]) -> Iterator[Line]:
    """A line a change."""
    for effect in effects:
        step, gain = effect["step_time_s"], effect["gain_pct"]
        takes = f"a step takes {short_time(step)}" if step is not None else short_time(effect["window_s"])
        change = f"{abs(gain):.1f}% {'less' if gain >= 0 else 'more'}" if abs(gain) >= 0.05 else "as before"
        yield Line("what if", f"{effect['change']}: {takes}, {change}")


def show_against(compared: JSON | None) -> Iterator[Block]:
    """The headline, then what changed by more than `LEAST` of a step, and why the two may not be alike."""
    if not compared:
        return
    yield Line("against", headline(compared), "warn" if compared["beyond_noise"] else "")
    least = LEAST * compared["before_s"]
    rows = [
        [name, short_time(row["now_s"]), short_time(row["before_s"]), signed_time(row["change_s"])]
        for name, row in changes(compared)
        if abs(row["change_s"]) >= least
    ]
    if rows:
        yield Table(["", "now", "plan" if compared["kind"] == "plan" else "before", "change"], rows)
    if loss := compared.get("loss"):
        yield Line("loss", _loss(loss))
    for note in compared["notes"]:
        yield Line("note", note)


def headline(compared: JSON) -> str:
    """By how much the whole changed, and whether that is more than noise."""
    other, now, before = compared["other"], compared["now_s"], compared["before_s"]
    if compared["kind"] == "plan":
        band = f"{short_time(compared['p10_s'])} to {short_time(compared['p90_s'])}"
        place = "outside" if compared["beyond_noise"] else "within"
        takes = f"a step takes {short_time(now)}, planned {short_time(before)} ({band})"
        return f"{other}: {takes}: {against(now, before)}, {place} the band"
    what = "a step takes" if compared["of"] == "step" else "the window is"
    interval = compared["interval_pct"]
    spread = f" (95%: {interval[0]:+.1f} to {interval[1]:+.1f}%)" if interval else FEW
    changed = f"{compared['change_pct']:+.1f}%{spread}".replace("-", "−")
    times = f"{what} {short_time(now)}, was {short_time(before)}"
    return f"{other}: {times}: {changed}{NOISE[compared['beyond_noise']]}"


def changes(compared: JSON) -> list[tuple[str, JSON]]:
    """The rows of a comparison: parts, causes of idle time, kinds of kernels, kernels that changed most."""
    rows = [(PARTS[row["part"]], row) for row in compared.get("parts", [])]
    rows += [(f"  idle: {row['idle']}", row) for row in compared.get("idle_causes", [])]
    rows += [(f"kernels: {row['kind']}", row) for row in compared.get("kinds", [])]
    rows += [(f"  {row['short_name'][:48]}", row) for row in compared.get("kernels", [])[:MOST]]
    return rows


def signed_time(seconds: float) -> str:
    """`+1.2 ms`, `−30 µs`."""
    return ("+" if seconds >= 0 else "−") + short_time(abs(seconds))


def _loss(loss: JSON) -> str:
    apart = loss["now"] - loss["before"]
    beyond = "leaves the other's beyond its noise" if loss["beyond_noise"] else "is the other's within its noise"
    losses = f"{decimal(loss['now'])}, was {decimal(loss['before'])} ({apart:+.4f}, noise {loss['noise']:.4f})"
    return f"from step {loss['from_step']:,}: {losses}: it {beyond}"
