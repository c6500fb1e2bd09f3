"""Quantities of a run's devices and the links between them. Rates are bytes/s one way a device, sizes bytes."""

from __future__ import annotations

from scalewright.learn.explain.of_layout import LayoutQuantities


class ClusterQuantities(LayoutQuantities):
    """What the hardware of a run offers; None where it has no such part."""

    @property
    def device_name(self) -> str:
        return self.device.name

    @property
    def peak(self) -> float | None:
        """FLOP/s in 16 bits, or what the device has."""
        return self.device.peak(self.device.half)

    @property
    def fp32_peak(self) -> float | None:
        return self.device.peak("fp32")

    @property
    def fp8_peak(self) -> float | None:
        return self.device.peak("fp8")

    @property
    def memory_bytes(self) -> float:
        return self.device.capacity_bytes

    @property
    def memory_bytes_per_s(self) -> float:
        return self.device.memory_bytes_per_s

    @property
    def multiprocessors(self) -> int | None:
        """SMs of a GPU."""
        return self.device.multiprocessors if self.device.kind == "gpu" else None

    @property
    def cache_bytes(self) -> float | None:
        return self.device.cache_bytes

    @property
    def host_bytes_per_s(self) -> float | None:
        return self.device.host_bytes_per_s

    @property
    def host_memory_bytes(self) -> float:
        """Of a node: the cluster's, or 250 GB a device, as the planner assumes."""
        return self.cluster.host_memory_bytes or 250e9 * self.cluster.devices_per_node

    @property
    def link_bytes_per_s(self) -> float | None:
        """Of the fastest links between devices."""
        return next((level.bytes_per_s for level in self.cluster.levels[1:]), None)

    @property
    def link_delay(self) -> float | None:
        return next((level.latency_s for level in self.cluster.levels[1:]), None)

    @property
    def domain(self) -> int | None:
        """Devices that the fastest links join."""
        return next((level.size for level in self.cluster.levels[1:]), None)

    @property
    def network_bytes_per_s(self) -> float | None:
        """Of a device's share of the network between nodes."""
        return next((level.bytes_per_s for level in self.cluster.levels if level.name == "fabric"), None)

    @property
    def network_ridge(self) -> float | None:
        """FLOPs for each byte that a device sends over the network."""
        rate = self.network_bytes_per_s
        return self.peak / rate if self.peak and rate else None

    @property
    def link_ridge(self) -> float | None:
        """FLOPs for each byte that a device sends over the fastest links."""
        rate = self.link_bytes_per_s
        return self.peak / rate if self.peak and rate else None

    @property
    def dp_bytes_per_s(self) -> float | None:
        """Of the links that data parallelism uses: the network's where it leaves the fastest links' domain."""
        return self.link_bytes_per_s if self.devices <= (self.domain or 1) else self.network_bytes_per_s

    @property
    def dp_delay(self) -> float | None:
        return self.link_delay if self.devices <= (self.domain or 1) else self.network_delay

    @property
    def ring_algorithm_rate(self) -> float | None:
        """Bytes of a rank's gradients over the seconds of their all-reduce."""
        from scalewright.learn.communication import ring_seconds

        if self.dp_bytes_per_s is None or self.dp < 2:
            return None
        size = self.rank_weight_bytes
        return size / ring_seconds("all_reduce", size, self.dp, self.dp_bytes_per_s, self.dp_delay or 0.0)

    @property
    def network_delay(self) -> float | None:
        return next((level.latency_s for level in self.cluster.levels if level.name == "fabric"), None)
