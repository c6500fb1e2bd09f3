"""Small checkpoints in other trainers' formats become ours, bit for bit; what doesn't fit is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from checkpoint.foreign.small import (
    CONFIG,
    MIXTURES,
    VOCABULARY,
    arguments,
    hugging_face,
    megatron,
    save_dcp,
    save_nanotron,
    save_zero,
    titan,
    weights,
    write_config,
)
from scalewright.checkpoint.convert import convert
from scalewright.checkpoint.foreign.files import ForeignFiles
from scalewright.checkpoint.format import committed
from scalewright.checkpoint.read import CheckpointReader, find_checkpoint
from scalewright.parallel.mesh import Mesh
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from worlds import run_world


def same(source: Path, model: str | None, tmp_path: Path, ours: dict[str, Tensor], dtype: Any = None) -> None:
    """Converts, and compares every tensor."""
    made = convert(source, tmp_path / "out", model=model)
    reader = CheckpointReader(committed(tmp_path / "out" / "checkpoints")[0])
    assert (made.kind, made.tensors_checked) == ("checkpoint", len(ours))
    assert set(reader.manifest.tensors) == set(ours)
    for name, tensor in ours.items():
        assert torch.equal(reader.read(name), tensor.to(dtype or tensor.dtype).float()), name


def test_torchtitan(tmp_path: Path) -> None:
    ours = weights()
    theirs = titan(ours)
    moments = {f"optimizer.state.{name}.exp_avg": torch.zeros_like(t) for name, t in theirs.items()}
    tables = {"freqs_cis": torch.zeros(4, dtype=torch.complex64), "train_state": {"step": 3}}
    save_dcp(tmp_path / "run" / "checkpoint" / "step-3", {**theirs, **moments, **tables})
    save_dcp(tmp_path / "run" / "checkpoint" / "step-20", {**theirs, **moments, **tables})
    save_dcp(tmp_path / "run" / "checkpoint" / "step-3", {"broken": torch.zeros(1)})  # 20 is the newest
    same(tmp_path / "run", write_config(tmp_path), tmp_path, ours)


def test_torchtitans_experts(tmp_path: Path) -> None:
    """Qwen 3's mixture, by the names of 0.2: stacked there as here, and no rows in pairs."""
    config = MIXTURES["qwen3_moe"]
    ours = weights(config)
    names = {
        "embed": "tok_embeddings", "norm": "norm", "head": "output", "attention_norm": "attention_norm",
        "attention.q": "attention.wq", "attention.k": "attention.wk", "attention.v": "attention.wv",
        "attention.o": "attention.wo", "attention.q_norm": "attention.q_norm", "mlp_norm": "ffn_norm",
        "attention.k_norm": "attention.k_norm", "mlp.router": "moe.router.gate",
    }  # fmt: skip
    experts = {"mlp.experts.gate": "w1", "mlp.experts.down": "w2", "mlp.experts.up": "w3"}
    theirs = {}
    for name, tensor in ours.items():
        _, layer, module = ("", "", name) if not name.startswith("layers.") else name.split(".", 2)
        at, part = (f"layers.{layer}." if layer else ""), module.removesuffix(".weight")
        own = f"moe.experts.{experts[part]}" if part in experts else f"{names[part]}.weight"
        theirs[at + own] = tensor
    save_dcp(tmp_path / "step-1", theirs)
    same(tmp_path / "step-1", write_config(tmp_path, config), tmp_path, ours)


def test_hugging_faces_names_under_a_prefix_with_a_tied_head(tmp_path: Path) -> None:
    config = {**CONFIG, "tie_word_embeddings": True}
    ours = weights(config)
    theirs = {name: tensor.bfloat16() for name, tensor in hugging_face(ours).items()}
    save_dcp(tmp_path / "run", {"app": {"model": theirs}, "optim": {"step": torch.ones(1)}})
    model = write_config(tmp_path, config)
    same(tmp_path / "run", model, tmp_path, ours, torch.bfloat16)
    theirs["lm_head.weight"] = theirs["lm_head.weight"] + 1
    save_dcp(tmp_path / "other", {"app": {"model": theirs}})
    with pytest.raises(UserError, match=r"'lm_head.weight' isn't the embedding"):
        convert(tmp_path / "other", tmp_path / "out-2", model=model)


def shards(mesh: Mesh, layout: Layout, folder: str) -> list[int]:
    """On each rank: FSDP2 over two processes, where 251 and 75 rows don't halve, saved by DCP."""
    module = nn.Module()
    for name, tensor in titan(weights()).items():
        *path, kind = name.split(".")
        inner = module
        for part in path:
            if not hasattr(inner, part):
                inner.add_module(part, nn.Module())
            inner = getattr(inner, part)
        inner.register_parameter(kind, nn.Parameter(tensor))
    fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
    import torch.distributed.checkpoint as dcp

    dcp.save(module.state_dict(), checkpoint_id=folder)
    return [len(list(module.parameters()))]


def test_uneven_shards_of_two_processes(tmp_path: Path) -> None:
    run_world(shards, {"devices": 2}, str(tmp_path / "step-1"))
    pieces = ForeignFiles(tmp_path / "step-1", "dcp").tensors["tok_embeddings.weight"].pieces
    assert sorted(piece.sizes[0] for piece in pieces) == [125, 126]
    same(tmp_path / "step-1", write_config(tmp_path), tmp_path, weights())


