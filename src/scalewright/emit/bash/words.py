"""Words of a command: quotes, variables, arrays, arithmetic and outputs put in, then split as bash splits them.

"${ARGS[@]}" --tp=${TP:-8} $FLAGS "n $((N*8))"      →  fields; what can't be known is a mark in them (unknown.py)

A variable that the script doesn't set comes from outside: a mark. It is empty where `${X:-8}` or `[ -z "$X" ]`
ask for that, as the script's author would have it on a bare machine, but for those that a scheduler sets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from scalewright.emit.bash import arithmetic
from scalewright.emit.bash.outputs import unescaped
from scalewright.emit.bash.patterns import GLOB, SPACES, braces, cut, removed, replaced
from scalewright.emit.bash.state import State
from scalewright.emit.bash.tree import Node, line_of, source
from scalewright.emit.bash.unknown import Ended, Marks, known

OUTSIDE = re.compile(
    r"(SLURM|PBS|LSB|PMI|OMPI|FLUX|COBALT|AZ|SM|KUBERNETES|BASH)_\w+|BASH|(LOCAL_|NODE_|GROUP_)?RANK|WORLD_SIZE|LINENO|"
    r"MASTER_(ADDR|PORT)|HOSTNAME|HOME|USER|(LD_LIBRARY_|PYTHON|C|LIBRARY_)?PATH|PWD|OLDPWD|SHELL|TMPDIR|LANG|E?UID|RANDOM|SECONDS|PPID|NODE_IP|"
    r"PIPESTATUS|EPOCH\w+"
)
# Bash itself sets them, in every script.
ALWAYS_SET = re.compile(
    r"BASH(_VERS\w+)?|PWD|E?UID|PPID|RANDOM|SECONDS|LINENO|HOSTNAME|(HOST|OS|MACH)TYPE|SHLVL|EPOCH\w+"
)
# Where `~` is HOME: of a word, of an array's element, of what is assigned.
HOME_OF_WORD, HOME_OF_ELEMENT, HOME_OF_VALUE = (
    re.compile(rf"{before}~(?=/|{end})")
    for before, end in ((r"^((?:[A-Za-z_]\w*=)?)", "$"), ("^()", "$"), ("(^|:)", ":|$"))
)
ASSIGNED = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)\+?=")
LONGEST = 200_000  # characters of a command or a variable
ARGUMENT, OUTER = "an argument that the script is started with", "set outside of the script"
PROGRAM, NUMBERS, TEXT = "it is the output of a program", "its numbers aren't known", "its text isn't known"


class Piece(NamedTuple):
    """A part of a word, put in: `literal`, `quoted`, or to be `split`; `next` ends a word of "$@"."""

    text: str = ""
    kind: str = "quoted"


Value: TypeAlias = str | list[str]
NEXT = Piece(kind="next")


class Words:
    """Expands words in a state. `output` runs the statements of a `$(...)`: what they print, or None.

    `files` gives those that a pattern matches. `count` takes steps, one for each 500 characters, and raises Ended
    where there were too many.
    """

    def __init__(
        self, state: State, marks: Marks, text: bytes, output: Callable[[list[Node]], str | None], assumed: list[str],
        count: Callable[[int], None], files: Callable[[str], list[str]],
    ) -> None:  # fmt: skip
        self.state, self.marks, self.source, self.output, self.count = state, marks, text, output, count
        self.files = files
        self.empty_outside = False  # a variable that isn't set is empty: in a condition
        self.empty_arguments = True  # then; but not where a case tells them apart
        self.assumed = assumed  # variables that were taken as not set
        self.assigned = set(ASSIGNED.findall(text.decode(errors="replace")))  # somewhere in the script

    # -- words --------------------------------------------------------------------------------------------

    @property
    def separators(self) -> str:
        """IFS."""
        stated = self.state.scalar("IFS") or ""
        return re.sub(r"\d", "", stated) if known(stated) else SPACES  # a mark has digits

    def fields(self, words: Iterable[Node], home: re.Pattern[str] = HOME_OF_WORD) -> list[str]:
        """The words that these give: none, one or several for each."""
        return [
            field for word in words for parts in braces(word.get("Parts") or []) for field in self._fields(parts, home)
        ]

    def _fields(self, parts: list[Node], home: re.Pattern[str]) -> Iterator[str]:
        current: list[Piece] = []
        for piece in self._bounded(self._pieces(parts, home=home)):
            texts = cut(piece.text, self.separators) if piece.kind == "split" else [piece.text]
            for index, text in enumerate(texts):
                if piece.kind != "next" and index % 2 == 0:
                    current += [Piece(text, piece.kind)] if text or piece.kind != "split" else []
                elif piece.kind == "next" or current or text.strip(SPACES):
                    yield from self._named(current)
                    current = []
        if current:
            yield from self._named(current)

    def _named(self, pieces: Sequence[Piece]) -> list[str]:
        """The files that a word names by a pattern; else the word itself."""
        pattern = "" if "noglob" in self.state.options else _pattern(pieces)
        files = self.files(pattern) if GLOB.search(pattern) and known(pattern) else []
        return files or ["".join(piece.text for piece in pieces)]

    def text(self, word: Node, home: re.Pattern[str] = HOME_OF_WORD) -> str:
        """One text: of an assignment, a pattern's subject, a here-document. Nothing is split."""
        pieces = self._bounded(self._pieces(word.get("Parts") or [], home=home))
        return "".join(" " if piece.kind == "next" else piece.text for piece in pieces)

    def pattern(self, word: Node) -> str:
        """A pattern, or a regular expression, what is quoted in it escaped."""
        return _pattern(self._bounded(self._pieces(word.get("Parts") or [])))

    def _bounded(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        total = 0
        for piece in pieces:
            total += len(piece.text) + 8  # many short words take as long as few long ones
            self.count(len(piece.text) // 500)
            if total > LONGEST:
                raise Ended(f"a text grows beyond {LONGEST:,} characters")
            yield piece

    def _pieces(self, parts: list[Node], quoted: bool = False, home: re.Pattern[str] = HOME_OF_WORD) -> Iterator[Piece]:
        folder = self.state.scalar("HOME")
        for part in parts:
            kind = part["Type"]
            if kind == "Lit" and quoted:
                yield Piece(re.sub(r"\\([$`\"\\\n])", lambda match: match[1].strip("\n"), part["Value"]))
            elif kind == "Lit":
                text = part["Value"]
                if folder and (part is parts[0] or home is HOME_OF_VALUE):
                    text = home.sub(lambda match: f"{match[1]}{folder}", text)
                for index, literal in enumerate(re.split(r"\\(.|\n)", text)):
                    if (literal and literal != "\n") or not index % 2:
                        yield Piece(literal, "quoted" if index % 2 else "literal")
            elif kind == "SglQuoted":
                yield Piece(unescaped(part.get("Value", "")) if part.get("Dollar") else part.get("Value", ""))
            elif kind == "DblQuoted":
                inner = part.get("Parts") or []
                if not inner:
                    yield Piece()
                yield from self._pieces(inner, quoted=True)
            elif kind == "ParamExp":
                yield from self._expansion(part, quoted)
            elif kind == "CmdSubst":
                printed = self.output(part.get("Stmts") or [])
                text = self._mark(part, PROGRAM) if printed is None else printed.rstrip("\n").replace("\0", "")
                yield Piece(text, "quoted" if quoted else "split")
            elif kind == "ArithmExp":
                number = self.calculated(part["X"])
                yield Piece(self._mark(part, NUMBERS) if number is None else str(number))
            elif kind == "ExtGlob":
                yield Piece(f"{part['Op']}{part['Pattern']['Value']})", "literal")
            else:  # <(...)
                yield Piece(self._mark(part, PROGRAM))

    def _mark(self, node: Node, why: str) -> str:
        return self.marks.make(source(self.source, node), why, line_of(node))

    # -- arithmetic ---------------------------------------------------------------------------------------

    def expression(self, node: Node) -> str:
        """An arithmetic expression as text, its $-expansions put in."""
        kind = node["Type"]
        if kind == "ParenArithm":
            return f"({self.expression(node['X'])})"
        if kind == "UnaryArithm":
            inner = self.expression(node["X"])
            return f"{inner}{node['Op']} " if node.get("Post") else f" {node['Op']}{inner}"
        if kind == "BinaryArithm":
            return f"{self.expression(node['X'])} {node['Op']} {self.expression(node['Y'])}"
        part = (node.get("Parts") or [{}])[0]
        if part.get("Index") and not source(self.source, node).startswith(("$", '"')):  # A[i], which may be assigned to
            return f"{part['Param']['Value']}[{self.key(part['Param']['Value'], part['Index'])}]"
        return self.text(node)

    def calculated(self, node: Node) -> int | None:
        """The value of an arithmetic expression; None where it can't be known."""
        return self.evaluated(self.expression(node))

    def evaluated(self, text: str) -> int | None:
        return arithmetic.value(text, self)

    def key(self, name: str, subscript: Node) -> int | str | None:
        """The key of an element; one below zero counts from an array's end."""
        if self.state.is_map(name):
            text = self.expression(subscript)
            return text if subscript["Type"] == "Word" else source(self.source, subscript) if known(text) else None
        number = self.calculated(subscript)
        if number is not None and number < 0:
            return max((key for key in self.state.items(name) if isinstance(key, int)), default=-1) + 1 + number
        return number

    def number(self, name: str) -> str | None:
        """A variable's text in arithmetic, where one that isn't set is 0 as in a condition."""
        name, _, subscript = name.rstrip("]").partition("[")
        text = self.state.items(name).get(_key(subscript)) if subscript else self.state.scalar(name)
        if text is None and (name in self.state.unset or not OUTSIDE.fullmatch(name)):
            self.assumed.append(name)
            return ""
        return text

    def assign(self, name: str, value: str | None, key: int | str | None = None) -> None:
        """Sets a variable, or an element `X[2]`; null: nobody knows to what."""
        name, _, subscript = name.rstrip("]").partition("[")
        text = self.marks.make(f"${name}", NUMBERS, 0) if value is None else value
        self.state.put(name, text, _key(subscript) if subscript else key)

    # -- ${...} -------------------------------------------------------------------------------------------

    def _expansion(self, part: Node, quoted: bool) -> Iterator[Piece]:
        if part.get("Excl") and not part.get("Names") and _subscript(part) not in ("@", "*"):
            pointed = self.state.scalar(part["Param"]["Value"])
            name, _, subscript = (pointed or "").rstrip("]").partition("[")
            if not re.fullmatch(r"\w+|[@*#]", name):
                yield Piece(self._mark(part, "what it points to isn't known"))
                return
            index = {"Type": "Word", "Parts": [{"Type": "Lit", "Value": subscript}]} if subscript else None
            part = {**part, "Excl": False, "Param": {"Value": name}, "Index": index}
        kind = "quoted" if quoted else "split"
        operation = part.get("Exp") or {}
        if operation.get("Op") in ("-", ":-", "=", ":=", "?", ":?", "+", ":+"):
            value = self._default(part, operation, quoted)
            if not isinstance(value, (str, list)):
                yield from value
                return
        else:
            value = self._value(part)
        if isinstance(value, str):
            yield Piece(value, kind)
        elif quoted and _subscript(part) == "*":
            yield Piece(self.separators[:1].join(value), kind)
        else:
            for index_, text in enumerate(value):
                if index_:
                    yield NEXT
                yield Piece(text, kind)

    def _value(self, part: Node) -> Value:
        """The text of an expansion without a default, or the texts of `$@` and `${X[@]}`."""
        stored = self._stored(part)
        if stored is None:
            stored = self._outside(part)
        if part.get("Length"):
            return self._mark(part, TEXT) if isinstance(stored, str) and not known(stored) else str(len(stored))
        if isinstance(stored, str):
            return self._changed(part, stored, part.get("Slice"))
        texts = [self._changed(part, text) for text in stored]
        if (slice_ := part.get("Slice")) is None:
            return texts
        name = part["Param"]["Value"]  # "$@" is counted from $0
        keys = [key for key in self.state.items(name) if isinstance(key, int)]
        numbered = dict(enumerate([self.state.name, *texts])) if name in "@*" else dict(zip(keys, texts, strict=False))
        chosen = self._sliced(slice_, numbered)
        return self._mark(part, NUMBERS) if chosen is None else chosen

    def _stored(self, part: Node) -> Value | None:
        """What a parameter has; None where it isn't set."""
        name, subscript, which = part["Param"]["Value"], part.get("Index"), _subscript(part)
        arguments = self.state.arguments
        if name in "@*" and arguments is not None:
            return list(arguments)
        if name == "#" and arguments is not None:
            return str(len(arguments))
        if name in ("0", "BASH_SOURCE"):
            return self.state.name
        if name.isdecimal():
            return arguments[int(name) - 1] if arguments and len(name) < 9 and int(name) <= len(arguments) else None
        if name == "?":
            return self.state.status
        if part.get("Names"):
            return sorted(key for key in self.state.variables if key.startswith(name))
        if which:
            items = self.state.items(name)
            if part.get("Excl"):
                return [str(key) for key in items]
            is_set = self.state.target(name) in self.state.variables.keys() | self.state.unset
            return list(items.values()) if is_set else None
        if subscript is None:
            return self.state.scalar(name)
        key, items = self.key(name, subscript), self.state.items(name)
        return self._mark(part, NUMBERS) if key is None else items.get(key, "" if items else None)

    def _outside(self, part: Node) -> Value:
        """A parameter that the script doesn't set."""
        name = part["Param"]["Value"]
        arguments = name.isdecimal() or name in "@*#"
        empty: Value = [] if _subscript(part) else ""
        if name in self.state.unset or (self.state.arguments is not None and arguments):
            return empty
        if name in self.assigned and not OUTSIDE.fullmatch(name):  # by the script, on a way that wasn't taken
            self.assumed.append(name)
            return empty
        if name in "@*#" and self.empty_outside:
            self.assumed.append("arguments of its own")
            return "0" if name == "#" else []
        positional = name.isdecimal() and not self.empty_arguments
        if self.empty_outside and not OUTSIDE.fullmatch(name) and name not in "$!-_" and not positional:
            self.assumed.append(name)
            return empty
        return self._mark(part, ARGUMENT if arguments else OUTER)

    def _default(self, part: Node, operation: Node, quoted: bool) -> Value | Iterator[Piece]:
        """`${X:-word}` and its kin; the pieces of the word, where it is taken."""
        sign, parts, stored = operation["Op"], (operation.get("Word") or {}).get("Parts") or [], self._stored(part)
        name = part["Param"]["Value"]
        if stored is None and ALWAYS_SET.fullmatch(name):
            stored = self.marks.make(f"${name}", OUTER, line_of(part))
        is_set = stored not in (None, []) and not (sign.startswith(":") and stored in ("", [""]))
        if sign.endswith("+"):
            return self._word(parts, quoted) if is_set else ""
        if is_set and stored is not None:
            return stored
        if stored is None and name not in self.state.unset:
            self.assumed.append(name)
        if sign.endswith("?"):
            return self._mark(part, OUTER)
        if sign.endswith("="):
            self.state.put(name, self.text({"Parts": parts}))
            return self.state.scalar(name) or ""
        return self._word(parts, quoted)

    def _word(self, parts: list[Node], quoted: bool) -> Iterator[Piece]:
        for text, kind in self._pieces(parts, quoted):
            yield Piece(text, "split" if kind == "literal" else kind)

    def _changed(self, part: Node, text: str, slice_: Node | None = None) -> str:
        """Prefixes, replacements, cases, and a slice of a text."""
        operation, replacement = part.get("Exp"), part.get("Repl")
        if not (operation or replacement or slice_):
            return text
        if not known(text):
            return self._mark(part, TEXT)
        if operation:
            return self._operation(part, operation, text)
        if replacement:
            with_ = self.text(replacement["With"]) if replacement.get("With") else ""
            sought = self.pattern(replacement["Orig"])
            if not known(sought, with_) or "&" in with_:  # which bash 5.2 replaces, and others don't
                return self._mark(part, TEXT)
            return replaced(text, sought, with_, bool(replacement.get("All"))) if sought else text
        chosen = self._sliced(slice_, dict(enumerate(text)), characters=True)
        return self._mark(part, NUMBERS) if chosen is None else "".join(chosen)

    def _operation(self, part: Node, operation: Node, text: str) -> str:
        sign = operation["Op"]
        pattern = self.pattern(operation["Word"]) if operation.get("Word") else ""
        if sign in ("#", "##", "%", "%%") and known(pattern):
            return removed(text, pattern, sign)
        change = {"^": str.upper, ",": str.lower}.get(sign[0])
        if change and pattern in ("", "?"):
            return change(text) if len(sign) == 2 else change(text[:1]) + text[1:]
        return self._mark(part, f"${{...{sign}}} isn't followed")

    def _sliced(self, slice_: Node, numbered: Mapping[int, str], characters: bool = False) -> list[str] | None:
        """`:2:4` of texts by their places, or of a text's characters; None where a number isn't known."""
        end = max(numbered, default=-1) + 1
        first = self.calculated(slice_["Offset"]) if slice_.get("Offset") else 0
        count = self.calculated(slice_["Length"]) if slice_.get("Length") else end
        if first is None or count is None:
            return None
        first = first + end if first < 0 else first
        chosen = [text for place, text in numbered.items() if place >= first >= 0]
        return chosen[:count] if count >= 0 else chosen[: max(end + count - first, 0)] if characters else []

    @contextmanager
    def nothing_outside(self, arguments: bool = True) -> Iterator[None]:
        """In a condition what isn't set is empty, `arguments`, too."""
        before = self.empty_outside, self.empty_arguments
        self.empty_outside, self.empty_arguments = True, arguments
        try:
            yield
        finally:
            self.empty_outside, self.empty_arguments = before


def _key(subscript: str) -> int | str:
    return int(subscript) if subscript.lstrip("-").isdecimal() else subscript


def _subscript(part: Node) -> str:
    """`@` or `*` of an expansion that is several texts, else empty."""
    index = part.get("Index") or {}
    parts = index.get("Parts") or [{}] if index.get("Type") == "Word" else [{}]
    which = part["Param"]["Value"] if part["Param"]["Value"] in ("@", "*") else parts[0].get("Value", "")
    return str(which) if which in ("@", "*") else "@" if part.get("Names") else ""


def _pattern(pieces: Iterable[Piece]) -> str:
    """Pieces as a pattern, what is quoted in it escaped."""
    return "".join(re.sub(r"([^\w\s])", r"\\\1", text) if kind == "quoted" else text for text, kind in pieces)
