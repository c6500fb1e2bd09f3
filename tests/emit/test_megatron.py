"""Megatron-LM's arguments: written, read again, and read from the forms in which people have them."""

from __future__ import annotations

from emit.random_runs import differences, random_runs
from scalewright.emit.read import read_text
from scalewright.emit.trainers import emit

KEYS = ("layout", "model", "optimizer", "data.seq_len", "train.steps", "seed", "lr_schedule")


def test_two_hundred_random_runs_come_back():
    for settings in random_runs(200, seed=1):
        emitted = emit("megatron", settings)
        reading = read_text(emitted.files["pretrain.sh"], ".sh", "pretrain.sh")
        assert not differences(settings, emitted, reading, KEYS), settings.layout
        assert not reading.unread
