"""Figures of a device as its vendor publishes them: peaks, memory, links. With sources, no defaults.

    DeviceSpec                                         units
      peaks     fp32 tf32 bf16 fp16 fp8 fp4 int8       FLOP/s without sparsity; null = no hardware for it
      memory    nominal (80 GB = 80e9) and reported    bytes
      memory_bytes_per_s                               bytes/s, reads and writes together
      link      the scale-up link: NVLink, xGMI, ICI   bytes/s ONE way per device, all of its links together
      host, network                                    bytes/s one way per device: PCIe and its NIC

Traps of data sheets, converted in the data: tensor rates printed with 2:4 sparsity are halved, link rates printed
two-way are halved, and GB is 1e9 bytes while a driver reports binary sizes: a program has what the driver reports, and
where nobody published that, the nominal size, and the device's notes say so. The data and their sources are in
`data/*.yaml`; `recalled` names figures that were written from memory. `driver_names` are whole names rather than a
search for "H100" in them: an "RTX 4090 Laptop GPU", an "RTX 3090 Ti" or an "H200 NVL" is another device with other
peaks, and a slice of a GPU (MIG) is not the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from scalewright.spec.base import Spec, read_yaml
from scalewright.spec.errors import unknown
from scalewright.spec.hardware.device_families import OTHER, Family, find_family

DATA = Path(__file__).parent / "data"
VENDOR_FILES = ("nvidia", "amd", "google", "aws", "intel")
# Formats that run on the same units at the same rate as their plain form.
SAME_RATE = {"mxfp8": "fp8", "mxfp4": "fp4", "nvfp4": "fp4", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

LinkKind = Literal["nvlink", "xgmi", "ici", "neuronlink", "roce", "pcie", "memory"]


class Peaks(Spec):
    """FLOP/s (int8: operations/s) of dense matrix multiplication; null = the device lacks it."""

    fp32: float | None = Field(None, gt=0)
    tf32: float | None = Field(None, gt=0)
    bf16: float | None = Field(None, gt=0)
    fp16: float | None = Field(None, gt=0)
    fp8: float | None = Field(None, gt=0)
    fp4: float | None = Field(None, gt=0)
    int8: float | None = Field(None, gt=0)


class Link(Spec):
    """The link that joins devices into a scale-up domain."""

    kind: LinkKind
    bytes_per_s: float = Field(gt=0)  # one way, all links of a device together
    domain: int = Field(ge=1)  # the most devices that it joins
    links: int | None = Field(None, ge=1)
    pair_bytes_per_s: float | None = Field(None, gt=0)  # between two devices; null = all of it (a switch)
    torus_axes: int | None = Field(None, ge=1)  # null = every pair at the same distance
    wraps_at: int | None = Field(None, ge=1)  # an axis wraps around only at multiples of this

    @property
    def bytes_per_link(self) -> float | None:
        """Bytes/s one way over one of the links; None where their number isn't known."""
        return self.bytes_per_s / self.links if self.links else None


