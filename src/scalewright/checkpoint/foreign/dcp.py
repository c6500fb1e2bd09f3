"""A folder of torch.distributed.checkpoint (DCP), as torchtitan and Megatron-LM (torch_dist) write it.

    .metadata         a pickle: each tensor's shape and type, its chunks (offsets, sizes), and which bytes of
                      which file each chunk is
    __0_0.distcp ...  files of torch.save, one after another: a chunk each
    common.pt         Megatron's: its arguments, from which the model's sizes are known; since Core 0.19 an
                      entry `common_state` of .metadata

FSDP, tensor and pipeline parallelism are in the chunks' offsets. Optimizer states are passed over by their names.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from scalewright.checkpoint.foreign.index import ITEM_BYTES, Index, Shape, is_weight
from scalewright.checkpoint.foreign.torch_file import PICKLE_BYTES, TorchFile, damaged, open_file, records
from scalewright.spec.common.pickles import Global, Made
from scalewright.spec.common.untrusted import inside, read_bytes
from scalewright.spec.errors import UserError

METADATA, COMMON, COMMON_ENTRY = ".metadata", "common.pt", "common_state"
Place = tuple[str, int, int]  # file, first byte, bytes


def read(folder: Path) -> Index:
    """Where every weight of the folder lies; raises UserError."""
    path = inside(folder, METADATA)
    metadata = records(_bytes(path), path)
    tensors, storage = (_state(metadata, key, path) for key in ("state_dict_metadata", "storage_data"))
    index, (places, objects) = Index(), _places(storage, path)
    chunks = []
    for name, entry in tensors.items():
        if not isinstance(name, str) or not isinstance(entry, Made):
            raise damaged(path, "a tensor's entry isn't one")
        if entry.callee.name != "TensorStorageMetadata" or not is_weight(name):
            continue
        index.add(name, _size(_state(entry, "size", path), path), _dtype(entry, path))
        for chunk in _state(entry, "chunks", path):
            offsets, sizes = (_size(_state(chunk, key, path), path) for key in ("offsets", "sizes"))
            if (place := places.get((name, offsets))) is None:
                raise damaged(path, f"'{name[:100]}' has a chunk at {list(offsets)} that no file holds")
            chunks.append((*place, name, offsets, sizes))
    _read_chunks(folder, index, sorted(chunks))
    common = next((place for name, place in objects.items() if name.split("/")[0] == COMMON_ENTRY), None)
    if common is not None or (folder / COMMON).exists():
        index.facts = _arguments(folder, common or (COMMON, 0, None))
    return index


def _bytes(path: Path) -> bytes:
    try:
        return read_bytes(path, PICKLE_BYTES)
    except (OSError, ValueError) as error:
        raise damaged(path, str(error)) from None


def _read_chunks(folder: Path, index: Index, chunks: list[tuple[str, int, int, str, Shape, Shape]]) -> None:
    """Where the numbers of each chunk lie, file by file."""
    for name, of_file in groupby(chunks, key=itemgetter(0)):
        path = inside(folder, name)
        with open_file(path) as file:
            for _, start, length, tensor, offsets, sizes in of_file:
                saved = TorchFile(path, file, start, length)
                stored = saved.stored(saved.content)
                if stored is None or stored.shape != sizes:
                    raise damaged(path, f"the chunk of '{tensor[:100]}' at byte {start} has another shape than {sizes}")
                if stored.dtype != index.tensors[tensor]["dtype"]:
                    raise damaged(path, f"the chunk of '{tensor[:100]}' at byte {start} has another type")
                index.piece(tensor, offsets, name, stored)


def _places(storage: Any, path: Path) -> tuple[dict[tuple[str, Shape], Place], dict[str, Place]]:
    """Where each chunk lies, by tensor and offsets; and each object that isn't a tensor."""
    places, objects = {}, {}
    for key, value in storage.items():
        name = str(_state(key, "fqn", path))
        place: Any = tuple(_state(value, word, path) for word in ("relative_path", "offset", "length"))
        if [type(part) for part in place] != [str, int, int]:
            raise damaged(path, "a chunk's place isn't one")
        if value.state.get("transform_descriptors"):
            raise damaged(path, "its chunks are compressed: save it again without")
        if key.state.get("offset") is None:
            objects[name] = place
        else:
            places[name, _size(key.state["offset"], path)] = place
    return places, objects


def _state(record: Any, key: str, path: Path) -> Any:
    """An attribute of a dataclass in the pickle."""
    if not isinstance(record, Made) or not isinstance(record.state, dict) or key not in record.state:
        raise damaged(path, f"it is no metadata of torch.distributed.checkpoint (no {key})")
    return record.state[key]


def _size(value: Any, path: Path) -> Shape:
    if not isinstance(value, tuple | list) or any(type(n) is not int or not 0 <= n < 1 << 62 for n in value):
        raise damaged(path, "a size isn't one")
    return tuple(value)


def _dtype(entry: Made, path: Path) -> str:
    """The type in a tensor's properties, whose state is a tuple."""
    properties = _state(entry, "properties", path)
    state = properties.state if isinstance(properties, Made) else None
    values = state.values() if isinstance(state, dict) else state if isinstance(state, tuple) else ()
    dtype = next((v.name for v in values if isinstance(v, Global) and v.module == "torch"), None)
    if dtype not in ITEM_BYTES:
        raise damaged(path, f"no type {dtype}")
    return str(dtype)


def _arguments(folder: Path, place: tuple[str, int, int | None]) -> dict[str, object]:
    """The plain values of Megatron's arguments; none where the file has none that can be read."""
    path = inside(folder, place[0])
    try:
        with open_file(path) as file:
            content = TorchFile(path, file, place[1], place[2]).content
    except UserError as error:
        return {"unread": f"{path.name}: {error.what}"}
    if isinstance(content, list) and len(content) == 1:
        content = content[0]
    arguments = content.get("args") if isinstance(content, dict) else None
    state = arguments.state if isinstance(arguments, Made) else arguments
    if not isinstance(state, dict):
        return {}
    kinds = (bool, int, float, str, tuple, list)  # window_size is a pair
    return {str(key): value for key, value in state.items() if isinstance(value, kinds)}
