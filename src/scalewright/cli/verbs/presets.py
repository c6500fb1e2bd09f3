"""`scalewright presets models|clusters|new`: what is known by name, and a model shape of a wanted size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from scalewright.cli.options import Force, Json, argument, flag, option
from scalewright.cli.output import print, print_exact, print_json, working
from scalewright.cli.terminal import print_table
from scalewright.spec.common.formatting import count

if TYPE_CHECKING:
    from scalewright.spec.hardware.cluster import ClusterSpec
    from scalewright.spec.model import ModelSpec


def _model_names() -> list[str]:
    from scalewright.spec.presets import model_presets

    return list(model_presets())


def _cluster_names() -> list[str]:
    from scalewright.spec.hardware.cluster import cluster_names

    return cluster_names()


def models(
    name: Annotated[str | None, argument("MODEL", "Show this one whole.", words=_model_names)] = None,
    json: Json = False,
) -> None:
    """List the known models with their parameter counts, or show one."""
    from scalewright.spec.base import to_yaml
    from scalewright.spec.presets import load_model_spec, model_presets

    if name is not None:
        spec = load_model_spec(name)
        print_json({**_model_row(spec), "spec": spec.dump()}) if json else print_exact(to_yaml(spec.dump()))
        return
    rows = [_model_row(spec) for spec in model_presets().values()]
    if json:
        print_json(rows)
        return
    table = []
    for row in rows:
        sizes = [count(row[key]) for key in ("params", "active_params")]
        heads = f"{row['heads']}/{row['kv_heads']}"
        trains = "yes" if row["trains"] else "no"
        table.append([row["name"], *sizes, row["layers"], row["hidden"], heads, row["context"], trains])
    print_table(("name", "params", "active", "layers", "hidden", "heads / kv", "context", "train"), table)


def _model_row(spec: ModelSpec) -> Mapping[str, Any]:
    from scalewright.spec.huggingface import why_not_running
    from scalewright.spec.tensors import count as count_parameters

    total = count_parameters(spec)
    return {
        "name": spec.name, "family": spec.family, "params": total.total, "active_params": total.active,
        "layers": spec.num_hidden_layers, "hidden": spec.hidden_size, "heads": spec.num_attention_heads,
        "kv_heads": spec.kv_heads, "vocab": spec.vocab_size, "context": spec.context,
        "trains": why_not_running(spec) is None,
    }  # fmt: skip


def clusters(
    name: Annotated[str | None, argument("CLUSTER", "Show this one whole.", words=_cluster_names)] = None,
    json: Json = False,
) -> None:
    """List the known clusters with their devices, or show one."""
    from scalewright.machine.local import find_cluster
    from scalewright.spec.base import to_yaml
    from scalewright.spec.hardware.cluster import cluster_presets

    if name is not None:
        with working("looking at this machine and its rates"):
            spec = find_cluster(name).dump()
        print_json(spec) if json else print_exact(to_yaml(spec))
        return
    rows = [_cluster_row(key, spec) for key, spec in cluster_presets().items()]
    if json:
        print_json(rows)
        return
    table = []
    for row in rows:
        flops = row["peak_bf16_flops"] or row["peak_fp16_flops"]
        rate = f"{flops / 1e12:.4g}" if flops else "none"
        memory, link = (f"{row[key] / 1e9:.0f}" for key in ("memory_bytes", "link_bytes_per_s"))
        kind = {"infiniband": "ib", "ethernet": "eth", None: "none"}.get(row["network"], row["network"])  # 80 columns
        table.append([row["name"], row["device"], row["devices_per_node"], memory, rate, link, kind])
    heads = ["name", "device", "per node", "GB each", "16-bit TFLOP/s", "link GB/s", "net"]
    print_table(heads, table)


def _cluster_row(name: str, spec: ClusterSpec) -> Mapping[str, Any]:
    link = next((level for level in spec.levels if level.name != "device"), spec.levels[0])
    fabric = next((level for level in spec.levels if level.name == "fabric"), None)
    return {
        "name": name, "device": spec.device.name, "devices_per_node": spec.devices_per_node, "nodes": spec.nodes,
        "memory_bytes": spec.device.memory_bytes, "peak_bf16_flops": spec.device.peak("bf16"),
        "peak_fp16_flops": spec.device.peak("fp16"), "link": link.kind, "link_bytes_per_s": link.bytes_per_s,
        "network": fabric.kind if fabric else None, "network_bytes_per_s": fabric.bytes_per_s if fabric else None,
    }  # fmt: skip


def new(
    params: Annotated[float, flag("Parameters wanted, such as 13e9.")],
    like: Annotated[str, flag("The family, or a preset of it, whose shape to follow.")] = "llama",
    vocab: Annotated[int, flag("Vocabulary size.")] = 65536,
    out: Annotated[Path | None, option("FILE", "Write it there, not to stdout.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Print a sensible model shape of a wanted size, as YAML that `model:` takes."""
    from scalewright.spec.base import to_yaml
    from scalewright.spec.common.files import write_signed
    from scalewright.spec.shapes import new_preset

    spec = new_preset(params, like, vocab)
    row = _model_row(spec)
    keys = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    text = f"# {row['params']:,} parameters ({count(row['params'])})\n" + to_yaml(keys)
    if out is not None:
        write_signed(out, text, force)
    if json:
        print_json({**row, "spec": spec.dump(), "file": None if out is None else str(out)})
    elif out is None:
        print_exact(text)
    else:
        print(f"{out}: {count(row['params'])} parameters")
