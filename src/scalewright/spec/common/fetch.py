"""One small file from the Hugging Face Hub: a model's config.json, over https, by the standard library.

hf:org/name            the main branch
hf:org/name@revision   a branch, tag or commit
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request

from scalewright.spec.common.untrusted import parse_json
from scalewright.spec.errors import UserError

HUB = "https://huggingface.co"
LIMIT = 4 << 20  # bytes; the largest config.json known is a few hundred kB


def fetch_config(repository: str, timeout_s: float = 20.0) -> dict[str, object]:
    """The content of a repository's config.json; raises UserError (no network, no such model, gated)."""
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
        raise UserError(
            f"cannot fetch config.json: {getattr(error, 'reason', None) or error}",
            where,
            "check the network, or download config.json yourself and give its path",
        ) from None
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
