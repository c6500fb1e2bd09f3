"""Which known device a GPU is, from the name that its driver gives; a name that no device has is nobody.

The devices' `driver_names` (spec/hardware/data) are whole names rather than a search for "H100" in them: an
"RTX 4090 Laptop GPU", an "RTX 3090 Ti" or an "H200 NVL" is another device with other peaks, and a slice of a
GPU (MIG) is not the GPU.
"""

from __future__ import annotations

from functools import lru_cache

from scalewright.spec.hardware.devices import DeviceSpec, devices

BRANDS = ("nvidia ", "tesla ", "amd ")


def _plain(name: str) -> str:
    """A driver's name without its brand, in lower case."""
    text = " ".join(name.lower().split())
    for brand in BRANDS:
        text = text.removeprefix(brand)
    return text


@lru_cache(maxsize=1)
def _by_driver_name() -> dict[str, DeviceSpec]:
    """Devices by plain name; a name that two devices claim is a mistake in the data."""
    by_name: dict[str, DeviceSpec] = {}
    for device in devices():
        for name in map(_plain, device.driver_names):
            if by_name.setdefault(name, device) is not device:
                raise ValueError(f"drivers call both {by_name[name].id} and {device.id} '{name}'")
    return by_name


def match_gpu(name: str, memory_bytes: float | None = None) -> DeviceSpec | None:
    """The known device that CUDA or ROCm calls `name`; None for a name that no device has.

    `memory_bytes` is what the driver reports: under four fifths of the nominal size it is a slice of the
    device (MIG, vGPU), whose peaks nobody published.
    """
    device = _by_driver_name().get(_plain(name))
    if device is None or (memory_bytes is not None and memory_bytes < 0.8 * device.memory_bytes):
        return None
    return device
