"""How much memory a rank takes: used (usage.py), needed (need.py), and not to be had (out_of_memory.py)."""
