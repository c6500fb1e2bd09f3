"""The URLs of stores: what counts as one, what it is made of, and what no URL may hold."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from scalewright.spec.common.urls import Url, is_url, local_or_url, parse_url
from scalewright.spec.errors import UserError


def test_parts():
    assert parse_url("s3://bucket/a/b/") == Url("s3", "bucket", "a/b")
    assert parse_url("gs://bucket") == Url("gs", "bucket", "")
    assert parse_url("file:///tmp/a") == Url("file", "", "tmp/a")
    url = parse_url("s3://bucket/a")
    assert (str(url / "b"), str(url.parent), url.name) == ("s3://bucket/a/b", "s3://bucket", "a")
    assert str(parse_url("file:///tmp/a")) == "file:///tmp/a"


def test_a_path_that_was_a_url_still_is_one():
    """A command's argument becomes a Path, which keeps one slash of two."""
    for text in ("s3://bucket/a", "az://box/a/b", "file:///tmp/a"):
        assert str(parse_url(PurePosixPath(text))) == text
        assert local_or_url(Path(text)) == text
    assert local_or_url(Path("runs/run")) == "runs/run"


@pytest.mark.parametrize("text", ["runs/run", "/s3/a", "hf:org/name", "s3", "http://host/a", "./s3:/a", ""])
def test_what_is_no_url(text):
    assert not is_url(text)


@pytest.mark.parametrize(
    "text", ["s3://", "s3://b/../c", "s3://b//c", "s3://b/a?x=1", "s3://key:secret@b/a", "s3://b/a\nb", "file:///", "s3://b/%2e"]
)  # fmt: skip
def test_what_no_url_may_hold(text):
    with pytest.raises(UserError, match=r"URL|bucket"):
        parse_url(text, "checkpoint.store")