class DeviceSpec(Spec):
    """One device. MFU is relative to `peak(precision)`."""

    id: str = Field(pattern=r"^[\w.\-]+$")
    name: str
    vendor: str
    kind: Literal["gpu", "tpu", "npu", "cpu", "mps"]
    family: str | None = None  # a name of spec/hardware/device_families.py; null: `resolved_family`
    aliases: tuple[str, ...] = ()
    driver_names: tuple[str, ...] = ()  # as CUDA and ROCm report it, less the brand
    peaks: Peaks
    peak_source: Literal["published", "measured"] = "published"
    memory_bytes: float = Field(gt=0)
    memory_bytes_reported: float | None = Field(None, gt=0)
    memory_bytes_per_s: float = Field(gt=0)
    link: Link | None = None
    host_bytes_per_s: float | None = Field(None, gt=0)
    network_bytes_per_s: float | None = Field(None, gt=0)
    peer_to_peer: bool = True  # false: over PCIe only through host memory (GeForce)
    cache_bytes: float | None = Field(None, gt=0)  # the last level on the chip: L2, Infinity Cache or SBUF
    multiprocessors: int | None = Field(None, ge=1)  # SMs, CUs; TensorCores of a TPU; cores of a CPU
    vector_memory_bytes: float | None = Field(None, gt=0)  # TPU: VMEM of one core
    devices_per_host: int | None = Field(None, ge=1)  # where the domain spans hosts: a TPU pod, an NVL72 rack
    other_figures: dict[str, float] = Field(default_factory=dict)
    sources: tuple[str, ...] = Field(min_length=1)
    recalled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @field_validator("family")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        return None if name is None else find_family(name).name

    @property
    def resolved_family(self) -> Family:
        """The family; without one, that of the known device with the same id, else `other`."""
        if self.family is not None:
            return find_family(self.family)
        preset = find_device(self.id)
        return OTHER if preset is None or preset.family is None else find_family(preset.family)

    def peak(self, precision: str) -> float | None:
        """Dense FLOP/s in `precision` (fp32, tf32, bf16, fp16, fp8, fp4, int8); None: no hardware for it.

        Raises UserError for an unknown precision; never returns another precision's rate.
        """
        name = SAME_RATE.get(precision, precision)
        if name not in Peaks.model_fields:
            raise unknown("precision", precision, [*Peaks.model_fields, *SAME_RATE], f"peak of {self.id}")
        value: float | None = getattr(self.peaks, name)
        return value

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions that the device has hardware for."""
        return tuple(name for name in Peaks.model_fields if getattr(self.peaks, name) is not None)

    @property
    def half(self) -> str:
        """What `precision: auto` is on a device that is no CPU: bf16; fp16 on a GPU that has that alone; else fp32."""
        if self.peaks.bf16:
            return "bf16"
        return "fp16" if self.kind == "gpu" and self.peaks.fp16 else "fp32"

    @property
    def capacity_bytes(self) -> float:
        """The memory that a program can use: as reported where that is known, else nominal."""
        return self.memory_bytes_reported or self.memory_bytes


@lru_cache(maxsize=1)
def _devices() -> dict[str, DeviceSpec]:
    """Every device of the data files, by id, in their order."""
    table: dict[str, DeviceSpec] = {}
    for file in (f"{vendor}.yaml" for vendor in VENDOR_FILES):
        for identifier, facts in read_yaml(DATA / file).items():
            table[identifier] = DeviceSpec.parse({"id": identifier, **facts}, where=f"{file}: {identifier}")
    return table


def fold(name: str) -> str:
    """A name in the form of the look-up: lower case, with `-` for `_` and spaces."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


@lru_cache(maxsize=1)
def _ids_by_name() -> dict[str, str]:
    names = [(name, device.id) for device in devices() for name in (device.id, *device.aliases)]
    return once((fold(name), key) for name, key in names)


def once(names: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What each name stands for; raises ValueError for one that stands for two things: a mistake in the data."""
    by_name: dict[str, str] = {}
    for name, key in names:
        if by_name.setdefault(name, key) != key:
            raise ValueError(f"'{name}' names both {by_name[name]} and {key}")
    return by_name


def devices() -> tuple[DeviceSpec, ...]:
    """Every known device, by vendor, oldest generation first."""
    return tuple(_devices().values())


def device_names() -> list[str]:
    """Every id and alias, as written; for messages and completion."""
    return [name for device in devices() for name in (device.id, *device.aliases)]


def find_device(name: str) -> DeviceSpec | None:
    """The device of this id or alias, whatever the case; None when there is none."""
    identifier = _ids_by_name().get(fold(name))
    return _devices()[identifier] if identifier else None


def load_device(name: str) -> DeviceSpec:
    """The device of this id or alias; raises UserError with the nearest names."""
    if (device := find_device(name)) is None:
        raise unknown("device", name, device_names(), more="`scalewright presets clusters` lists them")
    return device


def _plain(name: str) -> str:
    """A driver's name without its brand, in lower case."""
    text = " ".join(name.lower().split())
    for brand in ("nvidia ", "tesla ", "amd "):
        text = text.removeprefix(brand)
    return text


@lru_cache(maxsize=1)
def _ids_by_driver_name() -> dict[str, str]:
    return once((_plain(name), device.id) for device in devices() for name in device.driver_names)


def match_gpu(name: str, memory_bytes: float | None = None) -> DeviceSpec | None:
    """The known device that CUDA or ROCm calls `name`; None for a name that no device has.

    `memory_bytes` is what the driver reports: under four fifths of the nominal size it is a slice of the
    device (MIG, vGPU), whose peaks nobody published.
    """
    device = _devices().get(_ids_by_driver_name().get(_plain(name), ""))
    if device is None or (memory_bytes is not None and memory_bytes < 0.8 * device.memory_bytes):
        return None
    return device
