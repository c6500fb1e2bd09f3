"""Stores over a real S3 server: what goes in comes out, through every kind of trouble, or a sentence says why not."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from object_store import BUCKET, S3, proxied, s3, server  # noqa: F401 - fixtures
from scalewright.spec.errors import UserError
from scalewright.storage import objects
from scalewright.storage.mirror import fetch
from scalewright.storage.objects import AbsentError, StoreError, open_store

URL = f"s3://{BUCKET}/a/b"
MORE = (429, 500, "reset", "lost")


def test_what_is_put_is_there(s3):  # noqa: F811
    store = open_store(URL)
    store.put("one", b"1")
    store.put("deep/er", io.BytesIO(b"123456"))
    assert [(entry.name, entry.bytes) for entry in store.list()] == [("deep/er", 6), ("one", 1)]
    assert [entry.name for entry in store.list(deep=False)] == ["one"]
    assert [entry.name for entry in open_store(f"s3://{BUCKET}/a").list()] == ["b/deep/er", "b/one"]
    assert store.list("elsewhere") == []
    assert store.get_range("deep/er", 2, 3) == b"345"
    assert store.read("one", 10) == b"1"
    store.delete(["one", "never there"])
    assert [entry.name for entry in store.list()] == ["deep/er"]


def test_a_file_store_is_the_same(tmp_path):
    store = open_store(f"file://{tmp_path}/there", create=True)
    store.put("deep/er", b"123456")
    assert [(entry.name, entry.bytes) for entry in store.list()] == [("deep/er", 6)]
    assert store.get_range("deep/er", 2, 3) == b"345"
    store.delete(["deep/er", "never there"])
    assert store.list() == []
    with pytest.raises(UserError, match="no such folder"):
        open_store(f"file://{tmp_path}/nowhere")


def test_large_objects_go_in_parts(s3, monkeypatch):  # noqa: F811
    content = os.urandom(12 << 20)
    monkeypatch.setattr(objects, "PART_BYTES", 5 << 20)  # S3's least
    with proxied(s3) as proxy:
        open_store(URL).put("large", io.BytesIO(content))
        assert sum(method == "PUT" and "partNumber" in path for method, path in proxy.seen) == 3
    assert open_store(URL).get_range("large", 0, len(content)) == content


@pytest.mark.parametrize("fault", [503, "cut", *(pytest.param(kind, marks=pytest.mark.slow) for kind in MORE)])
def test_trouble_that_passes_is_survived(fault, s3, monkeypatch, tmp_path):  # noqa: F811
    """Every third request meets it, in both directions; what arrives is whole."""
    content = os.urandom(11 << 20)
    monkeypatch.setattr(objects, "PART_BYTES", 5 << 20)
    with proxied(s3, lambda method, path, number: fault if number % 3 == 1 else None) as proxy:
        store = open_store(URL)
        store.put("large", io.BytesIO(content))
        store.put("small", b"small")
        entries = store.list()
        fetch(store, entries, tmp_path / "mirror")
        assert len(proxy.seen) > 8
    assert (tmp_path / "mirror" / "large").read_bytes() == content
    assert (tmp_path / "mirror" / "small").read_bytes() == b"small"


def test_an_upload_that_is_cut_off_leaves_the_old_object(s3, monkeypatch):  # noqa: F811
    store = open_store(URL)
    store.put("name", b"old")
    monkeypatch.setattr(objects, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(objects, "RETRY_S", 0.3)
    breaks = proxied(s3, lambda method, path, number: "reset" if "partNumber=2" in path else None)
    with breaks, pytest.raises(StoreError, match=r"cannot write s3://bucket/a/b/name"):
        open_store(URL).put("name", io.BytesIO(os.urandom(12 << 20)))
    assert store.read("name", 10) == b"old"


@pytest.mark.parametrize(
    ("fault", "says"),
    [(503, "it asks to slow down"), ("reset", "it can't be reached"), (1.5, "it doesn't answer in time")],
)
def test_trouble_that_stays_is_named(fault, says, s3, monkeypatch):  # noqa: F811
    monkeypatch.setattr(objects, "RETRY_S", 0.3)
    monkeypatch.setattr(objects, "REQUEST_S", 0.5)
    with proxied(s3, lambda method, path, number: fault), pytest.raises(StoreError, match=says):
        open_store(URL).put("name", b"content")


def test_mistakes_are_named(s3, monkeypatch):  # noqa: F811
    with pytest.raises(UserError, match=r"there is no such bucket .*make it"):
        open_store("s3://another/a").put("name", b"content")
    with pytest.raises(AbsentError, match="no such object"):
        open_store(URL).read("nothing", 10)
    open_store(URL).put("long", b"12345")
    with pytest.raises(UserError, match="at most 3 are expected"):
        open_store(URL).read("long", 3)
    monkeypatch.setattr(objects, "RETRY_S", 0.3)
    with proxied(s3, lambda method, path, number: 403), pytest.raises(UserError, match="permission was denied"):
        open_store(URL).put("name", b"content")
    with proxied(s3, lambda method, path, number: 301), pytest.raises(UserError, match=r"another region.*AWS_REGION"):
        open_store(URL).put("name", b"content")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match="it can't be reached"):
        open_store(URL).list()
    with pytest.raises(StoreError, match="it can't be reached"):  # whatever a name says
        open_store(f"s3://{BUCKET}/credentials/AccessDenied-403").list()


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_without_credentials(scheme, s3, monkeypatch):  # noqa: F811
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    # the machine's own role is asked for at an address where, here, nobody is
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9/169.254.169.254")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setattr(objects, "RETRY_S", 0.3)
    with pytest.raises(UserError, match=r"no valid credentials for it .*: set "):
        open_store(f"{scheme}://{BUCKET}/a").list()


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(UserError, match=r"stores by URL need obstore .*pip install -e '\.\[store\]'"):
        open_store(URL)


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/out", "a\\b", ".hidden", "a/.hidden/b"])
def test_a_store_s_names_lead_nowhere_else(name, tmp_path):
    """A list of names is another's: none writes beside the folder that it is fetched into."""

    class Listed:
        url = "s3://bucket/a"

        def get_range(self, name: str, start: int, length: int) -> bytes:
            return b"x" * length

    folder = tmp_path / "inner" / "mirror"
    with pytest.raises(UserError):
        fetch(Listed(), [objects.Entry(name, 1, "tag")], folder)  # type: ignore[arg-type]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] in ([], [folder / ".mirror.json"])


def test_a_mirror_follows_its_store(s3, tmp_path):  # noqa: F811
    store, folder = open_store(URL), tmp_path / "mirror"
    store.put("one", b"1")
    store.put("two", b"22")
    assert fetch(store, store.list(), folder) == ["one", "two"]
    assert fetch(store, store.list(), folder) == []
    store.put("one", b"another")
    (folder / "two").unlink()
    assert fetch(store, store.list(), folder) == ["one", "two"]
    assert (folder / "one").read_bytes() == b"another"


def test_more_than_the_disk_holds(tmp_path):
    store = open_store(f"file://{tmp_path}/there", create=True)
    with pytest.raises(UserError, match="SCALEWRIGHT_CACHE"):
        fetch(store, [objects.Entry("huge", 1 << 60, "tag")], tmp_path / "mirror")
    assert not Path(tmp_path / "mirror" / "huge").exists()
