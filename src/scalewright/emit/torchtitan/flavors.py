"""Models that torchtitan has by name: presets of ours, where they differ from them, and since which release.

(models/<name>/__init__.py at 0.1.0, 0.2.2 and 0.3.0, read 2026-11; llama2 and the first llama3: 2024-08)

Its mixtures have a bias for balance (load_balance_coeff) that the published models haven't.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from scalewright.emit.rules import put
from scalewright.emit.tables import table
from scalewright.spec.common.formatting import below, flat
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec


class Flavor(NamedTuple):
    """A preset of ours (or sizes), the dotted keys that differ, and the releases that have it."""

    preset: str
    differs: Mapping[str, Any] = {}
    releases: str = "0.2 0.3"


def _flavors(kind: str) -> dict[tuple[str, str], Flavor]:
    flavors = table("torchtitan/flavors.yaml")[kind].items()
    return {(name.partition(" ")[0], name.partition(" ")[2]): Flavor(**flavor) for name, flavor in flavors}


FLAVORS, READ = _flavors("written"), _flavors("read")  # both are read
FIRST = (("llama3", "8B"), ("llama3", "70B"), ("llama3", "405B"))  # in 0.1 too
UNIMPORTANT = (  # neither a size nor a part; or numbers of YaRN that it derives
    "name", "family", "version", "context", "mtp_layers", "norm_eps", "learned_positions",
    "rope.scaling.mscale",
    "rope.scaling.mscale_all_dim", "rope.scaling.attention_factor", "rope.scaling.original_context",
)  # fmt: skip


def flavor_of(model: ModelSpec, release: str) -> tuple[str, str] | None:
    """The name and flavor of exactly this model, where the release has it; 0.1 doesn't scale RoPE."""
    keys = _keys(model, release)
    for name, flavor in FLAVORS.items():
        known = release in flavor.releases or (release == "0.1" and name in FIRST)
        if known and _keys(spec_of(flavor), release) == keys:
            return name
    return None


def spec_of(flavor: Flavor) -> ModelSpec:
    """The model of a flavor."""
    spec = load_model_spec(flavor.preset)
    if not flavor.differs:
        return spec
    data = spec.dump()
    for key, value in flavor.differs.items():
        put(data, key, value)
    return ModelSpec.parse(data)


def find_flavor(name: str, flavor: str, unscaled: bool = False) -> Flavor | None:
    """The flavor of a configuration; `8B_flex` is `8B` with another attention kernel."""
    plain = flavor.split("_")[0]
    if unscaled and name == "llama3" and plain in ("8B", "70B"):
        return Flavor(f"llama-3-{plain.lower()}")  # until 0.1 RoPE wasn't scaled
    if unscaled and (name, plain) in FLAVORS:
        entry = FLAVORS[name, plain]
        return Flavor(entry.preset, {**entry.differs, "rope.scaling": None, "name": f"{name}-{plain}"})
    known = {(key, size.lower()): entry for (key, size), entry in {**FLAVORS, **READ}.items()}
    entry = known.get((name, plain.lower()), Flavor(""))
    if not entry.differs:
        return entry if entry.preset else None
    return Flavor(entry.preset, {**entry.differs, "name": f"{name}-{plain}"})


def _keys(model: ModelSpec, release: str) -> dict[str, object]:
    keys, skip = flat(model.dump()), (*UNIMPORTANT, *(["rope.scaling"] if release == "0.1" else []))
    return {key: value for key, value in keys.items() if not below(key, skip)}
