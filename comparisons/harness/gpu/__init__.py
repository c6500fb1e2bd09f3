"""The parts of the GPU check: each measures one thing under a time budget, and runs in little on a CPU."""
