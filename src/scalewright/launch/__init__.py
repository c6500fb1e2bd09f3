"""Starts a run's processes, each with its rank. The only folder that reads the environment."""
