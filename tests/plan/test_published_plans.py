"""Plans compared with published runs: DeepSeek-V3's, and Llama 3 70B's with two trainers."""

from __future__ import annotations

import pytest

from plan.searches import search
from scalewright.plan.predict import predict
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec

# DeepSeek-V3's report: table 1 (2.664 million H800 hours for 14.8T tokens), §3.2 (pp 16, ep 64 over 8 nodes,
# ZeRO-1, DualPipe, no tp; norms, up-projections and SwiGLU rebuilt), §4.2 (15,360 sequences of 4,096 tokens).
DEEPSEEK_HOURS, DEEPSEEK_TOKENS = 2.664e6, 14.8e12
AUTHORS = {
    "devices": 2048,
    "tp": 1,
    "pp": 16,
    "ep": 64,
    "schedule": "dualpipe",
    "zero_stage": 1,
    "global_batch": 15360,
    "recompute": "selective",
    "precision": "fp8",
}


def test_deepseek_v3_as_its_authors_ran_it():
    model, cluster = load_model_spec("deepseek-v3"), load_cluster("hgx-h800")
    prediction = predict(model, cluster, Layout.parse(AUTHORS), 4096, framework="hai-llm")
    hours = DEEPSEEK_TOKENS / prediction.tokens * prediction.step_time_s * 2048 / 3600
    assert prediction.fits  # they ran it
    # Their hours include restarts and evaluation; the planner's error on unseen sources is about 10%.
    assert hours == pytest.approx(DEEPSEEK_HOURS, rel=0.12)


def test_deepseek_v3_searched_is_what_its_authors_chose():
    """Left free: tensor parallelism, which they ruled out, gains 0.1% at most, less than `plan` takes an axis for."""
    plan = search(
        load_model_spec("deepseek-v3"),
        load_cluster("hgx-h800"),
        devices=2048,
        seq_len=4096,
        global_batch=15360,
        precision="fp8",
        framework="hai-llm",
        margin=0.02,
        headroom=0.1,  # with less, ep 32 fits in the last 6 GiB, and is 1.5% faster by the same numbers
        explain=False,
    )
    best = plan.best[0].layout.dump()
    assert {key: best[key] for key in AUTHORS} == AUTHORS


def test_llama_70b_on_512_h100():
    """The best is as in Megatron's recipes: tp in a node with sp, a short pipeline, nothing recomputed (that
    fits since logits have no fp32 copy). FSDP over all, as in MaxText's recipe, is within the margin.
    """
    plan = search(
        load_model_spec("llama-3.1-70b"),
        load_cluster("dgx-h100"),
        devices=512,
        seq_len=8192,
        global_batch=1024,
        fixed={"cp": 1},
    )
    best = plan.best[0].layout
    assert (best.tp, best.sp, best.pp, best.micro_batch, best.recompute) == (4, True, 4, 1, "none")
    assert any((choice.layout.tp, choice.layout.pp, choice.layout.zero_stage) == (1, 1, 3) for choice in plan.best)
    assert plan.best[0].trainable
    # Public runs of this model and size with Megatron's recipes reach 14.7 s (MFU 50%); ours overlaps less.
    assert 14 < plan.best[0].prediction.step_time_s < 20
