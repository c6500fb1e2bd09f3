"""How much memory a rank takes: used (usage.py), needed and missing (out_of_memory.py)."""
