"""Models by name: presets, config.json files, the Hub, and YAML files of this package's own keys.

    llama-3.1-8b                    a preset (`scalewright presets models`), its Hugging Face id, or an alias
    path/to/config.json, a folder   a Hugging Face config
    hf:org/name, hf:org/name@v1     its config.json, the only file that is fetched; @ a branch, tag or commit
    model.yaml, {a dict}            this package's own keys, or a config.json's

Presets are data (`spec/presets/models/*.yaml`): mostly the config.json of a family, with the parameter counts
that its makers published. A test compares every count with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import Any

import yaml

from scalewright.spec.base import read_yaml
from scalewright.spec.common.untrusted import inside, parse_json, read_json
from scalewright.spec.errors import UserError, reason, unknown
from scalewright.spec.families import UNPRICED_NAMES
from scalewright.spec.huggingface import read_huggingface, unpriced
from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import count, tensors

FOLDER = Path(__file__).parent / "presets" / "models"


@dataclass(frozen=True)
class Published:
    """A model's published size, and its source."""

    source: str = ""
    total: int | None = None  # exact
    about: str | None = None  # as printed: 671B
    active: str | None = None  # as printed
    active_counts: str = "with_embed_and_head"  # or without_input_embed, without_any_embed
    hub: int | None = None  # elements stored on the Hub, where that is more than parameters
    hub_extra: tuple[str, ...] = ()  # elements there beside parameters, by sort
    vision: int = 0  # parameters of an image encoder, which `about` and `hub` count and the spec doesn't


@dataclass(frozen=True)
class Preset:
    """A model known by name."""

    id: str
    spec: ModelSpec
    published: Published
    hf_id: str | None = None
    aliases: tuple[str, ...] = ()


def load_model_spec(source: str | Path | Mapping[str, Any] | ModelSpec) -> ModelSpec:
    """The model of a name, a path, `hf:org/name` or a dict; raises UserError."""
    if isinstance(source, ModelSpec):
        return source
    if isinstance(source, Mapping):
        return _from_keys(dict(source), "model", None)
    name = str(source)
    if name.startswith("hf:"):
        return read_huggingface(fetch_config(name[3:]), name, name[3:].split("@")[0].rpartition("/")[2])
    if isinstance(source, str) and (known := preset_id(name)) is not None:
        return preset(known).spec
    path = Path(source).expanduser()
    if path.exists() or path.suffix in (".json", ".yaml", ".yml"):
        return _from_path(path)
    if (family := next((family for part, family in UNPRICED_NAMES.items() if part in name.lower()), None)) is not None:
        raise unpriced(family, name)
    how = "give a config.json, a folder that holds one, hf:org/name, or a YAML file"
    problem = unknown("model", name, _entries())
    more = f"{problem.how} Or {how}" if problem.how else f"see `scalewright presets models`, or {how}"
    raise UserError(problem.what, "", more)


def is_preset(name: str) -> bool:
    """Whether a preset has this name, id or alias."""
    return name.lower() in _names()


def preset_id(name: str) -> str | None:
    """The id of the preset that has this name, id or alias; None for others."""
    return _names().get(name.lower())


def model_presets() -> dict[str, ModelSpec]:
    """Every preset's spec by its id, in the order of their files."""
    return {name: preset(name).spec for name in _entries()}


@cache
def preset(name: str) -> Preset:
    """The preset of exactly this id, with its published size."""
    entry = _entries()[name]
    if "config" in entry:
        spec = read_huggingface(entry["config"], f"preset {name}", name)
    else:
        spec = ModelSpec.parse({**entry["spec"], "name": name}, f"preset {name}")
    published = dict(entry.get("published", {}))
    published["hub_extra"] = tuple(published.get("hub_extra", ()))
    return Preset(name, spec, Published(**published), entry.get("hf_id"), tuple(entry.get("aliases", ())))


