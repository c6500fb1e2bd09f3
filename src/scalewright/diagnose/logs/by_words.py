"""Step lines of trainers that forms.py has no row for, known by the words that trainers share.

    step:3 - actor/pg_loss:0.01 - timing_s/step:45.3                     word: number
    {"num_updates": "100", "loss": "12.3", "ups": "1.2"}                 quoted
    step  3/18865 | loss 11.0 (+nan) | lr 8.6e-07 | 3056.3 ms | 171546 tok/s    word number, number unit
    Epoch 0:  12%|# | 120/1000 [01:23<10:00,  1.4it/s, train_loss=2.3]   a bar's count and rate, with a loss

A line counts where it has a step's number and a loss, and isn't one of a validation. A rate of tokens counts where its
unit tells whether it is a device's: `wps` is of all devices in one trainer, and of each in another. So with seconds
under `time`, which are a step's or all since the start; where a line has no step's time, the lines' clocks tell it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from scalewright.spec.base import read_yaml

NUMBER = r"(?P<value>[-+]?\d[\d,]{0,30}(?:\.\d{1,30})?(?:[eE][-+]?\d{1,4})?|[-+]?(?:nan|inf)\b)"
PAIR = re.compile(
    rf"(?P<key>[A-Za-z][\w/ ().]{{0,40}})['\"]?\s{{0,2}}[:=]\s{{0,8}}['\"]?{NUMBER}(?P<unit>[A-Za-z/]{{0,8}})"
)
SEGMENT = re.compile(
    rf"\|\s{{0,4}}(?P<key>[A-Za-z][\w/-]{{0,40}})\s{{1,8}}{NUMBER} ?(?P<unit>[a-zA-Z]{{0,3}})\s{{0,4}}(?=\||$)"
)
BARE = re.compile(rf"\b(?P<key>step|iter|iteration|batch|loss|norm|lr)\s{{1,8}}{NUMBER}(?P<unit>)", re.I)
UNIT = re.compile(
    rf"{NUMBER} ?(?P<unit>(?P<key>ms|s|sec|tok|tokens|(?:it|steps?)(?=/s))"
    r"(?:/(?:step|iter|batch|it|s|sec|second)(?:/(?:gpu|device))?)?)\b",
    re.I,
)
BAR = re.compile(  # tqdm's, and Levanter's
    r"(?:\| {0,4}(?P<step>\d{1,12})/(?P<of>\d{1,12}) \[[\d:]{4,12}<[\d:?]{1,12}, {1,4}|"
    r"Progress on:train (?P<count>[\d.]{1,9})(?P<kilo>k?)it/\S{1,20} rate:)"
    r"(?P<rate>[\d.]{1,16})(?P<unit>s/(?:it|ba)|(?:it|ba)/s)"
)
EPOCH = re.compile(r"\b[Ee]poch:? {1,4}(?:(\d{1,6})\b(?!/)|\[(\d{1,6})/)")
# A line that has one value: `current step time: 1.2`, ` 'loss': 10.4,`, `  • Loss: 0.1`, `==== Step 3/100 ====`.
ALONE = re.compile(
    r"[\W_]{0,60}?(?P<key>[A-Za-z][\w /().]{0,40}?)['\"]?\s{0,20}(?:[:=|│]|(?= \d+/\d+ =))\s{0,20}"
    rf"(?:array\()?['\"]?{NUMBER}(?P<unit>(?:ms|s|K|M|B|/\d+)?)(?:[\s,}}|│)=]|dtype=\w+|\(\d)*\Z"
)
VALIDATION = re.compile(r"(?<![A-Za-z])(?:val|valid|validation|eval|evaluation|evaluating|test)(?![A-Za-z])", re.I)
TABLE = read_yaml(Path(__file__).with_name("by_words.yaml"))
NAMES: dict[str, tuple[str, ...]] = {ours: tuple(words) for ours, words in TABLE["names"].items()}
CLOCKS, BEFORE = tuple(TABLE["clocks"]), frozenset(TABLE["before"])
OF_LOSS = len("loss (val):")
FACTORS = {"K": 1e3, "M": 1e6, "B": 1e9, "ms": 1e-3}


def by_words(text: str) -> Iterator[tuple[str, str]]:
    """The line's values under our names; nothing where it has no step's number, or no loss."""
    if VALIDATION.search(text, 0, text.lower().find("loss") + OF_LOSS):  # what stands behind is beside a step's
        return
    words: dict[str, float] = {}
    for pattern in (PAIR, BARE, SEGMENT, UNIT):
        for match in pattern.finditer(text):
            value = float(match["value"].replace(",", ""))
            key, unit = plain(match["unit"] if pattern is UNIT else match["key"]), match["unit"].partition("/")[0]
            if key == "time":  # seconds are as often those since the start
                key = "step time" if "/" in match["unit"] else "time ms" if unit == "ms" else ""
            elif key in words and pattern is UNIT:  # one of several times in a step
                words[key] = math.nan
            words.setdefault(key, value * (1e-3 if key.endswith(" ms") and not unit else FACTORS.get(unit, 1.0)))
    values = {
        ours: words[name]
        for ours, names in NAMES.items()
        for name in reversed(names)  # the first counts
        if name in words and not (ours == "step_time_s" and math.isnan(words[name]))
    }
    if bar := BAR.search(text):
        rate = float(bar["rate"])
        count = float(bar["step"] or round(float(bar["count"]) * (1000 if bar["kilo"] else 1)))
        if (epoch := EPOCH.search(text)) and bar["of"]:  # its count begins again in each
            count += int(bar["of"]) * (int(epoch[1]) if epoch[1] else int(epoch[2]) - 1)
        values |= {
            "step": words.get("global step", count),
            "step_time_s" if bar["unit"][0] == "s" else "steps_per_s": rate,
        }
    if values.get("tflops", 0) > 1e6:  # FLOP/s
        values["tflops"] *= 1e-12
    if "step" in values and values["step"].is_integer() and "loss" in values:
        yield from ((key, str(value)) for key, value in values.items())


def alone(text: str) -> Iterator[tuple[str, str]]:
    """The value of a line that has one, under our name."""
    match = ALONE.match(text)
    name = plain(match["key"]) if match else ""
    for ours, names in NAMES.items():
        if match and name in names and not VALIDATION.search(match["key"]):
            value = float(match["value"].replace(",", ""))
            yield ours, str(value * (1e-3 if name.endswith(" ms") else FACTORS.get(match["unit"], 1.0)))


def plain(key: str) -> str:
    """`actor/grad_norm` -> `grad norm`: words in small letters, without those that stand before a name."""
    words = re.sub(r"[^a-z]+", " ", key.lower()).split()
    while len(words) > 1 and words[0] in BEFORE:
        words.pop(0)
    return " ".join(words)
