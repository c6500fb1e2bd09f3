"""Shards, their index and what the headers say: each tensor once, where the index says, as config.json makes it.

    index.json   weight_map: tensor -> file       one file: model.safetensors, and no index
                 metadata: total_size

transformers takes model.safetensors before an index; vLLM reads every file that the index names. A tensor that no
module has makes vLLM stop, one that is missing makes transformers take random numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from scalewright.checkpoint.lint.folder import BITS, CONFIG, INDEX, NAMES, Export, Stored, problem, warn
from scalewright.model.names import Location, locations
from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import Finding, UserError
from scalewright.spec.model import ModelSpec

SINGLE, MAX_SHARD_BYTES = "model.safetensors", 5_000_000_000
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
LEFT_OVER = (".partial", ".tmp", ".incomplete")
BUFFERS = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias")
SHOWN = 3  # names in a line
KEYS = {  # the part of a tensor's name -> keys of config.json that make its shape
    "embed": "vocab_size, hidden_size", "wte": "vocab_size, n_embd", "head": "vocab_size, hidden_size",
    "att": "head_dim, num_attention_heads, num_key_value_heads", "mlp": "intermediate_size", "experts": "the experts'",
}  # fmt: skip


def check(export: Export) -> Iterator[Finding]:
    """Findings about the weight files."""
    pickles = sorted(name for name in export.files if name.endswith(PICKLES))
    whole = any(name.endswith(".safetensors") for name in export.files)
    if not whole:
        what = "the weights are a pickle, which can run code when it is loaded" if pickles else "there are no weights"
        how = "convert them to safetensors" if pickles else f"give a folder with {SINGLE} or {INDEX}"
        yield problem(pickles[0] if pickles else SINGLE, "weights", what, how)
    elif pickles:
        what = f"{_some(pickles)}: pickles, which can run code, beside safetensors"
        yield warn(pickles[0], "pickle", what, "leave them out of what is served")
    for name in sorted(name for name in export.files if name.endswith(LEFT_OVER)):
        yield warn(name, "left over", "left over from a writing that stopped", "remove it")
    yield from _index(export)
    for name, kind in export.formats.items():
        if kind != "pt":
            what = "no `format: pt` in its metadata: older loaders refuse it"
            yield warn(name, "format", what, "save it with metadata {'format': 'pt'}")
        if (size := (export.folder / name).stat().st_size) > MAX_SHARD_BYTES:
            yield warn(name, "shard", f"{size / 1e9:.1f} GB in a file", "save it in shards of 5 GB at most")
    if export.stored:
        yield from _shapes(export)
        yield from _dtypes(export)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _index(export: Export) -> Iterator[Finding]:
    held: dict[str, list[str]] = {}
    for tensor in export.stored:
        held.setdefault(tensor.name, []).append(tensor.file)
    if twice := [name for name, files in held.items() if len(files) > 1]:
        what = f"in two files: {_some(twice)} ({' and '.join(held[twice[0]])})"
        yield problem(held[twice[0]][1], "twice", what, "keep one of them")
    if INDEX not in export.files:
        if export.formats and SINGLE not in export.formats:
            what = f"{counted(len(export.formats), 'files')} of weights, and no index that names them"
            yield problem(INDEX, "index", what, f"write the index, or name a lone file {SINGLE}")
        return
    if INDEX not in export.json:
        return
    weight_map = export.index
    if weight_map is None:
        yield problem(INDEX, "index", "it has no weight_map", "save the folder again")
        return
    if SINGLE in export.files and SINGLE not in weight_map.values():
        what = "beside an index of other files: transformers takes this one, vLLM those"
        yield problem(SINGLE, "index", what, "remove what is stale")
    yield from _against(export, weight_map, held)
    total, metadata = sum(tensor.stop - tensor.start for tensor in export.stored), export.json[INDEX].get("metadata")
    stated = metadata.get("total_size") if isinstance(metadata, dict) else None
    if stated != total and not export.lacking:
        what = f"total_size is {stated}, and the files hold {total} bytes"
        yield warn(INDEX, "total_size", what, f"set it to {total}")


def _against(export: Export, weight_map: Mapping[str, str], held: Mapping[str, list[str]]) -> Iterator[Finding]:
    """The index beside what files hold; a file that is missing or damaged is named once."""
    for name in sorted(set(weight_map.values()) - export.files):
        yield problem(name, "shard", "the index names it, and it isn't here", "fetch or save it again")
    there = {key: name for key, name in weight_map.items() if name in export.formats}
    if nowhere := [key for key in there if key not in held]:
        what = f"the index names tensors that no file has: {_some(nowhere)}"
        yield problem(INDEX, "index", what, "save the folder again")
    if elsewhere := [key for key, name in there.items() if key in held and name not in held[key]]:
        key = elsewhere[0]
        what = f"not where the index says: {_some(elsewhere)} ({held[key][0]}, not {there[key]})"
        yield problem(INDEX, "index", what, "save the folder again")
    if unnamed := sorted(set(export.formats) - set(weight_map.values()) - {SINGLE}):
        yield warn(unnamed[0], "left over", f"the index doesn't name {_some(unnamed)}", "remove what is stale")
    if left := [key for key in held if key not in weight_map]:
        yield problem(INDEX, "index", f"tensors that it doesn't name: {_some(left)}", "save the folder again")


def table(export: Export) -> tuple[ModelSpec, dict[str, Location]] | None:
    """The model of config.json and where its tensors lie; None where that isn't known."""
    spec = export.spec
    try:
        if spec is None or export.quantised:
            return None
        places = locations(spec)
        names = {tensor.name for tensor in export.stored}
        first = places.get("mtp.0.join.weight")
        if first is not None and names.isdisjoint({first.name, *first.other_names}):
            spec = spec.replace(mtp_layers=0)  # transformers saves none
            places = locations(spec)
        return spec, places
    except UserError:
        return None


