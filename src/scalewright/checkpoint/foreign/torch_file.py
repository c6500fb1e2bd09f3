"""A file of `torch.save`, read as records and places: which tensor lies where in it, and nothing is loaded.

    archive/data.pkl   the pickle: {"fp32": _rebuild_tensor_v2(storage "0", offset 0, (4, 8), strides (8, 1))}
    archive/data/0     the numbers of storage "0", stored as they are, so that a place in the file is enough

Storages that are compressed are refused: torch writes none, and a small file can't become a large one.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import IO, Any

from scalewright.checkpoint.foreign.index import ITEM_BYTES, Stored
from scalewright.spec.common.pickles import Global, Made, NotPlainData, Persistent, read_records
from scalewright.spec.common.untrusted import open_regular
from scalewright.spec.errors import UserError

# First words of modules that pickles of these trainers name; a name stays a name, and nothing is imported.
PACKAGES = frozenset(
    ("torch", "deepspeed", "megatron", "torchtitan", "transformer_engine", "numpy", "argparse", "pathlib")
)
NAMES = frozenset((
    "collections.OrderedDict", "collections.defaultdict", "collections.deque", "_codecs.encode", "__builtin__.object",
    "__builtin__.set", "copy_reg._reconstructor", "copyreg._reconstructor", "builtins.object", "builtins.set",
    "builtins.frozenset", "builtins.slice", "builtins.complex", "builtins.list", "builtins.dict", "builtins.int",
    "builtins.float", "builtins.bytearray", "datetime.datetime", "datetime.timedelta", "types.SimpleNamespace",
))  # fmt: skip
PICKLE_BYTES = 4 << 30
STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}  # fmt: skip
REBUILDS = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"}
WRAPS = {"_rebuild_parameter", "_rebuild_parameter_with_state", "_rebuild_from_type_v2"}
LOCAL_HEADER = 30  # bytes before the name, whose length and that of an extra field stand at 26 and 28


def damaged(path: Path | str, why: str) -> UserError:
    """The error for a file that can't be what its name says."""
    return UserError(f"the file can't be read: {why}", str(path), "don't use it, or save it again")


def open_file(path: Path) -> IO[bytes]:
    """The file, to be read; raises UserError."""
    try:
        return open_regular(path)
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from None


def records(data: bytes, path: Path) -> Any:
    """A pickle as records; raises UserError."""
    try:
        return read_records(data, PACKAGES, NAMES)
    except NotPlainData as error:
        raise damaged(path, str(error)) from None


class Window(io.RawIOBase):
    """A part of a file, as a file: a .distcp is many files of torch.save, one after another."""

    def __init__(self, file: IO[bytes], start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (0, self._at, self._length)[whence]
        if at < 0:
            raise ValueError("before the beginning")
        self._at = at
        return at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._length - self._at)
        count = left if size is None or size < 0 else min(size, left)
        self._file.seek(self._start + self._at)
        data = self._file.read(count)
        self._at += len(data)
        return data


class TorchFile:
    """A file of torch.save, or `length` bytes of a file from `start`; raises UserError. `content` is what was saved,
    with each tensor a record: `stored(record)` is its place."""

    def __init__(self, path: Path, file: IO[bytes], start: int = 0, length: int | None = None) -> None:
        self._path, self._file, self._start = path, file, start
        end = file.seek(0, io.SEEK_END)
        length = end - start if length is None else length
        if start < 0 or length < 0 or start + length > end:
            raise damaged(path, f"{length} bytes from {start} are outside its {end}")
        try:
            self._zip = zipfile.ZipFile(Window(file, start, length))
            self._entries = {info.filename.partition("/")[2]: info for info in self._zip.infolist()}
            self.content = records(self._zip.read(self._entry("data.pkl", PICKLE_BYTES)), path)
            order = self._zip.read(self._entry("byteorder", 16)) if "byteorder" in self._entries else b"little"
        except UserError:
            raise
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise damaged(path, f"no file of torch.save ({error})") from None
        if order != b"little":
            raise damaged(path, "its numbers are big-endian")

    def _entry(self, name: str, limit: int = 1 << 62) -> zipfile.ZipInfo:
        if (info := self._entries.get(name)) is None:
            raise damaged(self._path, f"it has no {name}")
        plain = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
        if not plain or info.flag_bits & 1:
            raise damaged(self._path, f"its {name} is compressed or encrypted, which torch.save does not do")
        if info.file_size > limit:
            raise damaged(self._path, f"its {name} has {info.file_size:,} bytes")
        return info

    def stored(self, tensor: Any) -> Stored | None:
        """Where a tensor of `content` lies; None for anything else. Raises UserError."""
        while isinstance(tensor, Made) and tensor.callee.name in WRAPS:
            tensor = _wrapped(tensor)
        if not isinstance(tensor, Made) or tensor.callee.name not in REBUILDS:
            return None
        try:
            storage, offset, shape, strides = tensor.args[:4]
            dtype, key, kind_bytes = self._storage(storage, tensor.args)
            numbers = (offset, *shape, *strides)
            if any(type(n) is not int or n < 0 for n in numbers) or len(shape) != len(strides):
                raise ValueError("a shape isn't one")
            info = self._entry(f"data/{key}")
            start = self._data_start(info) + offset * kind_bytes
            last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else -1
            if (offset + last + 1) * kind_bytes > info.file_size:
                raise ValueError(f"a tensor is larger than its {info.file_size:,} bytes")
        except (ValueError, TypeError, AttributeError) as error:
            if isinstance(error, UserError):
                raise
            raise damaged(self._path, f"a tensor is damaged ({error})") from None
        return Stored(dtype, tuple(shape), start, tuple(strides))

    def _storage(self, storage: Any, args: tuple[Any, ...]) -> tuple[str, str, int]:
        """Type, key and bytes of an element; `_rebuild_tensor_v3` has the type behind an untyped storage."""
        kind, cls, key = storage.about[:3] if isinstance(storage, Persistent) else (None, None, None)
        if kind != "storage" or not isinstance(cls, Global) or type(key) is not str:
            raise ValueError("its storage isn't one")
        dtype = STORAGES.get(cls.name)
        if cls.name == "UntypedStorage":
            dtype = next((a.name for a in args if isinstance(a, Global) and a.name in ITEM_BYTES), None)
        if dtype is None:
            raise ValueError(f"no type {cls.name[:60]}")
        return dtype, key, ITEM_BYTES[dtype]

    def _data_start(self, info: zipfile.ZipInfo) -> int:
        """The byte of the file at which an entry's content begins."""
        self._file.seek(self._start + info.header_offset)
        header = self._file.read(LOCAL_HEADER)
        if len(header) < LOCAL_HEADER or not header.startswith(b"PK\x03\x04"):
            raise ValueError("its zip is damaged")
        lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        return self._start + info.header_offset + LOCAL_HEADER + lengths


def _wrapped(record: Made) -> Any:
    """The tensor within a parameter, or within a subclass of tensors."""
    if record.callee.name != "_rebuild_from_type_v2":
        return record.args[0] if record.args else None
    rebuild, _, args = (*record.args, None, None, None)[:3]
    return Made(rebuild, args) if isinstance(rebuild, Global) and isinstance(args, tuple) else None
