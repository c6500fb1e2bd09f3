"""How fast files go to an object store and come back: our client (obstore) beside boto3's and s3fs's, and a local disk.

    python comparisons/store_rates.py [--megabytes 256] [--rounds 3]     a minute or two; the table of docs/storage.md

Everyone moves the same file to the same S3 server (moto's, in a process of its own on this machine) and back, in turns;
wall seconds and the client's CPU seconds, medians. moto is a Python server: it sets the rates, and the CPU seconds tell
the clients apart. Needs boto3 (moto brings it); s3fs is measured where it is installed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from scalewright.machine.processor import read_processor
from scalewright.storage.mirror import fetch_file
from scalewright.storage.objects import open_store

SERVER = """
import sys, time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
Move = tuple[Callable[[Path], object], Callable[[Path], object]]  # there, and back into a file


def ours(url: str) -> Move:
    """A store of ours at a URL."""
    store = open_store(url, create=True)

    def put(file: Path) -> None:
        with open(file, "rb") as opened:
            store.put("ours", opened)

    def get(file: Path) -> None:
        fetch_file(store, next(entry for entry in store.list() if entry.name == "ours"), file)

    return put, get


def by_boto3() -> Move:
    """boto3's managed transfers."""
    client = importlib.import_module("boto3").client("s3")
    return (lambda file: client.upload_file(str(file), "bucket", "boto3"),
            lambda file: client.download_file("bucket", "boto3", str(file)))  # fmt: skip


def by_s3fs() -> Move:
    """s3fs, as fsspec's users have it."""
    system = importlib.import_module("s3fs").S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    return lambda file: system.put_file(str(file), "bucket/s3fs"), lambda file: system.get_file(
        "bucket/s3fs", str(file)
    )


def by_copy(folder: Path) -> Move:
    """The local disk, flushed."""

    def copy(source: Path, target: Path) -> None:
        shutil.copyfile(source, target)
        with open(target, "rb") as opened:
            os.fsync(opened.fileno())

    return lambda file: copy(file, folder / "copied"), lambda file: copy(folder / "copied", file)


def measure(movers: dict[str, Move], file: Path, back: Path, rounds: int) -> dict[str, list[tuple[float, ...]]]:
    """(seconds there, CPU there, seconds back, CPU back) of every round; what came back is compared."""
    results: dict[str, list[tuple[float, ...]]] = {name: [] for name in movers}
    for _ in range(rounds):
        for name, moves in movers.items():
            times: list[float] = []
            for move, path in zip(moves, (file, back), strict=True):
                wall, cpu = time.perf_counter(), time.process_time()
                move(path)
                times += [time.perf_counter() - wall, time.process_time() - cpu]
            results[name].append(tuple(times))
            assert back.read_bytes() == file.read_bytes(), name
            back.unlink()
    return results


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}  # a line a request
    server = subprocess.Popen([sys.executable, "-c", SERVER], text=True, **pipes)
    assert server.stdout is not None
    try:
        endpoint = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        os.environ.update(AWS_ACCESS_KEY_ID="any", AWS_SECRET_ACCESS_KEY="any", AWS_REGION="us-east-1",
                          AWS_DEFAULT_REGION="us-east-1", AWS_ENDPOINT_URL=endpoint)  # fmt: skip
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/bucket", method="PUT"))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            file = folder / "file"
            file.write_bytes(os.urandom(asked.megabytes * 10**6))
            movers = {"ours, s3://": ours("s3://bucket"), "boto3": by_boto3()}
            if importlib.util.find_spec("s3fs") is not None:
                movers["s3fs"] = by_s3fs()
            movers |= {"ours, file://": ours(f"file://{folder}/store"), "copy and fsync": by_copy(folder)}
            results = measure(movers, file, folder / "back", asked.rounds)
    finally:
        server.kill()
        server.wait()
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("obstore", "boto3", "moto"))
    print(f"{asked.megabytes} MB, {asked.rounds} rounds; {versions}; {read_processor().model}\n")
    print("| | put, MB/s | CPU s/GB | fetch, MB/s | CPU s/GB |\n| --- | ---: | ---: | ---: | ---: |")
    for name, times in results.items():
        put, put_cpu, get, get_cpu = (statistics.median(column) for column in zip(*times, strict=True))
        cpu = [1000 * seconds / asked.megabytes for seconds in (put_cpu, get_cpu)]
        print(f"| {name} | {asked.megabytes / put:.0f} | {cpu[0]:.1f} | {asked.megabytes / get:.0f} | {cpu[1]:.1f} |")


if __name__ == "__main__":
    main()