@pytest.mark.parametrize("named", [True, False])
def test_megatron(tmp_path: Path, named: bool) -> None:
    ours = weights()
    save_dcp(tmp_path / "iter_0000007", megatron(ours, 256))
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7")
    torch.save({"args": arguments(256), "iteration": 7}, tmp_path / "iter_0000007" / "common.pt")
    if not named:  # the true vocabulary is in no argument
        padding = torch.full((256 - VOCABULARY, CONFIG["hidden_size"]), 7.0)
        for name in ("embed.weight", "head.weight"):
            ours[name] = torch.cat([ours[name], padding])
    same(tmp_path, write_config(tmp_path) if named else None, tmp_path, ours)


@pytest.mark.parametrize("kind", MIXTURES)
def test_megatrons_experts(tmp_path: Path, kind: str) -> None:
    """Gate over up in each expert; the model is known from its arguments."""
    config = MIXTURES[kind]
    width = config.get("moe_intermediate_size")
    ours = weights(config)
    save_dcp(tmp_path / "iter_0000007", megatron(ours, VOCABULARY))
    settings = arguments(
        VOCABULARY, num_experts=4, moe_router_topk=2, moe_ffn_hidden_size=width, moe_layer_freq=1,
        qk_layernorm=kind == "qwen3_moe",
    )  # fmt: skip
    torch.save({"args": settings}, tmp_path / "iter_0000007" / "common.pt")
    same(tmp_path, None, tmp_path, ours)
    settings.moe_router_pre_softmax = True
    torch.save({"args": settings}, tmp_path / "iter_0000007" / "common.pt")
    with pytest.raises(UserError, match="moe_router_pre_softmax is True"):
        convert(tmp_path, tmp_path / "other")


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 3, 11])
def test_deepspeed(tmp_path: Path, stage: int, ranks: int) -> None:
    ours = weights()
    save_zero(tmp_path / "save" / "global_step5", hugging_face(ours), stage, ranks)
    (tmp_path / "save" / "latest").write_text("global_step5")
    same(tmp_path / "save", write_config(tmp_path), tmp_path, ours)


def test_nanotron(tmp_path: Path) -> None:
    ours = weights()
    save_nanotron(tmp_path / "run" / "40", ours, 2)
    (tmp_path / "run" / "latest.txt").write_text("40")
    same(tmp_path / "run", None, tmp_path, ours)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    theirs, model = titan(weights()), write_config(tmp_path)
    cases = {
        "no settings": (theirs, None, "doesn't have its model's settings"),
        "another": (theirs, "llama-3.2-1b", r"'tok_embeddings.weight' is \[251, 48\] there"),
        "more": ({**theirs, "layers.2.x": torch.ones(1)}, model, "1 tensor is no part of .*: layers.2.x"),
        "less": (
            {k: t for k, t in theirs.items() if k != "norm.weight"},
            model,
            "1 tensor of .* is missing: norm.weight",
        ),
        "strange": ({"x": torch.ones(1)}, model, "no table has the names"),
    }
    for name, (state, given, message) in cases.items():
        save_dcp(tmp_path / name, state)
        with pytest.raises(UserError, match=message):
            convert(tmp_path / name, tmp_path / "out", model=given)
        assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_has_its_model_takes_no_other(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    write_config(tmp_path / "hf")
    (tmp_path / "hf" / "model.json").rename(tmp_path / "hf" / "config.json")
    save_file(hugging_face(weights()), tmp_path / "hf" / "model.safetensors")
    with pytest.raises(UserError, match="has its model"):
        convert(tmp_path / "hf", tmp_path / "out", model="llama-3.2-1b")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"normalization": "LayerNorm"}, "argument normalization is 'LayerNorm'"),
        ({"use_rope_scaling": True}, "argument use_rope_scaling is True"),
        ({"window_size": (511, 0)}, "argument window_size is"),
        ({"hidden_size": None}, "settings don't make a model .*hidden_size"),
        ({"num_attention_heads": 0, "kv_channels": None}, "settings don't make a model"),
    ],
)
def test_arguments_of_another_kind_of_model(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    save_dcp(tmp_path / "iter_0000007", megatron(weights(), 256))
    settings = arguments(256)
    vars(settings).update(change)
    torch.save({"args": settings}, tmp_path / "iter_0000007" / "common.pt")
    with pytest.raises(UserError, match=match):
        convert(tmp_path, tmp_path / "out")


def test_init_names_the_command(tmp_path: Path) -> None:
    save_dcp(tmp_path / "run" / "step-1", {"x": torch.ones(1)})
    with pytest.raises(UserError, match=r"of another trainer .*: run `scalewright convert .*run OUT`, and give"):
        find_checkpoint(tmp_path / "run")


def test_a_box_reads_what_the_whole_has(tmp_path: Path) -> None:
    tensor = torch.randn(9, 7, 5).to(torch.bfloat16)
    save_dcp(tmp_path / "a", {"x": tensor, "t": tensor[0].t(), "s": torch.tensor(3.0)})
    files = ForeignFiles(tmp_path / "a", "dcp")
    assert torch.equal(files.read("x", (2, 1, 3), (4, 5, 2)), tensor[2:6, 1:6, 3:5])
    assert torch.equal(files.read("t", (1, 2), (3, 4)), tensor[0].t()[1:4, 2:6])
    assert files.read("s", (), ()).item() == 3.0
