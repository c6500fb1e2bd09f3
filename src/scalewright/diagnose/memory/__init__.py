"""Snapshots of CUDA's allocator: snapshot.py reads one, answer.py has the JSON's keys."""
