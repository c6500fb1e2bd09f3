"""Reads pickles without being able to run what is in them: those of plain data, and those that name classes.

    opcode ──► in DATA: numbers, text, lists, dictionaries, the memo   ──► built
         ├──► in CALLS: GLOBAL, REDUCE, NEWOBJ, BUILD, PERSID          ──► read_pickle: NotPlainData
         │                                                                 read_records: a record of names
         └──► any other: INST, OBJ, EXT, NEXT_BUFFER                   ──► NotPlainData

A pickle is a program; CALLS are the part of its language that imports and calls. For plain data (flight
recorder, memory snapshots) they aren't filtered but absent: the interpreter's table ends with those of data.
Checkpoints of other trainers need them, so there a global is two words, `Global("torch", "Size")`, and a call
is a `Made` with that global and its arguments: nothing is imported, and nothing is called. The interpreter is
Python's own written in Python: the one in C takes memory for the memo as a number in the file says.
"""

from __future__ import annotations

import gzip
import io
import pickle
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

LIMIT = 4 << 30  # bytes of a file, unzipped
DATA = (
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP",
    "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_LIST", "LIST", "APPEND", "APPENDS",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_SET", "ADDITEMS", "FROZENSET",
    "PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET", "MEMOIZE",
)  # fmt: skip
ALL, KEYS = slice(None), slice(0, None, 2)
# What an opcode hashes of the stack: of a tuple in tuples, or one that is held twice, that may never end.
HASHED = {"SETITEM": slice(-2, -1), "SETITEMS": KEYS, "DICT": KEYS, "ADDITEMS": ALL, "FROZENSET": ALL}
LONGEST_KEY = 64  # values of a tuple
VALUES_PER_BYTE, FEW_VALUES = 16, 1_000_000  # a snapshot's stacks, which its events share, are some 5 a byte
CONTAINERS = frozenset((dict, list, tuple, set, frozenset))


class NotPlainData(ValueError):
    """The file isn't a pickle, is damaged, or wants to import or call something."""


_Interpreter: Any = pickle._Unpickler


def _opcode(name: str) -> Callable[[Any], None]:
    """Python's own handler of an opcode; one that hashes keys looks at them first."""
    handle, hashed = _Interpreter.dispatch[getattr(pickle, name)[0]], HASHED.get(name)

    def checked(interpreter: Any) -> None:
        for key in interpreter.stack[hashed]:
            nested = isinstance(key, tuple) and any(type(part) in (tuple, Persistent) for part in key)
            if nested or (isinstance(key, tuple) and len(key) > LONGEST_KEY):
                raise NotPlainData("a key of it is a tuple of tuples, or a long one")
        handle(interpreter)

    return checked if hashed else handle


class _PlainData(_Interpreter):  # type: ignore[misc]
    dispatch: ClassVar = {getattr(pickle, name)[0]: _opcode(name) for name in DATA}

    def find_class(self, module: str, name: str) -> Any:
        """Unreachable, and forbidden."""
        raise NotPlainData(f"it imports {module}.{name}")


