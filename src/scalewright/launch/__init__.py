"""Start a run's processes, and tell each which rank it is. The only folder that reads the environment."""
