"""Tests of `engine: deepspeed`."""
