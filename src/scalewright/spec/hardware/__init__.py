"""What runs are planned for: devices as their vendors print them, in nodes, joined by levels of links."""
