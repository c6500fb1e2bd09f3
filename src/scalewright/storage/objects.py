"""An object store as four verbs over obstore (Rust's object_store): put, get_range, list, delete.

    put        whole or not at all: a reader sees the old object or the new one, never a part
               (large ones in parts of 16 MiB, eight at once; parts of an upload that was killed are invisible)
    get_range  some bytes of an object             list   names and sizes below a prefix             delete

A request that meets a timeout, a dropped connection, a 5xx or a throttle (503 SlowDown, 429) is tried again after
growing pauses, for RETRY_S in all. Credentials, region and endpoint are the library's to find (AWS_*, GOOGLE_*,
AZURE_*; the machine's role); with boto3 installed also ~/.aws (profiles, SSO). None is kept, shown or written.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from scalewright.spec.common.urls import Url, parse_url
from scalewright.spec.errors import RunError, UserError, install

T = TypeVar("T")
PART_BYTES, AT_ONCE = 16 << 20, 8  # a multipart upload's; 10,000 parts are the most: 160 GB an object
CONNECT_S, REQUEST_S, RETRY_S = 5.0, 60.0, 120.0
TRIES = 4  # of what fails beyond the requests' own retries, within RETRY_S
NAMES = 1_000_000  # of one listing; a run of 512 ranks has some 1,500 a step


class StoreError(RunError):
    """A store that can't be reached, or doesn't answer as it should: the same may succeed later."""


class AbsentError(UserError):
    """No such object."""


@dataclass(frozen=True)
class Entry:
    """An object in a listing; `tag` changes with its content."""

    name: str  # below the store's place
    bytes: int
    tag: str
    saved: str = ""  # when it was put, local time


class Store:
    """The objects below a place; every method raises UserError or StoreError."""

    def __init__(self, url: Url, objects: Any, library: Any) -> None:
        self.url, self._objects, self._library = url, objects, library

    def put(self, name: str, content: bytes | BinaryIO) -> None:
        """Writes an object, whole or not at all."""

        def work() -> None:
            if not isinstance(content, bytes):
                content.seek(0)
            self._library.put(self._objects, name, content, chunk_size=PART_BYTES, max_concurrency=AT_ONCE)

        self._tried("write", name, work)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """These bytes of an object; all of them, or an error."""

        def work() -> bytes:
            content = bytes(self._library.get_range(self._objects, name, start=start, length=length))
            if len(content) != length:
                raise UserError(f"there are {len(content):,} bytes of {length:,}", str(self.url / name), "put it again")
            return content

        return self._tried("read", name, work) if length else b""

    def read(self, name: str, limit: int) -> bytes:
        """A whole small object; AbsentError where there is none, UserError beyond `limit` bytes."""

        def work() -> bytes:
            answer = self._library.get(self._objects, name)
            if (size := int(answer.meta["size"])) > limit:
                raise UserError(f"it has {size:,} bytes", str(self.url / name), f"at most {limit:,} are expected here")
            return bytes(answer.bytes())

        return self._tried("read", name, work)

    def list(self, prefix: str = "", *, deep: bool = True) -> list[Entry]:
        """What lies below a folder, sorted by name; one that isn't there is empty. `deep` false: not what its folders
        hold."""
        at = prefix or None

        def chunks() -> Iterator[Any]:
            if deep:
                yield from self._library.list(self._objects, at, chunk_size=1000)
            else:
                yield self._library.list_with_delimiter(self._objects, at)["objects"]

        def work() -> list[Entry]:
            entries: list[Entry] = []
            for chunk in chunks():
                entries += map(_entry, chunk)
                if len(entries) > NAMES:
                    raise UserError(f"more than {NAMES:,} objects", str(self.url / prefix), "name a place further down")
            return sorted(entries, key=lambda entry: entry.name)

        return self._tried("list", prefix, work)

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects; one that isn't there is no error."""
        for name in names:
            with suppress(AbsentError):
                self._tried("delete", name, partial(self._library.delete, self._objects, name))

    def _tried(self, verb: str, name: str, work: Callable[[], T]) -> T:
        """What the work returns. Tried again where it fails beyond the library's own retries, as when an answer breaks
        off; its errors are one sentence with the way out."""
        began = time.monotonic()
        for attempt in range(TRIES):
            try:
                return work()
            except (UserError, RunError):
                raise
            except Exception as error:  # of any class of theirs
                clear = explained(error, verb, self.url, name)
                lasts = attempt == TRIES - 1 or time.monotonic() - began > RETRY_S
                if isinstance(clear, UserError) or lasts:
                    raise clear from None
            time.sleep(0.1 * 2**attempt)
        raise AssertionError("the last try returns or raises")


def _entry(meta: Mapping[str, Any]) -> Entry:
    saved = meta["last_modified"].astimezone().replace(tzinfo=None).isoformat(" ", "seconds")
    return Entry(str(meta["path"]), int(meta["size"]), str(meta["e_tag"] or saved), saved)


