"""What a user wrote becomes what will run, before a process starts."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from runs import STEPS, merge, run_data
from scalewright.launch.begin import cores
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import RunSpec
from scalewright.train.resolve import check_workers, device_kind, resolve


@pytest.fixture
def spec(tmp_path):
    def make(**changes: Any) -> RunSpec:
        return RunSpec.parse(run_data(tmp_path, **changes))

    return make


def test_nulls_are_filled_and_it_goes_to_workers_and_back(spec):
    found = resolve(spec())
    assert isinstance(found.run.model, ModelSpec)
    assert (found.steps, found.run.train.steps, found.seq_len) == (STEPS, STEPS, 16)
    assert pickle.loads(pickle.dumps(found)) == found


def test_data_that_say_nothing_of_their_length_are_asked(spec):
    """Tokens are counted by what a sample has, not by a length that nobody gave."""
    unsaid = spec(data={"python": "parts:Unsaid"}, train={"steps": None, "tokens": 640})
    found = resolve(unsaid)
    assert (found.seq_len, found.steps) == (8, 10)
    assert pickle.loads(pickle.dumps(found)) == found
    assert resolve(unsaid, read_data=False).seq_len == 1024


@pytest.mark.parametrize("length", ["long", 0, True])
def test_a_length_that_is_no_number(spec, length):
    with pytest.raises(UserError, match="seq_len is"):
        resolve(spec(data={"python": "parts:Counting", "seq_len": length}))


@pytest.mark.parametrize(
    ("tokens", "steps"), [(1, 1), (128, 1), (129, 2), (1280, 10), (1.28e3, 10)]
)  # a step takes 8 x 16 tokens
def test_tokens_become_steps(spec, tokens, steps):
    base = {"train": {"steps": None, "tokens": tokens}}
    found = resolve(spec(**base))
    assert (found.steps, found.run.train.tokens) == (steps, None)


def test_steps_and_tokens_together(spec):
    with pytest.raises(UserError, match="steps and tokens are both given"):
        spec(train={"steps": 3, "tokens": 100})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"layout": {"devices": 2, "pp": 2, "schedule": "pipedream"}}, "pipedream can only be planned"),
        ({"layout": {"devices": 2, "etp": 2}}, "etp 2 but this model has no experts"),
        ({"layout": {"zero_stage": 0, "offload": "parameters"}}, "offload parameters needs zero_stage 3"),
        ({"model": {"attention_gate": True}}, "a gate on attention's output is counted but doesn't run yet"),
        (
            {"model": {"layer_pattern": ["mamba"], "mamba": {"num_heads": 2, "head_dim": 4, "state_size": 4}}},
            "Mamba layers are counted but don't run yet",
        ),
        ({"layout": {"precision": "fp8"}}, "precision fp8 can be planned but not trained"),
        ({"layout": {"recompute": {"budget": 0.01}}}, "less than the blocks' inputs alone"),
        ({"layout": {"recompute": {"every": 4}}}, "more than the 3 layers"),
        ({"checkpoint": {"keep_best": 1}}, "the best checkpoints are those with the lowest held-out loss"),
        ({"checkpoint": {"memory_buddy": 1}}, "copies on another node are of steps that are kept in memory"),
        (
            {"checkpoint": {"memory_every": 1, "memory_buddy": 4}, "launch": {"nodes": 2}},
            "4 nodes further, of 2, is the same node",
        ),
        ({"model": {"positions": "learned", "context": 8}}, "more than the model's 8 learned positions"),
        (
            {"model": {"positions": "learned", "context": 8}, "data": {"python": "parts:Counting", "seq_len": 9}},
            "seq_len 9 is more than the model's 8 learned positions",
        ),
        ({"data": {"python": "parts:Counting", "seq_len": "long"}}, "seq_len is 'long'"),
    ],
)
def test_a_run_that_can_not_work_is_refused_with_a_fix(spec, changes, says):
    with pytest.raises(UserError, match=says) as caught:
        resolve(spec(**changes))
    assert caught.value.how


def test_a_cpu_is_as_many_devices_as_it_has_cores(spec):
    assert device_kind(spec(device="cpu")) == ("cpu", cores())


def test_more_workers_than_devices(spec):
    two = resolve(spec(device="auto", layout={"devices": 2})).run
    check_workers(two, "cuda", 2, simulate=False)
    with pytest.raises(UserError, match=r"devices 2 is more than this machine's 1 GPUs .*nproc-per-node=1"):
        check_workers(two, "cuda", 1, simulate=False)
    with pytest.raises(UserError, match=r"this machine's 1 CPU cores .*--simulate"):
        check_workers(two, "cpu", 1, simulate=False)
    with pytest.raises(UserError, match="MPS is one device"):
        check_workers(two, "mps", 1, simulate=False)
    check_workers(two, "cpu", 1, simulate=True)
    check_workers(RunSpec.parse(merge(two.dump(), {"device": "cpu"})), "cpu", 1, simulate=False)
