"""Reads pickles of plain data (flight recorder, memory snapshots) without being able to run what is in them.

    opcode ──► in DATA: numbers, text, lists, dictionaries, the memo        ──► built
         └──► any other: GLOBAL, REDUCE, BUILD, INST, NEWOBJ, EXT, PERSID   ──► NotPlainData

A pickle is a program; these opcodes are the part of its language that imports and calls. They aren't filtered
but absent, as the interpreter's table ends with those of data. It is Python's own written in Python: the one
in C takes memory for the memo as a number in the file says.
"""

from __future__ import annotations

import gzip
import io
import pickle
from pathlib import Path
from typing import Any, ClassVar

LIMIT = 4 << 30  # bytes of a file, unzipped
DATA = (
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP",
    "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4",
    "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_SET", "ADDITEMS", "FROZENSET",
    "PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET", "MEMOIZE",
)  # fmt: skip


class NotPlainData(ValueError):
    """The file isn't a pickle, is damaged, or wants to import or call something."""


_Interpreter: Any = pickle._Unpickler


class _PlainData(_Interpreter):  # type: ignore[misc]
    dispatch: ClassVar = {
        getattr(pickle, name)[0]: _Interpreter.dispatch[getattr(pickle, name)[0]] for name in DATA
    }

    def find_class(self, module: str, name: str) -> Any:
        """Unreachable, and forbidden."""
        raise NotPlainData(f"it imports {module}.{name}")


def read_pickle(path: Path) -> Any:
    """The data of a pickle, gzipped or not; raises NotPlainData, or OSError where it can't be read."""
    data = path.read_bytes() if path.stat().st_size <= LIMIT else b""
    if data.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(path) as file:
                data = file.read(LIMIT + 1)
        except (EOFError, gzip.BadGzipFile) as error:
            raise NotPlainData(f"its gzip is damaged: {error}") from None
    if not data or len(data) > LIMIT:
        raise NotPlainData(f"it is empty or larger than {LIMIT >> 30} GiB")
    try:
        return _PlainData(io.BytesIO(data), encoding="utf-8", errors="replace").load()
    except KeyError as error:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else None
        raise NotPlainData(_refusal(code)) from None
    except NotPlainData:
        raise
    except Exception as error:  # a damaged pickle raises whatever its opcodes run into
        raise NotPlainData(f"it is damaged ({type(error).__name__})") from None


def _refusal(code: int | None) -> str:
    names = {getattr(pickle, name): name for name in dir(pickle) if name.isupper()}
    name = names.get(bytes([code])) if code is not None and code < 256 else None
    if name is None:
        return "it is damaged, or no pickle"
    return f"it contains {name}, which runs code: plain data doesn't"