def open_store(url: str | Path | Url, *, create: bool = False) -> Store:
    """The store of a URL; nothing is asked of it yet. `create`: a folder of `file://` is made. Raises UserError."""
    place = url if isinstance(url, Url) else parse_url(url)
    try:
        library, stores = importlib.import_module("obstore"), importlib.import_module("obstore.store")
    except ModuleNotFoundError:
        raise UserError("stores by URL need obstore", str(place), install("store")) from None
    try:
        if place.scheme == "file":
            folder = Path(f"/{place.path}")
            if not create and not folder.is_dir():
                raise AbsentError("no such folder", str(place), "correct the URL")
            return Store(place, stores.LocalStore(folder, mkdir=create, automatic_cleanup=True), library)
        options: dict[str, Any] = {
            "client_options": {"allow_http": True, "connect_timeout": _s(CONNECT_S), "timeout": _s(REQUEST_S)},
            "retry_config": {"max_retries": 10, "retry_timeout": _s(RETRY_S)},
        }  # allow_http: for an endpoint that the user names so (AWS_ENDPOINT_URL=http://...)
        if place.scheme == "s3" and (provider := _from_boto3()) is not None:
            options["credential_provider"] = provider
        kinds = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}
        return Store(place, kinds[place.scheme](place.bucket, prefix=place.path or None, **options), library)
    except UserError:
        raise
    except Exception as error:
        raise explained(error, "open", place, "") from None


def _s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def _from_boto3() -> Callable[[], dict[str, Any]] | None:
    """Credentials of ~/.aws (profiles, SSO) by boto3, where it is installed and has some; the library has no part that
    reads those files. Asked again before they end."""
    try:
        session: Any = importlib.import_module("boto3").Session()
        credentials = session.get_credentials()
    except Exception:  # it isn't there, or a file of the user's is broken: the library's own chain goes on
        return None
    if credentials is None or credentials.method in ("env", "iam-role", "container-role"):
        return None

    def provide() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        until = datetime.now(timezone.utc) + timedelta(minutes=10)
        keys = {"access_key_id": frozen.access_key, "secret_access_key": frozen.secret_key}
        return {**keys, "token": frozen.token, "expires_at": until}

    return provide


CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE with boto3 installed",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or run `az login`",
    "file": "",
}
# What the library's text holds (first match), what that is, and the way out. A status is no time: 503.2ms.
CAUSES: tuple[tuple[str, str, str], ...] = (
    (r"NoSuchBucket|bucket does not exist|ContainerNotFound", "there is no such bucket", "make it, or correct the URL"),
    (r"169\.254\.|metadata\.google|[Cc]redential|MissingAccount|[Aa]ccount must be|UnauthenticatedError|InvalidAccess|"
     r"SignatureDoesNotMatch|\b401\b(?!\.)", "there are no valid credentials for it", ""),
    (r"PermanentRedirect|AuthorizationHeaderMalformed|configured region|IllegalLocation",
     "the bucket is in another region", "set AWS_REGION to the bucket's"),
    (r"AccessDenied|PermissionDenied|\b403\b(?!\.)", "permission was denied", "ask for it, or use other keys"),
    (r"No space left", "the disk is full", "free some space"),
    (r"Permission denied", "permission was denied", "change the folder's permissions"),
)  # fmt: skip
PASSING: tuple[tuple[str, str], ...] = (
    (r"SlowDown|\b503\b(?!\.)|\b429\b(?!\.)|TooManyRequests|[Tt]hrottl", "it asks to slow down"),
    (r"(?i)timed? ?out|deadline", "it doesn't answer in time"),
    (r"dns error|resolve|Connect|connection|tcp|error sending request", "it can't be reached (AWS_ENDPOINT_URL?)"),
    (r"\b5\d\d\b(?!\.)", "it has an error of its own"),
)


def explained(error: Exception, verb: str, url: Url, name: str) -> UserError | StoreError:
    """An error of the library's as one of ours: one sentence, and what to do."""
    kind, place = type(error).__name__, str(url / name)
    text = f"{kind} {error}".replace("retry_timeout", "")  # which stands in all of them
    for part in sorted({url.bucket, *url.path.split("/"), *name.split("/")}, key=len, reverse=True):
        text = text.replace(part, "") if len(part) > 2 else text  # a name may say anything
    for pattern, what, how in CAUSES:
        if re.search(pattern, text):
            return UserError(f"cannot {verb} there: {what}", place, how or CREDENTIALS[url.scheme])
    if isinstance(error, FileNotFoundError) and verb == "write":
        return UserError("cannot write there: there is no such bucket", place, "make it, or correct the URL")
    if isinstance(error, FileNotFoundError):
        return AbsentError("there is no such object", place, "correct the URL")
    first = re.sub(r"\?\S+", "", str(error).splitlines()[0] if str(error) else kind)  # a query may hold a key
    what = next((what for pattern, what in PASSING if re.search(pattern, text)), first[:200])
    return StoreError(f"cannot {verb} {place}: {what}")
