"""What is read from logs: every version's form of a line, damage, lines of other programs around."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import pytest
from tests.diagnose.nccl.write import answer, run, says, started

from scalewright.diagnose.diagnose import diagnose, inputs
from scalewright.diagnose.nccl import patterns
from scalewright.diagnose.nccl.patterns import Ends, Via, ends, repeated, via
from scalewright.diagnose.nccl.problems import peer, problem
from scalewright.spec.errors import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Channel 00 : 3[8a000] -> 0[1a000] via P2P/IPC", Ends(3, 0, "", "P2P/IPC")),
        ("Ring 00 : 1[1000] -> 0[2000] via direct shared memory", Ends(1, 0, "", "direct shared memory")),
        ("Channel 02/0 : 9[1] -> 8[0] via P2P/direct pointer/read", Ends(9, 8, "", "P2P/direct pointer/read")),
        ("Channel 03/1 : 7[cb000] -> 8[7000] [send] via NET/IB/3", Ends(7, 8, "send", "NET/IB/3")),
        (
            "Channel 00/0 : 12[d6] -> 0[d6] [receive] via NET/AWS Libfabric/2/GDRDMA comm 0x9b nRanks 16",
            Ends(12, 0, "receive", "NET/AWS Libfabric/2/GDRDMA"),
        ),
        ("CollNet 00/0 : 4 [send] via COLLNET/SHARP/0/GDRDMA", Ends(4, -1, "send", "COLLNET/SHARP/0/GDRDMA")),
    ],
)
def test_a_link_in_every_versions_form(text: str, expected: Ends) -> None:
    assert ends(repeated(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NET/IB/1(3)/GDRDMA/Shared", Via("NET", "IB", 1, True)),
        ("NET/IBext_v8/0", Via("NET", "IB", 0, False)),
        ("NET/Libfabric/5/GDRDMA(PCI)", Via("NET", "OFI", 5, True)),
        ("SHM/direct/direct", Via("SHM", "SHM/direct/direct")),
        ("direct shared memory", Via("SHM", "direct shared memory")),
    ],
)
def test_what_a_link_goes_over(text: str, expected: Via) -> None:
    assert via(text) == expected


@pytest.mark.parametrize(
    ("text", "kind", "field", "value"),
    [
        ("NCCL version 2.7.8+cuda10.2", "version", "version", "2.7.8+cuda10.2"),
        ("RCCL version : 2.26.6-HEAD:f22", "version", "version", "2.26.6-HEAD"),
        ("NCCL_IB_HCA set to mlx5", "environment", "value", "mlx5"),
        ("NCCL_ALGO set by environment to Ring.", "environment", "name", "NCCL_ALGO"),
        ("Using network AWS Libfabric", "network", "network", "AWS Libfabric"),
        ("Bootstrap: Using ib0:10.0.0.1<0>", "bootstrap", "interfaces", "ib0:10.0.0.1<0>"),
        ("12 coll channels, 16 p2p channels, 4 p2p channels per peer", "channels", "channels", "12"),
        ("2 coll channels, 0 collnet channels, 4 nvls channels, 8 p2p channels", "channels", "nvls", "4"),
        (
            "comm:0x2b, nRanks:2, nNodes:1, coll channels:3 collnet channels:2, nvls channels:0",
            "channels",
            "channels",
            "3",
        ),
        ("Connected all rings, use ring PXN 0 GDR 1", "rings_connected", "gdr", "1"),
        ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "gdr_of_adapter", "state", "Disabled"),
        ("NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA 0 'mlx5_0", "gdr_of_adapter", "how", "DMABUF"),
        ("NET/IB : GPU Direct RDMA Disabled for GPU 3 / HCA 0 (distance 4 > 3)", "gdr_of_gpu", "distance", "4"),
        ("NET/OFI Selected Provider is efa (found 4 nics)", "provider", "provider", "efa"),
        ("NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)", "provider", "adapters", "16"),
        ("Pattern 4, crossNic 0, nChannels 2, bw 12.0/12.0, type PHB/SYS, sameChannels 1", "graph", "inside", "PHB"),
        ("AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}", "tuning", "algorithm", "RING"),
        ("8388608 Bytes -> Algo 1 proto 2 time 143.2", "tuning", "protocol", "2"),
    ],
)
def test_forms(text: str, kind: str, field: str, value: str) -> None:
    matched = patterns.match(text)
    assert matched is not None
    assert (matched[0], matched[1][field]) == (kind, value)


def test_forms_are_silent_about_other_lines() -> None:
    assert patterns.match("Connected to proxy localRank 1 -> connection 0x7f") is None
    assert patterns.match("") is None


def test_a_run_with_everything(tmp_path: Path) -> None:
    nccl = answer(tmp_path, run())["nccl"]
    assert (nccl["version"], nccl["ranks"], nccl["nodes"], nccl["channels"]) == ("2.21.5+cuda12.4", 4, 2, 8)
    assert (nccl["transports"]["net"], nccl["transports"]["intra"], nccl["gdr"]) == ("IB", "P2P/CUMEM/read", True)
    assert nccl["transports"]["between"] == {"NET/IB/GDRDMA": 8}
    [group] = nccl["communicators"]
    assert (group["id"], group["hosts"], group["ranks_ready"], group["nvls"]) == ("0xfeed01", ["a", "b"], 4, False)
    assert group["members"][3] == {"rank": 3, "host": "b", "cuda_device": 1, "nvml_device": 1, "bus_id": "2b000"}


def test_prefixes_colours_and_line_ends_change_nothing(tmp_path: Path) -> None:
    plain = answer(tmp_path, run())["nccl"]
    srun = [f"{number % 4}: {line}" for number, line in enumerate(run())]
    mpi = [f"[1,{number}]<stdout>:{line}" for number, line in enumerate(run())]
    coloured = [f"\x1b[32m[rank0]:\x1b[0m {line}\x1b[0m" for line in run()]
    mixed = [text for line in run() for text in ("iteration 3/9 | lm loss: 2.5 |", line, "")]
    for lines in (srun, mpi, coloured, mixed):
        assert answer(tmp_path, lines)["nccl"] == plain
    assert answer(tmp_path, run(), end="\r\n")["nccl"] == plain


def test_a_file_a_rank_is_one_run(tmp_path: Path) -> None:
    for number, text in enumerate(run()):
        with (tmp_path / f"nccl.{text.split(':')[0]}.{number % 1}.log").open("a") as file:
            file.write(text + "\n")
    assert diagnose([tmp_path])["nccl"]["ranks"] == 4


def test_old_lines_without_an_id_or_a_start(tmp_path: Path) -> None:
    lines = []
    for host in "ab":  # two groups of two, on a host each, interleaved
        for rank in range(2):
            lines.append(says(host, rank, f"Channel 00 : {rank}[1] -> {1 - rank}[2] via P2P/IPC"))
            lines.append(says(host, rank, "4 coll channels, 4 p2p channels, 1 p2p channels per peer"))
    for rank in range(2):
        for host in "ab":
            lines.append(
                says(
                    host, rank, f"comm 0x{rank}{ord(host)} rank {rank} nranks 2 cudaDev {rank} busId 1a - Init COMPLETE"
                )
            )
    groups = answer(tmp_path, lines)["nccl"]["communicators"]
    assert [group["hosts"] for group in groups] == [["a"], ["b"]]
    assert [group["links"] for group in groups] == [{"P2P/IPC": 2}] * 2
    assert [group["channels"] for group in groups] == [4, 4]


def test_several_communicators_by_their_ids(tmp_path: Path) -> None:
    lines = [*run(), started("a", 0, 0, 2, "0xbeef"), started("b", 0, 1, 2, "0xbeef")]
    nccl = answer(tmp_path, lines)["nccl"]
    assert [(group["id"], group["ranks"]) for group in nccl["communicators"]] == [("0xfeed01", 4), ("0xbeef", 2)]
    assert nccl["ranks"] == 4


def test_an_excerpt_says_what_is_missing(tmp_path: Path) -> None:
    result = answer(tmp_path, [says("a", 0, "NCCL version 2.26.2+cuda12.2"), started("a", 0, 0, 64)])
    assert (result["nccl"]["ranks"], result["nccl"]["nodes"]) == (64, None)
    assert "1 of 64 ranks print their place in this log" in result["warnings"]


def test_ranks_that_never_get_ready_are_noted(tmp_path: Path) -> None:
    lines = [line for line in run() if not (line.startswith("b:") and "COMPLETE" in line)]
    assert (
        "2 ranks of communicator 0xfeed01 began and didn't get ready in this log" in answer(tmp_path, lines)["warnings"]
    )


def test_lines_that_ran_together_are_left_out_and_counted(tmp_path: Path) -> None:
    result = answer(tmp_path, [*run(), says("a", 0, "Using network Soc") + says("b", 1, "Using network IB")])
    assert result["nccl"]["transports"]["net"] == "IB"
    assert any("ran together" in note for note in result["warnings"])


def test_a_file_that_ends_within_a_line(tmp_path: Path) -> None:
    whole = "\n".join(run()).encode()
    for cut in range(0, len(whole), 211):
        (tmp_path / "cut.log").write_bytes(whole[:cut])
        if b" NCCL INFO " in whole[:cut]:
            assert diagnose([tmp_path / "cut.log"])["kind"] == "nccl"


def test_gzipped(tmp_path: Path) -> None:
    (tmp_path / "run.log.gz").write_bytes(gzip.compress("\n".join(run()).encode()))
    assert diagnose([tmp_path / "run.log.gz"])["nccl"]["ranks"] == 4


@pytest.mark.parametrize("content", [b"", b"\0\1\2 NCCL INFO x\n", b"\xff\xfe" * 99])
def test_other_files_are_refused_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(UserError, match="can't be read"):
        diagnose([tmp_path / "other"])


@pytest.mark.parametrize(
    "line",
    [
        says("a", 0, "Trees " + "[1] 1/2/3->" * 90_000),
        says("a", 0, "Channel 00/9999999999999999999999 : " + "1 " * 90_000 + "x"),
        says("a", 0, "comm 0x1 rank 99999999999999999999 nranks 99999999999999999999 busId"),
        says("a", 0, f"Channel 00/0 : {'9' * 5000}[0] -> 1[1] via " + "NET/" * 9000),
        "x" * 300_000 + " NCCL INFO Using network IB",
        "a:" * 100_000 + "1:2 [0] NCCL INFO Using network IB",
        says("a", 0, "NET/OFI Selected Provider is " + "efa;" * 50_000),
        says("a", 0, "Bootstrap : Using " + "a:" * 4000),
        says("a", 0, "comm 0x1 rank 0 nranks 4 " + "a" * 8000),
        says("a", 0, "Pattern 4, " + "nChannels 1, " * 20_000),
        says("\udce9".encode("utf-8", "surrogateescape").decode("latin-1"), 0, "\x00\x07 set to \x9b31m"),
    ],
)
def test_hostile_lines_neither_crash_nor_hang(tmp_path: Path, line: str) -> None:
    begun = time.process_time()
    assert answer(tmp_path, [*run(), *[line] * 20, "NCCL version " + "9" * 9999])["nccl"]["ranks"] == 4
    assert time.process_time() - begun < 2  # seconds: 0.1 for a line of 8 KiB would be ten minutes for 50 MB


def test_a_log_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("[rank0]: hello\n" * 9000 + "\n".join(run()))
    assert inputs([tmp_path / "out"])[0] == "nccl"


def test_an_exceptions_version_and_a_shells_variables(tmp_path: Path) -> None:
    lines = [
        "+ export NCCL_IB_DISABLE=1",
        "RuntimeError: NCCL error in: x.cpp:825, unhandled system error, NCCL version 21.0.3",
        says("a", 0, "Connect to 10.9.8.7<4455> failed : Connection refused", "WARN"),
    ]
    nccl = answer(tmp_path, lines)["nccl"]
    assert (nccl["version"], nccl["environment"]) == ("2.10.3", {"NCCL_IB_DISABLE": "1"})
    assert nccl["problems"] == ["unhandled system error", "connection refused"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NET/Plugin : No plugin found (libnccl-net.so), using internal implementation", "no NET plugin"),
        ("NET/Plugin: Could not find: librccl-net.so. ", "libnccl-net.so not found"),
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000", "two ranks on one GPU"),
        ("Cuda failure 'out of memory'", "out of GPU memory"),
        ("Cuda failure 700 'an illegal memory access was encountered'", "CUDA failure"),
        ("Error: failed to extend /dev/shm/a, error: No space left on device", "shared memory too small"),
        ("NET/IB : Got completion from peer 10.0.0.1<578> with error 12", "InfiniBand transport error"),
        ("Net : Call to recv from 10.0.0.2<5423> failed : Connection reset by peer", "connection lost"),
        ("TUNER/Plugin: Could not find: libnccl-tuner.so", None),
    ],
)
def test_problems(text: str, name: str | None) -> None:
    row = problem(text)
    assert (row.name if row else None) == name


def test_a_connections_other_end() -> None:
    assert peer("Net : Call to recv from 10.0.0.2<5423> failed") == "10.0.0.2"
    assert peer("socketProgress: Connection closed by remote peer n7.cluster<34>") == "n7.cluster"
