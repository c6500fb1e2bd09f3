"""Checkpoints that other trainers write here, converted, and compared with what those trainers hold.

    make_<trainer>.py, a process a rank ──► their folder, expected.pt ──► convert ──► every tensor bit for
    bit,
                                                                                     logits where it has them

The expected tensors come by the trainer's own conversion (torchtitan's adapter, DeepSpeed's zero_to_fp32), or
are put together here from each rank's own module; none of the tables that are tested is used for them.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalewright.checkpoint.convert import convert
from scalewright.checkpoint.format import committed
from scalewright.checkpoint.read import CheckpointReader
from scalewright.model.names import locations
from scalewright.serve.load import load_model

HERE = Path(__file__).parent
# (processes, what the script is told): two processes shard, by FSDP2, tensor parallelism or ZeRO
CASES: dict[str, dict[str, tuple[int, list[str]]]] = {
    "torchtitan": {"Llama, FSDP2": (2, ["llama"]), "Qwen 3, FSDP2": (2, ["qwen3"])},
    "megatron": {
        "Llama": (1, ["llama"]),
        "Qwen 3, tp 2": (2, ["qwen3"]),
        "Qwen 2, tp 2, layers apart": (2, ["qwen2"]),
        "Mixtral": (1, ["mixtral"]),
        "Qwen 3 MoE, ep 2": (2, ["qwen3_moe"]),
    },
    "deepspeed": {
        "ZeRO 0": (2, ["0", "fp32"]),
        "ZeRO 1": (2, ["1", "fp32"]),
        "ZeRO 2, bf16": (2, ["2", "bf16"]),
        "ZeRO 3": (2, ["3", "fp32"]),
        "ZeRO 3, bf16": (2, ["3", "bf16"]),
    },
    "nanotron": {"Llama, tp 2, bf16": (2, [])},
}
PACKAGES = {"megatron": "megatron-core"}  # where a trainer's package has another name
TOKENS = {"deepspeed": [1, 7, 42, 3, 250, 9, 100, 11], "megatron": [1, 7, 42, 3, 249, 9, 100, 11]}
OTHER_TOKENS = [1, 7, 42, 3, 255, 9, 100, 11]


@dataclass(frozen=True)
class Checked:
    """What came of one folder."""

    folder: str
    tensors: int  # all of the model's, equal bit for bit
    logits: float | None  # the largest difference from the trainer's own; None: it can't run here
    parameters: int


def version(trainer: str) -> str:
    """Of the trainer's package in this Python."""
    return metadata.version(PACKAGES.get(trainer, trainer))


def cases(trainer: str) -> list[str]:
    """Those that this version can make: torchtitan 0.3 has no function that makes a small Qwen 3."""
    new = trainer == "torchtitan" and not version(trainer).startswith("0.2")
    return [case for case in CASES[trainer] if not (new and case.startswith("Qwen"))]


def check(trainer: str, case: str, folder: Path) -> list[Checked]:
    """Makes a case's folder with the trainer of this Python, converts it, and compares."""
    make(trainer, case, folder)
    expected = torch.load(folder / "expected.pt", weights_only=True)
    settings = folder / "model.json"
    checked = []
    for source in [p for name in ("save", "universal") if (p := folder / name).exists()] or [folder]:
        out = folder / f"converted-{source.name}"
        made = convert(source, out, model=str(settings) if settings.exists() else None)
        reader = CheckpointReader(committed(out / "checkpoints")[0])
        wanted = WANTED[trainer](expected, reader)
        names = set(reader.manifest.tensors)
        assert names == set(wanted), f"{names ^ set(wanted)}"
        for name, tensor in wanted.items():
            assert torch.equal(reader.read(name), tensor.float()), name
        tokens = torch.tensor([TOKENS.get(trainer, OTHER_TOKENS)])
        with torch.no_grad():
            logits = load_model(out)(tokens)
        theirs = expected.get("logits")
        difference = None if theirs is None else float((logits - theirs.float()).abs().max())
        checked.append(Checked(source.name, len(wanted), difference, made.parameters))
    return checked


