"""Tokens in a store: fetched into the node's cache to be read, and put there by `prepare --out URL`.

    data: s3://bucket/tokens ──list──► this split's files ──► ~/.cache/scalewright/stores/tokens-…  ──► as any folder
                                                              new ones: every byte against metadata.json

The first rank of a node to come fetches, the others wait. `prepare` works in the cache, so that a stopped one goes on;
metadata.json is put last: without it the place isn't finished.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from scalewright.data.check import check_file
from scalewright.data.metadata import METADATA, SPLITS, read_split
from scalewright.data.shards import is_shards, split_files
from scalewright.spec.common.heartbeat import Heartbeat
from scalewright.spec.common.untrusted import JSON_BYTES
from scalewright.spec.common.urls import Url, parse_url
from scalewright.spec.errors import UserError
from scalewright.storage.mirror import drop, fetch, mirror_folder, shown
from scalewright.storage.objects import AbsentError, Entry, open_store
from scalewright.storage.publish import publish

OF_SPLIT = {"train": ("train",), "valid": ("valid", "val", "validation")}
WORK = "pieces"  # what only a `prepare` that goes on needs


@lru_cache(maxsize=64)  # the parts of a mixture; once a process
def fetch_tokens(text: str, split: str) -> Path:
    """The copy on this node of a folder of tokens, or of a token file, whose name may lack its suffix. Raises UserError
    where there is none, or a file of it is damaged; StoreError where the store fails."""
    url = parse_url(text)
    path = folder = mirror_folder(url)
    unwanted = {WORK, *(part for name, parts in OF_SPLIT.items() if name != split for part in parts)}
    entries: list[Entry] = []
    with suppress(AbsentError):  # a file:// that is one file
        store = open_store(url)
        entries = [e for e in store.list() if e.name.split("/")[0] not in unwanted or e.name.endswith(METADATA)]
    if not entries and url.path:
        store, folder = open_store(url.parent), mirror_folder(url.parent)
        entries = [e for e in store.list(deep=False) if e.name == url.name or e.name.startswith(f"{url.name}.")]
        path = folder / url.name
    if not entries:
        raise UserError("there are no tokens", str(url), "put some there with `scalewright prepare INPUT --out URL`")
    with Heartbeat(f"fetching {url}") as heart:
        new = {folder / name for name in fetch(store, entries, folder, shown(heart, str(url)))}
        heart.now(f"comparing {url} with its checksums")
        for place in (path, *(path / name for name in SPLITS)):
            if any(file.parent == place for file in new) and is_shards(place):
                _check(place, new, url)
    return path


def _check(place: Path, new: set[Path], url: Url) -> None:
    """Compares the files of one split that were just fetched with its metadata; a damaged copy doesn't stay."""
    try:
        for file in split_files(place, read_split(place)):
            for _ in check_file(file) if file.path in new else ():
                pass
    except UserError as error:
        drop(mirror_folder(url), lambda name: False)
        how = "fetch it again; if that doesn't help, prepare the data there again"
        raise UserError(f"the copy of {url} is damaged: {error.what}", error.where, how) from None


def work_folder(url: Url) -> Path:
    """Where `prepare` works on tokens for a store."""
    folder = mirror_folder(url)
    return folder.with_name(f"{folder.name}.work")


def put_tokens(folder: Path, url: Url, overwrite: bool) -> None:
    """Puts a prepared folder into a store; what is there of the same content stays. Raises UserError where there are
    other tokens, unless `overwrite`."""
    store, content = open_store(url, create=True), (folder / METADATA).read_bytes()
    try:
        if store.read(METADATA, JSON_BYTES) == content:
            return
        if not overwrite:
            raise UserError("there are other tokens already", str(url), "give a new place, or add --overwrite")
        store.delete([METADATA])
        store.delete([entry.name for entry in store.list()])
    except AbsentError:
        pass
    with Heartbeat(f"putting the tokens into {url}") as heart:
        publish(folder, store, METADATA, shown(heart, str(url), "putting"), leave_out=(WORK,))
