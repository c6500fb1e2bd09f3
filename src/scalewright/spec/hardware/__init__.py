"""Hardware: devices as their vendors publish them, clusters of nodes, and levels of links."""
