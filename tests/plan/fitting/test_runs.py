"""Evidence lists trainer, layout, batch and date of each measured run."""

from __future__ import annotations

import pytest

from scalewright.plan.explain import evidence
from scalewright.plan.fitting.runs import stated_date
from scalewright.plan.predict import predict, together
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec


@pytest.mark.parametrize(
    ("row", "date"),
    [
        ({"framework": "Megatron-Bridge 26.04.01", "source_ref": "x @2020"}, "2026-04"),
        ({"framework": "NeMo", "source_ref": "NVIDIA/dgxc-benchmarking deepseek_v3/README.md @v25.05"}, "2025-05"),
        ({"framework": "NeMo 24.07", "source_ref": "(2024-09-09)"}, "2024-07"),
        ({"framework": "Megatron-LM (2021)", "source_ref": "images/cases_april2021.png @50a4b5"}, "2021"),
        ({"framework": "DeepSpeed", "source_ref": "docs/_posts/2022-07-26-azure.md"}, "2022-07"),
        ({"framework": "nanotron", "source_ref": "trace 2", "notes": "GBS 1M tokens, seq 2048"}, ""),
    ],
)
def test_the_date_that_a_row_states(row: dict[str, str], date: str) -> None:
    assert stated_date(row) == date


def test_the_nearest_runs_name_trainer_layout_batch_and_date() -> None:
    model, layout = load_model_spec("llama-3.1-8b"), Layout(devices=64, global_batch=512)
    nearest = together([evidence(predict(model, load_cluster("dgx-h100"), layout, 8192))])[0]["nearest"]
    for run in nearest:
        assert run["trainer"].startswith("NeMo")
        assert run["date"].startswith("202")
        assert run["layout"]["cp"] * run["layout"]["dp"] == 64
        assert run["layout"]["global_batch"] > 0
        assert run["seq_len"] == 8192
    assert len({run["date"] for run in nearest}) == 3  # the only difference of three equal entries
