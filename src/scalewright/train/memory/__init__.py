"""How much memory a rank takes: used (usage.py), needed (need.py), and missing: out_of_memory.py."""
