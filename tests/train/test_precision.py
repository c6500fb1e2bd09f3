"""What `precision: auto` becomes on a GPU, by what it has; the planner takes the same."""

from __future__ import annotations

import pytest
import torch

from scalewright.plan.predict import predict
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec
from scalewright.train.precision import choose_precision

CARDS = {  # compute capability, whether it has bf16
    "NVIDIA H100 80GB HBM3": ((9, 0), True), "Tesla T4": ((7, 5), False), "Tesla V100-SXM2-16GB": ((7, 0), False),
    "Tesla P100-PCIE-16GB": ((6, 0), False), "NVIDIA GeForce GTX 1080": ((6, 1), False),
}  # fmt: skip
CHOSEN = ("bf16", "fp16", "fp16", "fp16", "fp32")


@pytest.mark.parametrize(("card", "chosen"), list(zip(CARDS, CHOSEN, strict=True)))
def test_auto_by_card(card: str, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    capability, bf16 = CARDS[card]
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bf16 or including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: card)
    remarks: list[str] = []
    device = torch.device("cuda", 0)
    assert choose_precision("auto", device, remarks) == chosen
    assert [card in remark for remark in remarks] == [True] * (chosen == "fp16")
    assert choose_precision("auto", device, scaled=False) == ("bf16" if bf16 else "fp32")  # under PowerSGD
    if not bf16:
        with pytest.raises(UserError, match="use fp16 or fp32"):
            choose_precision("bf16", device)


@pytest.mark.parametrize(
    ("cluster", "chosen"), [("dgx-h100", "bf16"), ("t4", "fp16"), ("v100", "fp16"), ("p100", "fp16")]
)
def test_the_planner_takes_the_same(cluster: str, chosen: str) -> None:
    layout = Layout.parse({"devices": 1, "global_batch": 1})
    answer = predict(load_model_spec("gpt2-124m"), load_cluster(cluster), layout, 512)
    assert answer.request.precision == chosen
    slow = predict(
        load_model_spec("gpt2-124m"), load_cluster(cluster), layout.model_copy(update={"precision": "fp32"}), 512
    )
    assert answer.step_time_s < slow.step_time_s
