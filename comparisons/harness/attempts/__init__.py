"""What attempts.py does: words and environments, files, moments of runs and neighbours."""
