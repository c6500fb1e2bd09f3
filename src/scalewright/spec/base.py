"""The base of all specs: frozen, strict data, whose errors are one line.

    YAML --read_yaml--> plain dict --Spec.parse--> frozen spec --dump--> plain dict --write_yaml--> YAML

Unknown keys are errors, with the nearest valid key; a number written as `3e-4` is a number (YAML 1.1
alone would read it as text).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError, model_validator

from scalewright.spec.common.files import write_whole
from scalewright.spec.common.formatting import printable
from scalewright.spec.common.untrusted import read_bytes
from scalewright.spec.errors import Mistakes, UserError, nearest, reason
from scalewright.spec.scalars import narrowed

S = TypeVar("S", bound="Spec")


def from_keys(prepare: Callable[[Any, Any], Any]) -> Any:
    """A validator of a spec: what `prepare(cls, keys)` makes of a copy of its keys, before they are parsed."""

    def validate(cls: Any, data: Any) -> Any:
        return prepare(cls, dict(data)) if isinstance(data, dict) else data

    validator: Any = classmethod(validate)
    return model_validator(mode="before")(validator)


class Spec(BaseModel):
    """Frozen, validated data. Build it with `parse`, whose errors are one line."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Every key's, under the rules of `spec/scalars.py`."""
        return narrowed(handler(source), cls)

    @classmethod
    def parse(cls: type[S], data: Any, where: str = "") -> S:
        """`data` (a plain dict) as this spec; raises UserError with the key and the fix."""
        if isinstance(data, cls):
            return data
        if not isinstance(data, dict):
            raise UserError(f"expected keys and values, got {data!r}", where)
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise _mistakes(cls, error, where).together() from None

    def dump(self) -> dict[str, Any]:
        """Plain data (JSON types only); `parse(dump())` gives an equal spec."""
        return self.model_dump(mode="json", by_alias=True)

    def written(self) -> dict[str, Any]:
        """The fewest keys, in their order, that parse to an equal spec, as a person would write them by hand.

        Defaults are left out, and so are keys that others imply (`sp` where tp sets it).
        """
        whole = self.dump()
        keys = dict(whole)
        for key in whole:
            fewer = {name: value for name, value in keys.items() if name != key}
            with suppress(UserError):  # a key that must be given
                if type(self).parse(fewer).dump() == whole:
                    keys = fewer
        return keys

    def replace(self: S, **changes: Any) -> S:
        """A validated copy with some keys changed."""
        return type(self).parse({**self.dump(), **changes})


def _mistakes(cls: type[Spec], error: ValidationError, where: str) -> Mistakes:
    """pydantic's errors: all misspelt and missing keys, all values that won't do."""
    by_path: dict[str, Any] = {}  # of a union, whose every branch complains, the first
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"] if not _is_type_tag(part))
        unions = [known for known, other in by_path.items() if any(map(_is_type_tag, other["loc"]))]
        if not any(path.startswith(f"{known}.") for known in unions):
            by_path.setdefault(path, problem)
    mistakes, missing = Mistakes(), []
    for path, problem in by_path.items():
        if any(other.startswith(f"{path}.") for other in by_path):
            continue  # it follows from what is wrong inside
        if problem["type"] == "missing":
            missing.append(path)
            continue
        inner = problem.get("ctx", {}).get("error")
        place = f"{where}: {path}" if where and path else (path or where)
        if not isinstance(inner, UserError):
            mistakes.noted.append(_wrong(cls, path, problem, where))
            continue
        for part in inner.parts or (inner,):
            within = f"{where}: {part.where}" if where and part.where not in ("", where) else part.where or place
            mistakes.noted.append(UserError(part.what, within, part.how))
    meant = " ".join(part.how for part in mistakes.noted if part.what.startswith("unknown key"))
    # A misspelt key explains the one that is missing.
    if missing := [path for path in missing if f"'{path}'" not in meant]:
        mistakes.noted.insert(0, _missing_keys(cls, missing, where))
    return mistakes


def _missing_keys(cls: type[BaseModel], paths: Sequence[str], where: str) -> UserError:
    """The error for keys that must be given, with an example of each."""
    usual = read_yaml(Path(__file__).with_name("examples.yaml"))
    names, examples = ", ".join(f"'{path}'" for path in paths), [_example(cls, path, usual) for path in paths]
    return UserError(f"missing key{'s' if len(paths) > 1 else ''} {names}", where, f"add {', '.join(examples)}")


def _example(cls: type[BaseModel], path: str, usual: dict[str, str]) -> str:
    """`key: value` with a value that the key takes: its words, or one that is usual."""
    *parents, key = path.split(".")
    spec = _spec_at(cls, parents)
    words = [word for word in get_args(spec.model_fields[key].annotation) if isinstance(word, str)] if spec else []
    return f"`{key}: {' | '.join(words[:4]) or usual.get(key, '...')}`"


