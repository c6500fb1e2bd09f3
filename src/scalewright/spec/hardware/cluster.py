"""A cluster: one kind of device, in nodes, joined by levels of links.

    load_cluster("dgx-h100")         a preset of data/clusters.yaml, or one of its aliases
    load_cluster("H100-80GB-SXM")    a device, in its usual system
    load_cluster("mine.yaml")        a file: {device, nodes, fabric, ...}, or {like: dgx-h100, nodes: 16}
    load_cluster({"device": "t4"})   the same, as a dict

`local` is this machine, which this package can't inspect: `machine.local.find_cluster` takes all of these and
`local` too. A profile of measured rates is a cluster file with `measured`, beside the published peaks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from scalewright.spec.base import Spec, from_keys, read_yaml
from scalewright.spec.common.formatting import counted, metric
from scalewright.spec.errors import Mistakes, UserError, unknown
from scalewright.spec.hardware import topology
from scalewright.spec.hardware.device_families import FAMILIES, OTHER
from scalewright.spec.hardware.devices import DATA, DeviceSpec, Link, device_names, find_device, fold, load_device, once
from scalewright.spec.hardware.topology import Fabric, Level, Measured

LOCAL = "local"
NETWORK = "network_bytes_per_s"
SLOWEST = 1e7  # bytes/s of a link: a slower one is rather a number of Gbit/s


class ClusterSpec(Spec):
    """A cluster. `nodes: null` means any number."""

    version: Literal[1] = 1
    name: str = Field(min_length=1)
    device: DeviceSpec
    devices_per_node: int = Field(ge=1)
    nodes: int | None = Field(None, ge=1)
    levels: tuple[Level, ...] = Field(min_length=1)
    host_memory_bytes: float | None = Field(None, gt=0)  # of a node; null: 250e9 for each of its devices
    measured: Measured | None = None
    price_per_device_hour: float | None = Field(None, gt=0)
    notes: tuple[str, ...] = ()

    @from_keys
    def _derive(cls, data: Any) -> Any:
        """Turns `device: NAME` and `link`/`fabric` into the device's facts and levels."""
        mistakes = Mistakes()
        device = mistakes.of(lambda: _device(data.get("device")))
        link = mistakes.of(lambda: Link.parse(data["link"], "link")) if data.get("link") else None
        fabric = mistakes.of(lambda: Fabric.parse(data["fabric"], "fabric")) if data.get("fabric") else None
        mistakes.stop()
        assert device is not None
        data["device"] = device
        data.setdefault("name", device.id)
        if data.get("devices_per_node") is None:
            data["devices_per_node"] = topology.default_devices_per_node(device)
        given = {key: data.pop(key) for key in ("link", "fabric") if key in data}
        if data.get("levels"):
            if given:
                raise UserError(f"levels and {next(iter(given))} are both given", "cluster", "keep levels alone")
            return data
        per_node = data["devices_per_node"]
        if not isinstance(per_node, int) or per_node < 1:
            return {**data, "levels": ()}  # the field's own check raises the error
        link, fabric = link or topology.usual_link(device, per_node), fabric or topology.usual_fabric(device)
        data["levels"] = topology.build_levels(device, per_node, link, fabric)
        if data.get("nodes") is None and fabric is None:
            data["nodes"] = max(1, (data["levels"][-1].size or 1) // per_node)
        return data

    @model_validator(mode="after")
    def _check(self) -> ClusterSpec:
        sizes = [level.size for level in self.levels]
        inner = [size for size in sizes[:-1] if size is not None]
        if len(inner) != len(sizes) - 1 or inner != sorted(set(inner)) or (sizes[-1] or 2**60) <= max(inner, default=0):
            how = "list them from the inside out, each larger; only the last may be null"
            raise UserError(f"level sizes are {sizes}", "levels", how)
        outermost, total = sizes[-1], self.devices
        if outermost is not None and (total is None or total > outermost):
            size = "any number of nodes" if total is None else counted(total, "devices")
            how = f"add a fabric, or set nodes: {max(1, outermost // self.devices_per_node)}"
            raise UserError(f"{size}, but no level joins more than {outermost}", "levels", how)
        return self

    @property
    def devices(self) -> int | None:
        """The number of devices; None when any number."""
        return None if self.nodes is None else self.nodes * self.devices_per_node

    @property
    def peak_source(self) -> Literal["published", "measured"]:
        """Whether `device.peak` is a data sheet's figure or this machine's measured matmul rate."""
        return self.device.peak_source

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumed figures, one line each, which no source gives. A CPU needs no family: it is timed."""
        assumed = [level for level in self.levels if level.source.startswith("assumed")]
        lines = [f"{level.name} {metric(level.bytes_per_s, 'B/s')} a device: {level.source}" for level in assumed]
        slow = [level for level in self.levels if level.bytes_per_s < SLOWEST]
        unit = "which is slow: write its unit, as 25 Gbit/s"
        lines += [f"{level.name} {metric(level.bytes_per_s, 'B/s')} a device, {unit}" for level in slow]
        device = self.device
        if device.family is None and device.resolved_family is OTHER and device.kind != "cpu":
            lines.append(f"family {OTHER.name} (device {device.id} gives none of {', '.join(FAMILIES)})")
        return tuple(lines)

    def check_devices(self, devices: int) -> None:
        """Raises UserError when the cluster has fewer devices than that."""
        if self.devices is not None and devices > self.devices:
            have = f"{self.devices} device" + ("s" if self.devices > 1 else "")
            how = f"ask for at most {self.devices}, or give a cluster with more nodes and a fabric"
            raise UserError(f"{devices} devices are asked for, but {self.name} has {have}", "cluster", how)

    def effective_levels(self) -> tuple[Level, ...]:
        """The levels, with measured rates in place of published ones where there are any."""
        if self.measured is None:
            return self.levels
        changed = []
        for level in self.levels:
            measured = self.measured.levels.get(level.name)
            rates = {k: rate for k, rate in (measured.dump() if measured else {}).items() if rate is not None}
            if level.name == "device" and self.measured.memory_bytes_per_s:
                rates.setdefault("bytes_per_s", self.measured.memory_bytes_per_s)
            changed.append(level.replace(**rates, source="measured") if rates else level)
        return tuple(changed)


def _device(data: Any) -> DeviceSpec:
    """A device given by name, in full, or as `{like: NAME, ...changes}`."""
    if isinstance(data, DeviceSpec):
        return data
    if data is None:
        how = "add `device: NAME`, or start from a preset with `like: NAME`"
        raise UserError("a cluster needs a device", "device", how)
    if isinstance(data, str):
        return load_device(data)
    if isinstance(data, dict) and "like" in data:
        changes = {key: value for key, value in data.items() if key != "like"}
        base = load_device(str(data["like"]))
        if isinstance(changes.get("peaks"), dict):
            changes["peaks"] = {**base.peaks.dump(), **changes["peaks"]}
        if "memory_bytes" in changes:  # the base's reported size doesn't apply
            changes.setdefault("memory_bytes_reported", None)
        return base.replace(**changes)
    return DeviceSpec.parse(data, "device")


@lru_cache(maxsize=1)
def _written() -> Any:
    """The presets as written, by name."""
    return read_yaml(DATA / "clusters.yaml")


@lru_cache(maxsize=1)
def _entries() -> tuple[dict[str, dict[str, object]], dict[str, str]]:
    """The presets without their aliases, by name; and their names by folded name or alias."""
    written = _written()
    names = once((fold(alias), name) for name, keys in written.items() for alias in (name, *keys.get("aliases", ())))
    entries = {name: {"name": name, **keys} for name, keys in written.items()}
    for entry in entries.values():
        entry.pop("aliases", None)
    return entries, names


@lru_cache(maxsize=256)
def _preset(name: str) -> ClusterSpec:
    return ClusterSpec.parse(_entries()[0][name], where=f"clusters.yaml: {name}")


def cluster_presets() -> dict[str, ClusterSpec]:
    """Every cluster preset by name, in the order of a listing."""
    return {name: _preset(name) for name in _entries()[0]}


def cluster_names() -> list[str]:
    """Every name that `load_cluster` takes, besides paths: presets, their aliases, devices, `local`."""
    presets = [alias for name, entry in _written().items() for alias in (name, *entry.get("aliases", ()))]
    return list(dict.fromkeys([*presets, *device_names(), LOCAL]))


def load_cluster(
    source: str | Path | dict[str, object] | ClusterSpec, local: Callable[[], ClusterSpec] | None = None
) -> ClusterSpec:
    """The cluster of a name, a path or a dict; `local()` returns that of "local". Raises UserError."""
    if isinstance(source, ClusterSpec):
        return source
    if isinstance(source, dict):
        return _from_dict(source, "cluster", local)
    if isinstance(source, str) and fold(source) == LOCAL:
        if local is None:
            how = "use scalewright.machine.local.find_cluster"
            raise UserError("'local' must inspect this machine", "cluster", how)
        return local()
    if isinstance(source, str) and (cluster := _by_name(source)) is not None:
        return cluster
    if _is_path(source):
        data = read_yaml(source)
        if not isinstance(data, dict):
            raise UserError("a cluster file holds keys and values", str(source), "start with `device: NAME`")
        return _from_dict({"name": Path(source).stem, **data}, str(source), local)
    more = "`scalewright presets clusters` lists all names; a cluster of your own is a YAML file"
    raise unknown("cluster", str(source), cluster_names(), more=more)


def _is_path(source: str | Path) -> bool:
    text = str(source)
    named = text.endswith((".yaml", ".yml", ".json")) or os.sep in text
    return isinstance(source, Path) or named or Path(text).is_file()


def _by_name(name: str) -> ClusterSpec | None:
    """The preset, or the usual system of the device, of that name."""
    entries, names = _entries()
    if fold(name) in names:
        return _preset(names[fold(name)])
    if (device := find_device(name)) is None:
        return None
    usual = next((preset for preset, entry in entries.items() if entry["device"] == device.id), None)
    if usual is not None:
        return _preset(usual).model_copy(update={"name": device.id})
    return ClusterSpec.parse({"device": device, "name": device.id}, where=device.id)


def _from_dict(data: Mapping[str, Any], where: str, local: Callable[[], ClusterSpec] | None) -> ClusterSpec:
    """A cluster written out, or `{like: NAME, ...changes}`."""
    for keys in (data, data.get("device")) if "levels" not in data else ():
        if isinstance(keys, dict) and NETWORK in keys and (keys is data or "id" not in keys):
            rate = keys[NETWORK]
            how = f"write it as the cluster's network between nodes, fabric: {{bytes_per_s: {rate}}}"
            raise UserError(f"{NETWORK} is a figure of the device as it is sold", where, how)
    if "like" not in data:
        return ClusterSpec.parse(data, where)
    base = load_cluster(str(data["like"]), local)
    changes = {key: value for key, value in data.items() if key != "like"}
    device = changes.get("device")
    if isinstance(device, dict) and not {"like", "id"} & set(device):
        changes["device"] = {"like": base.device.id, **device}
    if {"device", "devices_per_node", "link", "fabric"} & set(changes) and "levels" not in changes:
        entry = _entries()[0].get(base.name)
        if entry is not None:  # build the levels anew from the preset as it is written
            return ClusterSpec.parse({**entry, **changes}, where)
        if "fabric" in changes or "link" in changes:
            raise UserError(f"'{base.name}' has its levels already", where, "give levels instead of link and fabric")
    return ClusterSpec.parse({**base.dump(), **changes}, where)
