"""`step_traffic` and `state_bytes` against the program: all that passes and stays in real steps on Gloo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.rank_states import state_bytes
from tests.rank_traffic import Table, step_traffic
from tests.worlds import CPU, run_world

from scalewright.dry_run.watch import Watch
from scalewright.parallel.inputs import Micro, wanted_by
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.parallel.offload_states import is_host
from scalewright.parallel.parallelize import fill, parallelize
from scalewright.parallel.stages import cut_stages
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import OPTIMIZERS
from scalewright.spec.placement import place
from scalewright.spec.run import BalanceSpec, OptimizerSpec
from scalewright.train.balance import Balance
from scalewright.train.loss import build_loss
from scalewright.train.network import load_python
from scalewright.train.optimizer import build_optimizer
from scalewright.train.step import Step

SMALL = {
    "vocab_size": 37,  # divisible by nothing: FSDP pads, and so does an even cut
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "tied": {**SMALL, "tie_word_embeddings": True, "num_hidden_layers": 5},
    "full norms": {**SMALL, "qk_norm": "full", "norm_position": "post"},
    "gpt": {
        **SMALL, "norm_type": "layernorm", "mlp_type": "gelu", "positions": "learned", "qkv_bias": True,
        "o_bias": True, "mlp_bias": True, "num_key_value_heads": 4, "qk_norm": "full",
        "context": 64,
    },
    "latent": {
        **SMALL, "num_key_value_heads": 4,
        "mla": {
            "q_lora_rank": 6, "kv_lora_rank": 10, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2,
            "v_head_dim": 5,
        },
    },
}  # fmt: skip
SEQ_LEN = 8
LAYOUTS: list[dict[str, Any]] = [
    {"devices": 2, "zero_stage": 0, "global_batch": 6},
    {"devices": 2, "zero_stage": 1, "global_batch": 6},
    {"devices": 2, "zero_stage": 2, "global_batch": 6},
    {"devices": 2, "zero_stage": 3, "global_batch": 6},
    {"devices": 3, "zero_stage": 3},
    {"devices": 2, "zero_stage": 0, "precision": "bf16"},
    {"devices": 2, "zero_stage": 2, "precision": "bf16", "offload": "optimizer"},
    {"devices": 2, "zero_stage": 0, "precision": "bf16", "offload": "optimizer"},
    {"devices": 2, "zero_stage": 3, "offload": "parameters", "global_batch": 4},
    {"devices": 2, "zero_stage": 3, "dp_replicate": 2, "offload": "all"},
    {"devices": 4, "zero_stage": 3, "dp_replicate": 2, "global_batch": 8, "precision": "bf16"},
    {"devices": 4, "zero_stage": 1, "dp_replicate": 2, "global_batch": 8},
    {"devices": 2, "zero_stage": 3, "dp_replicate": 2},
    {"devices": 2, "tp": 2, "sp": False, "micro_batch": 2, "global_batch": 4},
    {"devices": 2, "tp": 2},
    {"devices": 4, "tp": 4, "precision": "bf16"},
    {"devices": 4, "tp": 2, "zero_stage": 3, "global_batch": 4, "recompute": "full"},
    {"devices": 4, "tp": 2, "sp": False, "zero_stage": 2, "global_batch": 4, "recompute": "selective"},
    {"devices": 2, "tp": 2, "recompute": {"every": 2}},
    {"devices": 2, "tp": 2, "recompute": {"budget": 0.5}},
    {"devices": 2, "tp": 2, "recompute": {"budget": 1.0}},
    {"devices": 2, "cp": 2, "zero_stage": 0},
    {"devices": 4, "cp": 4, "zero_stage": 3, "global_batch": 2, "precision": "bf16"},
    {"devices": 2, "cp": 2, "cp_kind": "allgather", "recompute": "full"},
    {"devices": 2, "cp": 2, "cp_kind": "ulysses", "recompute": "selective"},
    {"devices": 4, "cp": 4, "cp_kind": "ulysses"},
    {"devices": 4, "cp": 2, "tp": 2, "micro_batch": 2, "global_batch": 4},
    {"devices": 8, "cp": 2, "tp": 2, "pp": 2, "schedule": "zb-h1", "global_batch": 3},
    {"devices": 8, "cp": 2, "pp": 2, "schedule": "interleaved", "zero_stage": 2, "global_batch": 6},
    {"devices": 2, "pp": 2, "global_batch": 3},
    {"devices": 2, "pp": 2, "schedule": "gpipe", "global_batch": 3, "recompute": "full"},
    {"devices": 2, "pp": 2, "schedule": "interleaved", "global_batch": 3},
    {"devices": 4, "pp": 2, "tp": 2, "schedule": "zb-h1", "global_batch": 3},
    {"devices": 4, "pp": 2, "tp": 2, "sp": False, "schedule": "zbv", "global_batch": 3},
    {"devices": 4, "pp": 2, "schedule": "1f1b", "zero_stage": 0, "global_batch": 6},
    {"devices": 4, "pp": 2, "schedule": "1f1b", "zero_stage": 1, "global_batch": 6},
    {"devices": 4, "pp": 2, "schedule": "interleaved", "zero_stage": 2, "global_batch": 6},
    {"devices": 4, "pp": 2, "schedule": "1f1b", "zero_stage": 3, "global_batch": 6},
    {"devices": 4, "pp": 2, "schedule": "gpipe", "zero_stage": 3, "global_batch": 6},
    {"devices": 4, "pp": 2, "schedule": "zb-h1", "zero_stage": 1, "global_batch": 6},
    {"devices": 4, "pp": 2, "schedule": "zb-interleaved", "zero_stage": 3, "global_batch": 6},
    {"devices": 4, "pp": 2, "schedule": "zbv", "zero_stage": 2, "global_batch": 6},
    {"devices": 4, "pp": 2, "schedule": "dualpipev", "zero_stage": 3, "global_batch": 10},
    {"devices": 8, "pp": 2, "tp": 2, "dp_replicate": 2, "zero_stage": 1, "global_batch": 4},
    {"devices": 8, "pp": 2, "tp": 2, "zero_stage": 3, "global_batch": 4, "precision": "bf16"},
]


def test_gradients_too_many_for_one_bucket() -> None:
    keys = {"devices": 2, "zero_stage": 0}
    model = {**SMALL, "vocab_size": 8192, "hidden_size": 512}  # embedding and head: 16 MiB of gradients each
    expected = step_traffic(ModelSpec.parse(model), Layout.parse(keys), SEQ_LEN, bf16=False)
    assert expected["dp_shard", "all_reduce"].count == 2
    _compare(expected, run_world(watched_step, keys, model)[0]["sent"])


# By default two layouts of each model, none of eight ranks: dry_run/test_spec.py and test_world.py have those without.
OFTEN = [(4 * index, 4 * index + 24) if index != 1 else (4,) for index in range(len(MODELS))]
CASES = [
    pytest.param(name, keys, id=f"{name} {keys}", marks=[] if turn in OFTEN[index] else [pytest.mark.slow])
    for turn, keys in enumerate(LAYOUTS)
    for index, name in enumerate(MODELS)
]


@pytest.mark.parametrize(("name", "keys"), CASES)
def test_a_step_sends_the_bytes_of_the_spec(name: str, keys: dict[str, Any]) -> None:
    layout, model = Layout.parse(keys), ModelSpec.parse(MODELS[name])
    check_layout(layout, model, SEQ_LEN, train=True)
    seen = run_world(watched_step, keys, MODELS[name])
    bf16 = keys.get("precision") == "bf16"
    for rank, result in enumerate(seen):
        _compare(step_traffic(model, layout, SEQ_LEN, rank, bf16=bf16), result["sent"])
        kept = state_bytes(model, layout, rank, bf16=bf16)
        assert result["kept"] == [kept.parameters, kept.gradients, kept.optimizer]


@pytest.mark.parametrize("optimizer", ["adamw_bf16", "adamw_8bit"])
@pytest.mark.parametrize("keys", [{"devices": 2, "zero_stage": 3}, {"devices": 2, "tp": 2}], ids=str)
def test_small_states_take_the_bytes_of_the_spec(optimizer: str, keys: dict[str, Any]) -> None:
    model = {**SMALL, "hidden_size": 64, "intermediate_size": 96}  # matrices of 4,096 numbers and more
    seen = run_world(watched_step, keys, model, None, optimizer)
    for rank, result in enumerate(seen):
        spec, layout = ModelSpec.parse(model), Layout.parse(keys)
        kept = state_bytes(spec, layout, rank, bf16=False, optimizer=OPTIMIZERS[optimizer])
        assert result["kept"] == [kept.parameters, kept.gradients, kept.optimizer]


def _compare(expected: Table, sent: dict[str, Any]) -> None:
    assert sent == {f"{axis} {kind}": [t.count, t.bytes] for (axis, kind), t in expected.items()}


def watched_step(
    mesh: Mesh, layout: Layout, keys: dict[str, Any], balance: dict[str, Any] | None = None, name: str = "adamw"
) -> dict[str, Any]:
    """Traffic in this rank's second step, {"axis kind": (count, bytes)}, and bytes kept after it.

    `balance`: keys of `train.balance`; `name`: the optimizer's.
    """
    model = ModelSpec.parse(keys)
    mesh = make_mesh(make_grid(layout, model.kv_heads), mesh.rank, CPU, share=False)
    with torch.device("meta"):
        stages = cut_stages(model, layout, mesh.index("pp"))
    bf16 = layout.precision == "bf16"
    parallel = parallelize(stages, place(model, layout), layout, mesh, bf16=bf16, seq_len=SEQ_LEN)
    torch.manual_seed(0)
    fill(parallel.weights, lambda tensor, box: torch.randn(box[1]) * 0.02)
    chosen = OptimizerSpec.parse({"name": name})
    optimizer = build_optimizer(chosen, parallel.weights, load_python, mesh)
    loss = build_loss("cross_entropy", 0.0, load_python, mesh, model.vocab_size)
    balancing = Balance.of(BalanceSpec.parse(balance or {}), mesh, parallel.model)
    step = Step(parallel, optimizer, loss, mesh, 1.0, balance=balancing)
    tokens = torch.randint(model.vocab_size, (layout.micro_batch, SEQ_LEN + 1))
    index, arguments = torch.arange(SEQ_LEN), {}
    if (cut := wanted_by(parallel.model).cut) is not None:
        index = torch.from_numpy(cut.tokens(SEQ_LEN))
        arguments = {"positions": index[None]}
    micro = Micro(tokens[:, :-1][:, index], tokens[:, 1:][:, index], arguments)
    with Watch(mesh, is_host) as watch:
        watch.register(parallel.weights, optimizer)
        for _ in range(2):
            watch.clear()
            step([micro] * layout.accumulation, torch.tensor(float(tokens[:, 1:].numel())))
        kept = [watch.live.now[kind] for kind in ("parameters", "gradients", "optimizer")]
    sent: dict[str, list[int]] = {}
    for c in watch.collectives:  # experts go over other groups of the same axis
        if c.axis != "control":
            count, size = sent.get(f"{c.axis} {c.kind}", (0, 0))
            sent[f"{c.axis} {c.kind}"] = [count + c.count, size + c.bytes]
    return {"sent": sent, "kept": kept}
