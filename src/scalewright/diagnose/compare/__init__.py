"""`diagnose --against`: what became slower than another run, a plan or an earlier answer; noise.py: beyond noise?"""