def _wrong(cls: type[Spec], path: str, problem: Any, where: str) -> UserError:
    """One of pydantic's errors about a key or a value."""
    if problem["type"] == "extra_forbidden":
        key = str(problem["loc"][-1])
        spec = _spec_at(cls, problem["loc"][:-1])
        known = list(spec.model_fields) if spec else []
        synonym = SYNONYMS.get(key.lower())
        section, wanted = path.removesuffix(key), synonym or key  # `train.` of train.step
        specs = [(part, spec) for part, field in cls.model_fields.items() for spec in _specs_in(field.annotation)]
        below = [f"{part}.{wanted}" for part, spec in specs if wanted in spec.model_fields]
        near = [f"{section}{synonym}"] if synonym in known else below
        near = near or [f"{section}{name}" for name in nearest(key, known)]
        meant = "did you mean " + " or ".join(f"'{name}'" for name in near) + "?"
        return UserError(f"unknown key '{path}'", where, meant if near else "known keys are " + ", ".join(known))
    value = problem.get("input")
    shown = repr(value) if len(repr(value)) < 60 else type(value).__name__
    return UserError(f"{path or 'value'} is {shown}", where, _in_words(problem))


OTHERS_NAMES = {  # key of ours -> what other trainers call it
    "lr": ("learning_rate", "max_lr"),
    "steps": ("max_steps", "num_steps", "train_iters"),
    "clip_norm": ("max_grad_norm", "grad_clip", "clip_grad", "gradient_clip", "gradient_clipping"),
    "valid_every": ("eval_every", "eval_interval", "eval_steps"),
    "every": ("save_every", "save_interval", "save_steps", "checkpoint_every"),
    "seq_len": ("sequence_length", "max_seq_len"),
    "global_batch": ("batch_size", "global_batch_size", "gradient_accumulation", "gradient_accumulation_steps"),
    "micro_batch": ("micro_batch_size",),
    "devices": ("gpus", "num_gpus", "world_size", "dp", "data_parallel_size"),
    "num_hidden_layers": ("layers", "num_layers", "n_layer", "n_layers"),
    "num_attention_heads": ("heads", "num_heads", "n_head", "n_heads"),
    "num_key_value_heads": ("kv_heads", "n_kv_heads", "num_query_groups"),
    "hidden_size": ("d_model", "n_embd", "n_embed", "dim"),
    "intermediate_size": ("d_ff", "ffn_hidden_size", "ffn_dim"),
}
SYNONYMS = {name: key for key, names in OTHERS_NAMES.items() for name in names}
PATTERNS = {
    r"^\.*[\w\-][\w.\-]*$": "use letters, digits, '.', '-' and '_' alone",
    r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$": "write package.module:name",
}

NAMES = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def _in_words(problem: Any) -> str:
    """pydantic's message without Python's types and regular expressions."""
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "string_pattern_mismatch" and context.get("pattern") in PATTERNS:
        return PATTERNS[context["pattern"]]
    if kind in ("model_type", "model_attributes_type", "dict_type", "dataclass_type"):
        return "it should hold keys and values"
    expected, _, failure = kind.partition("_")
    if expected in NAMES and failure in ("parsing", "parsing_size", "type", "from_float"):
        return f"it should be {NAMES[expected]}"
    if kind == "too_short":
        return f"give {context['min_length']} or more"
    return str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "it should be")


def _is_type_tag(part: Any) -> bool:
    """Whether pydantic added this part of a location, to name a branch of a union."""
    return isinstance(part, str) and (part in {"str", "int", "float", "bool"} or part[:1].isupper() or "[" in part)


def _spec_at(cls: type[BaseModel], path: Sequence[int | str]) -> type[BaseModel] | None:
    """The spec nested at `path` below `cls`; None where it leads to none."""
    current = cls
    for part in path:
        if isinstance(part, int) or part.isdigit() or _is_type_tag(part):
            continue
        field = current.model_fields.get(part)
        nested = _specs_in(field.annotation) if field else []
        if not nested:
            return None
        current = nested[0]
    return current


