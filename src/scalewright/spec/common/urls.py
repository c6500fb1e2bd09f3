"""The URLs of object stores, wherever a command or a run file takes a folder.

    s3://bucket/a/b     gs://bucket/a/b     az://container/a/b     file:///a/b

A command's argument may have been a `Path` on its way here, which keeps one slash of two: `s3:/bucket/a/b` is the same
URL. `..`, empty names, a query and a user's name in the URL are refused: credentials come from the environment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePath

from scalewright.spec.errors import UserError

SCHEMES = ("s3", "gs", "az", "file")
_URL = re.compile(r"(s3|gs|az|file):/+(.*)", re.DOTALL)
_PLAIN = re.compile(r"[^\x00-\x1f\x7f\\?#@%*]*")


@dataclass(frozen=True)
class Url:
    """A place in a store: a bucket (of `file` the root of the disk), and names below it."""

    scheme: str
    bucket: str
    path: str  # without slashes at its ends

    def __str__(self) -> str:
        return "/".join(part for part in (f"{self.scheme}://{self.bucket}", self.path) if part)

    def __truediv__(self, name: str) -> Url:
        return Url(self.scheme, self.bucket, f"{self.path}/{name}".strip("/"))

    @property
    def name(self) -> str:
        """The last name in it."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Url:
        """The place above."""
        return Url(self.scheme, self.bucket, self.path.rpartition("/")[0])


def is_url(text: str | PurePath | None) -> bool:
    """Whether a text, or a path that one was made to, is the URL of a store."""
    return text is not None and _URL.fullmatch(_text(text)) is not None


def parse_url(text: str | PurePath, where: str = "") -> Url:
    """A URL's parts; raises UserError for one that can't be."""
    if (match := _URL.fullmatch(_text(text))) is None:
        raise UserError(f"'{text}' is no URL of a store", where, "write s3://, gs://, az:// or file:// and a path")
    scheme, rest = match[1], match[2].strip("/")
    parts = rest.split("/") if rest else []
    if not _PLAIN.fullmatch(rest) or any(part in ("", ".", "..") for part in parts):
        raise UserError(f"'{text}' isn't plain", where, "write names without .., //, ?, #, @, % and \\ in the URL")
    if not parts:
        raise UserError(f"'{text}' names no bucket", where, f"write {scheme}://BUCKET/FOLDER")
    return Url(scheme, "", rest) if scheme == "file" else Url(scheme, parts[0], "/".join(parts[1:]))


def _text(text: str | PurePath) -> str:
    return text.as_posix() if isinstance(text, PurePath) else text


def local_or_url(text: str | Path) -> str:
    """A path as it was typed: a URL has its two slashes again."""
    return str(parse_url(text)) if is_url(text) else str(text)
