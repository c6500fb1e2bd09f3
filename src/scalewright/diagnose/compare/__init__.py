"""`diagnose --against`: compare.py: what became slower than another run, a plan or answer; noise.py: beyond noise?"""