def _specs_in(annotation: Any) -> list[type[BaseModel]]:
    if arguments := getattr(annotation, "__args__", ()):
        return [spec for argument in arguments for spec in _specs_in(argument)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


# The parser in C is ten times as fast; wheels of PyYAML have it, some distributions' builds don't.
_Fastest: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Fastest):  # type: ignore[misc]
    """YAML that reads `3e-4` as a number and refuses a key written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<` isn't a key
                continue
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            if isinstance(key, str) and key in lines:
                where = f"lines {lines[key]} and {line}" if line != lines[key] else f"line {line}"
                raise UserError(f"key '{key}' is written twice", where, "keep one of them")
            if isinstance(key, str):
                lines[key] = line
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


EXPONENT = re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789."))

PACKAGE = Path(__file__).resolve().parents[1]
MOST_TEXT = 16 << 20  # characters
DEEPEST = 100
MOST_ALIASED = 100_000  # values that a text with aliases may expand to


def _check_size(text: str) -> None:
    """Raises UserError for a small text that expands to huge data, before any of it is built.

    One pass over the parser's events counts the values of each anchor: nine lines of nine aliases each
    ("billion laughs") are 9^9 values, and ten thousand brackets crash the parser in C.
    """
    if len(text) > MOST_TEXT:
        raise UserError(f"it has {len(text):,} characters", "", f"at most {MOST_TEXT:,} are read")
    sizes: dict[str | None, int] = {}
    open_nodes: list[list[Any]] = [[None, 0]]  # [anchor, values so far], outermost first
    aliased = False
    for event in yaml.parse(text, Loader=_Fastest):
        size = 0
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            open_nodes.append([event.anchor, 1])
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            anchor, size = open_nodes.pop()
            sizes[anchor] = size
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = size = 1
        elif isinstance(event, yaml.AliasEvent):
            aliased = True
            if any(anchor == event.anchor for anchor, _ in open_nodes):
                raise UserError(f"alias '{event.anchor}' contains itself", _line(event), "write it out")
            size = sizes.get(event.anchor, 1)
        open_nodes[-1][1] += size
        if len(open_nodes) > DEEPEST:
            raise UserError(f"it is nested more than {DEEPEST} deep", _line(event), "write it flatter")
        if aliased and open_nodes[-1][1] >= MOST_ALIASED:
            problem = f"its aliases expand to more than {MOST_ALIASED:,} values"
            raise UserError(problem, _line(event), "write fewer of them")


def _line(event: Any) -> str:
    return f"line {event.start_mark.line + 1}"


def parse_yaml(text: str, where: str = "", loader: type[yaml.SafeLoader] | None = None, trusted: bool = False) -> Any:
    """YAML text as plain data, strict unless `loader` is another safe one; raises UserError with the line.

    `trusted`: whether it is known not to expand to huge data, as this package's own files don't.
    """
    loader = loader or _Loader
    try:
        if not trusted:
            _check_size(text)
        return yaml.load(text, Loader=loader)
    except UserError as error:
        raise UserError(error.what, f"{where} {error.where}".strip(), error.how) from None
    except (ValueError, AttributeError, OverflowError) as error:  # an impossible date or number
        raise UserError(f"cannot read YAML: {error}", where, "put the value into quotes") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
        tab = mark and "\t" in "".join(text.splitlines()[mark.line : mark.line + 1])
        how = "write spaces in place of the tab" if tab else "check the indentation and the quotes there"
        raise UserError(f"cannot read YAML: {problem}", f"{where}{line}", how) from None


def read_yaml(path: str | Path) -> Any:
    """The plain data of a YAML file; raises UserError when it is missing or broken."""
    path = Path(path)
    try:
        text = read_bytes(path, 4 * MOST_TEXT).decode()
    except FileNotFoundError:
        raise UserError("no such file", str(path), f"check the path (you are in {Path.cwd()})") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the file: {reason(error)}", str(path), "give a YAML file") from None
    return parse_yaml(text, str(path), trusted=PACKAGE in path.parents)


# A number or a truth value to parsers of YAML other than PyYAML: Go's in Kubernetes, OmegaConf's.
OTHERS_READ = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)(e[-+]?\d+)?|[-+]?0[box][\da-f_]+|[yn]", re.I)


class TextDumper(yaml.SafeDumper):
    """Writes texts so that each parser reads the same text."""

    def represent_text(self, text: str, style: str | None = None) -> yaml.ScalarNode:
        """In quotes where it would be a number, or has signs that some take for an end of the line."""
        style = "'" if OTHERS_READ.fullmatch(text) else style
        return self.represent_scalar("tag:yaml.org,2002:str", text, style if printable(text) == text else '"')


class _Dumper(TextDumper):
    """Block style outside, flow style for lists of plain values."""

    def represent_float(self, value: float) -> yaml.ScalarNode:
        text = repr(value)
        if "e" in text and "." not in text.split("e")[0]:
            text = text.replace("e", ".0e", 1)
        return self.represent_scalar("tag:yaml.org,2002:float", text)

    def represent_list(self, value: list[Any]) -> yaml.SequenceNode:  # type: ignore[override]
        plain = all(not isinstance(item, (list, dict)) for item in value)
        return self.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=plain)


TextDumper.add_representer(str, TextDumper.represent_text)
_Dumper.add_representer(str, TextDumper.represent_text)
_Dumper.add_representer(float, _Dumper.represent_float)
_Dumper.add_representer(list, _Dumper.represent_list)


def to_yaml(data: Any) -> str:
    """Plain data as YAML text, in the order given; floats round-trip."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def write_yaml(path: str | Path, data: Any) -> None:
    """Writes plain data as a YAML file, whole or not at all."""
    write_whole(path, to_yaml(data))
