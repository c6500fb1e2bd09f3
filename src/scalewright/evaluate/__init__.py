"""How good a model is: validate.py, the one validation loop; harness.py, tasks by lm-evaluation-harness."""
