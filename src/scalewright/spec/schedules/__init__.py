"""Pipeline schedules as data, one idea a file; `spec/schedule.py` is the door."""
