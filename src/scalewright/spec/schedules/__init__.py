"""Pipeline schedules as data; other packages import them from `spec/schedule.py`."""