class Global(NamedTuple):
    """What a pickle would import: two words, and nothing more."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Persistent(NamedTuple):
    """What a pickle finds outside of itself, by its description there (torch: a storage)."""

    about: Any


class Made:
    """What a pickle would call, with which arguments; `state` and `items` are what it would set there.

    Equal to itself alone, so that as a dictionary's key it costs what an integer does.
    """

    __slots__ = ("args", "callee", "items", "state")

    def __init__(self, callee: Global, args: tuple[Any, ...]) -> None:
        self.callee, self.args = callee, args
        self.state: Any = None
        self.items: dict[Any, Any] = {}

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items[key] = value

    def __repr__(self) -> str:
        return f"Made({self.callee})"


class _Records(_PlainData):
    """Imports become `Global`, calls `Made`; `packages` are the first words of modules that may be named."""

    def __init__(self, file: io.BytesIO, packages: Collection[str], names: Collection[str]) -> None:
        super().__init__(file, encoding="utf-8", errors="replace")
        self._packages, self._names = packages, names

    def find_class(self, module: str, name: str) -> Global:
        if module.split(".")[0] not in self._packages and f"{module}.{name}" not in self._names:
            raise NotPlainData(f"it names {module}.{name}"[:200] + ", which no checkpoint of weights needs")
        return Global(module, name)

    def persistent_load(self, about: Any) -> Persistent:
        return Persistent(about)

    def load_stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if type(name) is not str or type(module) is not str:
            raise NotPlainData("it names something by other than text")
        self.append(self.find_class(module, name))

    def load_call(self) -> None:
        """REDUCE and NEWOBJ: a callable is on the stack, below its arguments."""
        self.append(made(args=self.stack.pop(), callee=self.stack.pop()))

    def load_call_with_keys(self) -> None:
        """NEWOBJ_EX: the same with keyword arguments, which no class of ours has a use for."""
        self.stack.pop()
        self.load_call()

    def load_build(self) -> None:
        """Attributes: of a record they are kept; of a dictionary (torch's `_metadata`) dropped."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Made):
            target.state = state
        elif not isinstance(target, dict):
            raise NotPlainData("it sets attributes of plain data")

    dispatch: ClassVar = {
        **_PlainData.dispatch,
        pickle.GLOBAL[0]: _Interpreter.load_global,
        pickle.STACK_GLOBAL[0]: load_stack_global,
        pickle.REDUCE[0]: load_call,
        pickle.NEWOBJ[0]: load_call,
        pickle.NEWOBJ_EX[0]: load_call_with_keys,
        pickle.BUILD[0]: load_build,
        pickle.BINPERSID[0]: _Interpreter.load_binpersid,
    }


def made(callee: Any, args: Any) -> Any:
    """The record of a call; those of the plainest types become what they are in Python."""
    if not isinstance(callee, Global) or not isinstance(args, tuple):
        raise NotPlainData("it calls something that isn't named")
    if callee == ("collections", "OrderedDict") and not args:
        return {}
    if callee == ("torch", "Size") and len(args) == 1 and isinstance(args[0], tuple | list):
        return tuple(args[0])
    return Made(callee, args)


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
    return _load(_PlainData(io.BytesIO(data), encoding="utf-8", errors="replace"), len(data))


def read_records(data: bytes, packages: Collection[str], names: Collection[str]) -> Any:
    """A pickle with its imports and calls as records; raises NotPlainData, also for a global elsewhere.

    `packages` are first words of modules, `names` full names of globals. To name one is harmless here; that a
    file of weights names `os.system` is reason enough to refuse it.
    """
    return _load(_Records(io.BytesIO(data), packages, names), 1 << 60)  # within limits of their process


def _load(interpreter: Any, size: int) -> Any:
    try:
        content = interpreter.load()
        _count(content, {}, max(FEW_VALUES, VALUES_PER_BYTE * size))
        return content
    except KeyError as error:
        raise NotPlainData(_refusal(error.args[0] if error.args else None)) from None
    except NotPlainData:
        raise
    except Exception as error:  # a damaged pickle raises whatever its opcodes run into
        raise NotPlainData(f"it is damaged ({type(error).__name__})") from None


def _count(part: Any, counts: dict[int, int], most: int) -> int:
    """Values that a walk through a part meets; raises NotPlainData beyond `most`: shared parts count anew."""
    if type(part) not in CONTAINERS:
        return 1
    if id(part) not in counts:
        counts[id(part)] = most  # until it is known: what contains itself has no end
        values = part.values() if type(part) is dict else part
        counts[id(part)] = 1 + sum(_count(value, counts, most) for value in values)
        if counts[id(part)] > most:
            raise NotPlainData(f"its parts hold each other so often that it has over {most:,} values")
    return counts[id(part)]


def _refusal(code: object) -> str:
    names = {getattr(pickle, name): name for name in dir(pickle) if name.isupper()}
    name = names.get(bytes([code])) if isinstance(code, int) and code < 256 else None
    return f"it contains {name}, which runs code: plain data doesn't" if name else "it is damaged, or no pickle"