def stored_elements(spec: ModelSpec, extra: Iterable[str]) -> int:
    """Elements that a Hub repository stores: parameters, and those that `Published.hub_extra` names.

    `mtp`: multi-token-prediction layers; `embedding`, `head`: copies of those that such a layer has;
    `fp8_scales`: one number for each 128 x 128 block of the linear weights (DeepSeek-V3's format).
    """
    extra, counted = set(extra), count(spec)
    total = counted.total + (counted.mtp if "mtp" in extra else 0)
    total += counted.embedding * (("embedding" in extra) + ("head" in extra))
    if "fp8_scales" in extra:
        for tensor in tensors(spec, mtp="mtp" in extra):
            unscaled = tensor.role in ("embedding", "head", "router") or tensor.name.endswith(".join.weight")
            if len(tensor.shape) > 1 and not unscaled:
                *experts, out, into = tensor.shape
                total += prod(experts) * -(-out // 128) * -(-into // 128)
    return total


@lru_cache(maxsize=1)
def _entries() -> dict[str, Mapping[str, Any]]:
    """The presets' data by id; read with libyaml where installed, which is ten times faster."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    texts = [path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.yaml"))]
    return {name: entry for text in texts for name, entry in yaml.load(text, Loader=loader).items()}


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    """Every preset's id by each of its names in lower case."""
    names: dict[str, str] = {}
    for key, entry in _entries().items():
        for name in (key, entry.get("hf_id"), *entry.get("aliases", ())):
            if name:
                names.setdefault(name.lower(), key)
    return names


def _from_path(path: Path) -> ModelSpec:
    """A config.json, a folder that holds one (or a checkpoint's manifest), or a YAML file of our own keys."""
    if path.is_dir():
        config, manifest = path / "config.json", path / "manifest.json"
        if config.is_file():
            return _from_keys(_read_json(inside(path, config.name)), str(config), path.resolve().name)
        if manifest.is_file():
            return _from_keys(_read_json(inside(path, manifest.name)).get("model"), str(manifest), None)
        raise UserError("this folder holds no config.json", str(path), "give the folder of a Hugging Face model")
    if path.suffix == ".json":
        name = path.resolve().parent.name if path.name == "config.json" else path.stem
        return _from_keys(_read_json(path), str(path), name)
    return _from_keys(read_yaml(path), str(path), None)


def _from_keys(keys: Any, where: str, name: str | None) -> ModelSpec:
    """The model of plain data: a config.json has `model_type`, our own keys don't."""
    if isinstance(keys, dict) and "model_type" in keys:
        return read_huggingface(keys, where, name)
    if isinstance(keys, dict) and name is not None:
        keys = {"name": name, **keys}
    if isinstance(keys, dict) and "model" in keys:
        raise UserError("this is a run, not a model alone", where, f"give it with --from: --from {where}")
    return ModelSpec.parse(keys, where)


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise UserError("no such file", str(path), f"check the path (you are in {Path.cwd()})") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read JSON: {reason(error)}", str(path), "write the file again") from None
    if not isinstance(content, dict):
        raise UserError("expected a JSON object", str(path), "give a Hugging Face config.json")
    return content


HUB = "https://huggingface.co"
LIMIT = 4 << 20  # bytes; the largest config.json known is a few hundred kB


def fetch_config(repository: str, timeout_s: float = 20.0) -> dict[str, object]:
    """The content of a repository's config.json; raises UserError (no network, no such model, gated)."""
    import urllib.error  # https takes a while to import
    import urllib.request

    name, _, revision = repository.partition("@")
    where = f"hf:{repository}"
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or not re.fullmatch(r"[\w./-]*", revision):
        raise UserError(f"'{repository}' is not a model's name", where, "write hf:org/name, e.g. hf:Qwen/Qwen3-8B")
    url = f"{HUB}/{name}/resolve/{revision or 'main'}/config.json"
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            text = response.read(LIMIT + 1)
        if len(text) > LIMIT:
            raise ValueError(f"it is larger than {LIMIT >> 20} MiB")
        content = parse_json(text)
    except urllib.error.HTTPError as error:
        raise _refused(error.code, where) from None
    except (OSError, ValueError) as error:
        how = "check the network, or download config.json yourself and give its path"
        raise UserError(f"cannot fetch config.json: {getattr(error, 'reason', None) or error}", where, how) from None
    if not isinstance(content, dict):
        raise UserError("its config.json is not a JSON object", where, "give another model")
    return content


def _refused(code: int, where: str) -> UserError:
    """The error for an HTTP code; the Hub returns 401 also for names that don't exist."""
    if code in (401, 403):
        how = "check the name; if the model is gated, download its config.json in a browser and give the path"
        return UserError(f"the Hub denies access to this model (HTTP {code})", where, how)
    if code == 404:
        return UserError("no such model, or it has no config.json (HTTP 404)", where, "check the name")
    return UserError(f"the Hub returned HTTP {code}", where, "try again later, or give a config.json's path")