def make(trainer: str, case: str, folder: Path) -> None:
    """Runs the script that makes a case, a process a rank; raises AssertionError with its last words."""
    world, more = CASES[trainer][case]
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = str(HERE / f"make_{trainer}.py")
    ranks = []
    for rank in range(world):
        command = [sys.executable, script, str(folder), str(rank), str(world), port, *more]
        with open(folder / f"log-{rank}", "w") as log:
            ranks.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
    try:
        codes = [rank.wait(timeout=300) for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert not any(codes), (folder / "log-0").read_text()[-3000:]


def _by_their_conversion(expected: dict[str, Any], reader: CheckpointReader) -> dict[str, Tensor]:
    """From Hugging Face's names, into which the trainer itself converted its Llama or Qwen."""
    from scalewright.spec.model import ModelSpec

    spec = ModelSpec.parse(reader.manifest.model, "manifest")
    return {name: expected["weights"][location.name] for name, location in locations(spec).items()}


def _cat(pieces: list[dict[str, Tensor]], name: str, dim: int = 0) -> Tensor:
    return torch.cat([piece[name] for piece in pieces], dim)


def _of_megatron(expected: dict[str, Any], reader: CheckpointReader) -> dict[str, Tensor]:
    """By hand: 2 groups of 3 q heads, k and v, of 8 rows each; tp cuts groups, and each of gate and up.

    A mixture's ranks have whole experts each, and all have the rest.
    """
    ranks = expected["pieces"]
    mixture = any("experts" in name for name in ranks[0])
    pieces = ranks[:1] if mixture else ranks
    wanted = {
        "embed.weight": _cat(pieces, "embedding.word_embeddings.weight"),
        "head.weight": _cat(pieces, "output_layer.weight"),
        "norm.weight": pieces[0]["decoder.final_layernorm.weight"],
    }
    for layer in range(2):
        theirs, ours = f"decoder.layers.{layer}.", f"layers.{layer}."
        for kind in ("weight", "bias"):
            name = f"{theirs}self_attention.linear_qkv.{kind}"
            if name not in pieces[0]:
                continue
            grouped = _cat(pieces, name).unflatten(0, (2, 5, 8))
            wanted[f"{ours}attention.q.{kind}"] = grouped[:, :3].flatten(0, 2)
            wanted[f"{ours}attention.k.{kind}"] = grouped[:, 3].flatten(0, 1)
            wanted[f"{ours}attention.v.{kind}"] = grouped[:, 4].flatten(0, 1)
        if mixture:
            wanted |= _experts_of_megatron(ranks, theirs, ours)
        else:
            fused = [piece[f"{theirs}mlp.linear_fc1.weight"].chunk(2) for piece in pieces]
            wanted[f"{ours}mlp.gate.weight"] = torch.cat([gate for gate, _ in fused])
            wanted[f"{ours}mlp.up.weight"] = torch.cat([up for _, up in fused])
            wanted[f"{ours}mlp.down.weight"] = _cat(pieces, f"{theirs}mlp.linear_fc2.weight", 1)
        wanted[f"{ours}attention.o.weight"] = _cat(pieces, f"{theirs}self_attention.linear_proj.weight", 1)
        norms = {
            "attention_norm": ("input_layernorm", "self_attention.linear_qkv.layer_norm"),
            "mlp_norm": ("pre_mlp_layernorm", "mlp.linear_fc1.layer_norm"),
            "attention.q_norm": ("self_attention.q_layernorm",),
            "attention.k_norm": ("self_attention.k_layernorm",),
        }
        for norm, names in norms.items():
            keys = [f"{theirs}{n}{dot}weight" for n in names for dot in (".", "_")]
            tensor = next((pieces[0][key] for key in keys if key in pieces[0]), None)
            if tensor is not None:
                wanted[f"{ours}{norm}.weight"] = tensor
    return wanted


def _experts_of_megatron(ranks: list[dict[str, Tensor]], theirs: str, ours: str) -> dict[str, Tensor]:
    """Rank 0's experts, then rank 1's, each with gate over up."""
    ups, downs = [], []
    for piece in ranks:
        number = 0
        while (name := f"{theirs}mlp.experts.local_experts.{number}.linear_fc") + "1.weight" in piece:
            ups.append(piece[name + "1.weight"])
            downs.append(piece[name + "2.weight"])
            number += 1
    gate, up = torch.stack(ups).chunk(2, 1)
    return {
        f"{ours}mlp.router.weight": ranks[0][f"{theirs}mlp.router.weight"],
        f"{ours}mlp.experts.gate.weight": gate,
        f"{ours}mlp.experts.up.weight": up,
        f"{ours}mlp.experts.down.weight": torch.stack(downs),
    }


def _of_nanotron(expected: dict[str, Any], reader: CheckpointReader) -> dict[str, Tensor]:
    """By hand: a rank has its part of q, of k and of v; rows 2 i, 2 i + 1 of a head turn together."""
    pieces = [{name.removeprefix("model."): t for name, t in piece.items()} for piece in expected["pieces"]]
    wanted = {
        "embed.weight": _cat(pieces, "token_position_embeddings.pp_block.token_embedding.weight"),
        "head.weight": _cat(pieces, "lm_head.pp_block.weight"),
        "norm.weight": pieces[0]["final_layer_norm.pp_block.weight"],
    }
    for layer in range(2):
        theirs, ours = f"decoder.{layer}.pp_block.", f"layers.{layer}."
        qkv = [piece[f"{theirs}attn.qkv_proj.weight"].split([24, 8, 8]) for piece in pieces]
        q, k, v = (torch.cat([parts[i] for parts in qkv]) for i in range(3))
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        wanted[f"{ours}attention.q.weight"] = q.unflatten(0, (6, 8))[:, order].flatten(0, 1)
        wanted[f"{ours}attention.k.weight"] = k.unflatten(0, (2, 8))[:, order].flatten(0, 1)
        wanted[f"{ours}attention.v.weight"] = v
        fused = [piece[f"{theirs}mlp.gate_up_proj.weight"].chunk(2) for piece in pieces]
        wanted[f"{ours}mlp.gate.weight"] = torch.cat([gate for gate, _ in fused])
        wanted[f"{ours}mlp.up.weight"] = torch.cat([up for _, up in fused])
        wanted[f"{ours}mlp.down.weight"] = _cat(pieces, f"{theirs}mlp.down_proj.weight", 1)
        wanted[f"{ours}attention.o.weight"] = _cat(pieces, f"{theirs}attn.o_proj.weight", 1)
        wanted[f"{ours}attention_norm.weight"] = pieces[0][f"{theirs}input_layernorm.weight"]
        wanted[f"{ours}mlp_norm.weight"] = pieces[0][f"{theirs}post_attention_layernorm.weight"]
    return wanted


WANTED = {
    "torchtitan": _by_their_conversion,
    "deepspeed": _by_their_conversion,
    "megatron": _of_megatron,
    "nanotron": _of_nanotron,
}


def main() -> None:
    """`python real.py TRAINER FOLDER`: all cases, as JSON on the last line."""
    trainer, folder = sys.argv[1], Path(sys.argv[2])
    found = {case: check(trainer, case, folder / str(n)) for n, case in enumerate(cases(trainer))}
    answer = {case: [asdict(checked) for checked in some] for case, some in found.items()}
    print(json.dumps({"version": version(trainer), "torch": torch.__version__, "cases": answer}))


if __name__ == "__main__":
    main()