def _shapes(export: Export) -> Iterator[Finding]:
    if (known := table(export)) is None:
        return
    spec, places = known
    stored = {tensor.name: tensor for tensor in export.stored}
    expected, missing = set(), []
    misshapen: dict[str, list[tuple[Stored, tuple[int, ...]]]] = {}
    for location in places.values():
        for part in location.parts:
            key = next((name for name in (part.name, *part.other_names) if name in stored), None)
            expected |= {part.name, *part.other_names, *part.copies}
            if key is None:
                missing.append(part.name)
            elif stored[key].shape != part.shape:
                keys = next((keys for name, keys in KEYS.items() if name in key), "its sizes")
                misshapen.setdefault(keys, []).append((stored[key], part.shape))
    for keys, tensors in misshapen.items():
        tensor, shape = tensors[0]
        more = f", and {len(tensors) - 1} more" if tensors[1:] else ""
        what = f"{tensor.name} is {list(tensor.shape)}, and config.json makes it {list(shape)}{more}"
        yield problem(tensor.file, "shape", what, f"set {keys} in config.json to what was trained")
    named = export.index or {}  # a tensor that the index promises is missed there
    if not export.lacking and (missing := [key for key in dict.fromkeys(missing) if key not in named]):
        untied = "" if spec.tie_word_embeddings or "head" not in missing[-1] else ", and tie_word_embeddings is false"
        what = f"{counted(len(missing), 'tensors are')} missing: {_some(missing)}{untied}"
        how = "save it again from the trained model" if not untied else "set tie_word_embeddings, or save the head"
        yield problem(CONFIG, "missing", what, how)
    head = "embed_out.weight" if spec.family == "gpt_neox" else "lm_head.weight"  # of a tied model: numbers.py
    foreign = [name for name in stored if name not in {*expected, head} and not name.endswith(BUFFERS)]
    if foreign and not export.wrapped:
        what = f"{counted(len(foreign), 'tensors')} that a {spec.family} of this config.json hasn't: {_some(foreign)}"
        yield problem(stored[foreign[0]].file, "foreign", what, "vLLM stops at it: save the model's tensors alone")


def _dtypes(export: Export) -> Iterator[Finding]:
    whole = export.json.get(CONFIG, {})
    said = [part[key] for part in (whole, export.config) for key in ("dtype", "torch_dtype") if part.get(key)]
    names = list(dict.fromkeys(str(name).removeprefix("torch.") for name in said))
    if len(names) > 1:
        yield problem(CONFIG, "dtype", f"dtype is {' and '.join(names)}", "keep that of the weights")
    if export.quantised:
        return
    # vectors may stay in fp32 beside halves: routers' biases, states
    sized = Counter[str]()
    for tensor in export.stored:
        if tensor.dtype in NAMES and (len(tensor.shape) > 1 or tensor.dtype != "F32"):
            sized[tensor.dtype] += (tensor.stop - tensor.start) * 8 // BITS[tensor.dtype]
    if len(sized) > 1:
        kinds = ", ".join(f"{NAMES[kind]} ({number:,} numbers)" for kind, number in sized.most_common())
        odd = next(tensor for tensor in export.stored if tensor.dtype == sized.most_common()[-1][0])
        yield warn(odd.file, "dtype", f"weights of several types: {kinds}; {odd.name}", "save all in one")
    if not names:
        yield warn(CONFIG, "dtype", "no dtype: engines choose one", "add that of the weights")
    elif names[0] not in NAMES.values():
        yield problem(CONFIG, "dtype", f"dtype is {names[0]!r}", f"use {' or '.join(NAMES.values())}")
    elif sized and names[0] != (most := NAMES[sized.most_common(1)[0][0]]):
        yield warn(CONFIG, "dtype", f"dtype is {names[0]}, and the weights are in {most}", f"set it to {most}")
