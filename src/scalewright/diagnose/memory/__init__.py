"""Snapshots of CUDA's allocator: snapshot.py reads one (level, peak, owners), answer.py has the JSON's keys."""
