"""Which known device a GPU is, from the name that its driver gives; a name that isn't in the table is nobody.

A table of whole names rather than a search for "H100" in them: an "RTX 4090 Laptop GPU", an "RTX 3090 Ti" or
an "H200 NVL" is another device with other peaks, and a slice of a GPU (MIG) is not the GPU.
"""

from __future__ import annotations

from scalewright.spec.hardware import DeviceSpec, load_device

# Device id -> the names that CUDA and ROCm give it, without a leading "NVIDIA", "Tesla" or "AMD".
TABLE: dict[str, tuple[str, ...]] = {
    "p100-pcie-16": ("P100-PCIE-16GB",),
    "p100-sxm2-16": ("P100-SXM2-16GB",),
    "v100-sxm2-16": ("V100-SXM2-16GB",),
    "v100-sxm2-32": ("V100-SXM2-32GB", "V100-SXM3-32GB", "V100-SXM3-32GB-H"),
    "v100-pcie-16": ("V100-PCIE-16GB",),
    "v100-pcie-32": ("V100-PCIE-32GB",),
    "t4": ("T4",),
    "a100-sxm-40": ("A100-SXM4-40GB", "A100-SXM-40GB"),
    "a100-sxm-80": ("A100-SXM4-80GB", "A100-SXM-80GB"),
    "a100-pcie-40": ("A100-PCIE-40GB", "A100-PCIE-40GB OEM"),
    "a100-pcie-80": ("A100-PCIE-80GB", "A100 80GB PCIe"),
    "a800-sxm-80": ("A800-SXM4-80GB",),
    "a10": ("A10",),
    "a10g": ("A10G",),
    "a40": ("A40",),
    "a6000": ("RTX A6000",),
    "l4": ("L4",),
    "l40s": ("L40S",),
    "rtx3090": ("GeForce RTX 3090",),
    "rtx4090": ("GeForce RTX 4090",),
    "rtx5090": ("GeForce RTX 5090",),
    "h100-sxm": ("H100 80GB HBM3", "H100-SXM5-80GB", "H100 SXM5 80GB"),
    "h100-pcie": ("H100 PCIe", "H100-PCIE-80GB"),
    "h100-nvl": ("H100 NVL",),
    "h200-sxm": ("H200", "H200 141GB HBM3e"),
    "h800-sxm": ("H800", "H800-SXM5-80GB"),
    "b200-sxm": ("B200",),
    "b300-sxm": ("B300 SXM6 AC",),
    "gb200-nvl72": ("GB200",),
    "gb300-nvl72": ("GB300",),
    "mi300x": ("Instinct MI300X", "Instinct MI300X OAM", "Instinct MI300X VF"),
    "mi325x": ("Instinct MI325X", "Instinct MI325X OAM", "Instinct MI325X VF"),
    "mi350x": ("Instinct MI350X", "Instinct MI350X OAM", "Instinct MI350X VF"),
    "mi355x": ("Instinct MI355X", "Instinct MI355X OAM", "Instinct MI355X VF"),
}
BRANDS = ("nvidia ", "tesla ", "amd ")


def _plain(name: str) -> str:
    """A driver's name without its brand, in lower case."""
    text = " ".join(name.lower().split())
    for brand in BRANDS:
        text = text.removeprefix(brand)
    return text


def match_gpu(name: str, memory_bytes: float | None = None) -> DeviceSpec | None:
    """The known device that CUDA or ROCm calls `name`; None for a name that the table doesn't hold.

    `memory_bytes` is what the driver reports: under four fifths of the nominal size it is a slice of the
    device (MIG, vGPU), whose peaks nobody published.
    """
    wanted = _plain(name)
    for identifier, names in TABLE.items():
        if wanted in {_plain(known) for known in names}:
            device = load_device(identifier)
            if memory_bytes is not None and memory_bytes < 0.8 * device.memory_bytes:
                return None
            return device
    return None
