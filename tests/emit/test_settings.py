"""No setting is lost in silence: what an emitter doesn't take is reported, or refused."""

from __future__ import annotations

import pytest

from emit.random_runs import DENSE
from scalewright.emit.settings import ALWAYS, NEUTRAL, SIZES, settings_of
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec


def settings(**keys):
    return settings_of(RunSpec.parse({"model": DENSE, "data": {"train": "corpus"}, **keys}))


def test_everything_that_does_something_is_left_until_it_is_taken():
    s = settings(layout={"recompute": "full"}, train={"z_loss": 1e-4, "steps": 10})
    left = dict(s.left())
    assert left.keys() >= {"layout.recompute", "train.z_loss", "optimizer.lr", "optimizer.betas", "seed"}
    assert "train.compress" not in left
    for key in left:
        s.take(key)
    assert not dict(s.left())


def test_every_key_is_neutral_always_reported_or_outside():
    """A new key of a run file is reported until someone decides otherwise."""
    from scalewright.emit.settings import OUTSIDE
    from scalewright.spec.same import below

    s = settings(layout={"devices": 4, "pp": 2})
    for key in s.values:
        assert key in NEUTRAL or key in ALWAYS or below(key, OUTSIDE), key


def test_keys_without_a_meaning_are_not_reported():
    left = dict(settings(layout={"cp_kind": "ulysses", "devices": 2}).left())
    assert not left.keys() & {"layout.cp_kind", "layout.schedule", "layout.ep", "train.mtp_weight"}


@pytest.mark.parametrize("axis", sorted(set(SIZES) - {"ep", "etp"}))
def test_a_size_that_was_not_taken_is_another_layout(axis):
    s = settings(layout={"devices": 8, axis: 2, "zero_stage": 1})
    with pytest.raises(UserError, match=rf"X can't run {axis} 2"):
        s.dropped("X")


def test_reasons_go_with_what_is_dropped():
    s = settings(layout={"offload": "activations"})
    s.drop("layout.offload", "it has no such thing")
    lost = {item.key: item for item in s.dropped("X")}
    assert lost["layout.offload"].why == "it has no such thing"
    assert lost["optimizer.lr"].why == "X has no word for it"


@pytest.mark.parametrize("key", ["model", "loss", "optimizer"])
def test_a_user_s_own_part_is_refused(key):
    with pytest.raises(UserError, match="no other trainer has"):
        settings(**{key: {"python": "mine:build"}})
