"""The links that a group of neighbouring devices has, as tests of clusters look them up."""

from __future__ import annotations

from scalewright.spec.hardware.cluster import ClusterSpec, Level


def level_for(cluster: ClusterSpec, span: int) -> Level:
    """The smallest level whose instances contain `span` neighbouring devices; measured rates first."""
    return next(level for level in cluster.effective_levels() if level.size is None or level.size >= span)
