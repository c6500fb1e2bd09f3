"""A cause planted in a log comes out with its evidence and its fix, and a log without one stays silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.nccl.write import answer, causes, run, says, started

from scalewright.cli.terminal import show
from scalewright.report.present import show_answer


def first(folder: Path, lines: list[str]) -> dict[str, Any]:
    """The verdict that comes first."""
    return dict(answer(folder, lines)["verdicts"][0])


def on_all(text: str) -> list[str]:
    """A line that every GPU of the run prints."""
    return [says(host, gpu, text) for host in "ab" for gpu in range(2)]


def test_a_run_that_is_well_has_no_verdicts(tmp_path: Path) -> None:
    assert causes(tmp_path, run()) == []


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("NCCL_IB_DISABLE set by environment to 1.", "unset NCCL_IB_DISABLE"),
        ("NCCL_NET set by environment to Socket.", "unset NCCL_NET"),
        ("NET/IB : No device found.", "ibv_devinfo"),
        ("Comm config Blocking set to 1", "NCCL_DEBUG_SUBSYS"),
    ],
)
def test_sockets_and_why(tmp_path: Path, reason: str, fix: str) -> None:
    verdict = first(tmp_path, [*on_all(reason), *run("Socket", "")])
    assert verdict["cause"] == "sockets instead of InfiniBand or RoCE"
    assert "8 of 8 links between nodes go over NET/Socket" in verdict["evidence"]
    assert fix in verdict["fix"]


def test_sockets_because_of_an_adapter_that_is_not_there(tmp_path: Path) -> None:
    reasons = [*on_all("NCCL_IB_HCA set by environment to mlx9."), *on_all("NET/IB : No device found.")]
    verdict = first(tmp_path, [*reasons, *run("Socket", "")])
    assert "NCCL_IB_HCA names mlx9, and NET/IB found no device of that name" in verdict["evidence"]
    assert verdict["confidence"] > 0.9


def test_sockets_within_one_node_are_no_fault(tmp_path: Path) -> None:
    lines = [started("a", gpu, gpu, 2) for gpu in range(2)]
    assert causes(tmp_path, [*lines, says("a", 0, "Using network Socket")]) == []


def test_gpudirect_is_off(tmp_path: Path) -> None:
    verdict = first(tmp_path, run(mark=""))
    assert verdict["cause"] == "GPUDirect RDMA is off between nodes"
    assert verdict["evidence"] == ["8 of 8 links between nodes lack the mark GDRDMA"]
    disabled = on_all("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'")
    result = answer(tmp_path, [*disabled, *run(mark="")])
    assert result["nccl"]["gdr"] is False
    assert "NCCL says that it is disabled for a mlx5_0, b mlx5_0" in result["verdicts"][0]["evidence"]


def test_gpudirect_is_off_because_of_the_distance(tmp_path: Path) -> None:
    too_far = on_all("NET/IB : GPU Direct RDMA Disabled for GPU 0 / HCA 0 (distance 5 > 4)")
    result = answer(tmp_path, [*too_far, *run(mark="")])
    assert result["nccl"]["gdr"] is False
    assert "4 pairs of a GPU and an adapter are too far apart (distance 5)" in result["verdicts"][0]["evidence"]


def test_gpudirect_is_off_because_of_a_variable(tmp_path: Path) -> None:
    verdict = first(tmp_path, [*on_all("NCCL_NET_GDR_LEVEL set by environment to LOC"), *run(mark="")])
    assert verdict["evidence"][1:] == ["NCCL_NET_GDR_LEVEL is set to LOC on a, b"]
    assert verdict["fix"] == "unset NCCL_NET_GDR_LEVEL"


def test_gpudirect_is_off_on_some_ranks_only(tmp_path: Path) -> None:
    lines = [line.removesuffix("/GDRDMA") if line.startswith("b:") else line for line in run()]
    result = answer(tmp_path, lines)
    assert result["nccl"]["gdr"] is False
    assert result["verdicts"][0]["evidence"] == ["4 of 8 links between nodes lack the mark GDRDMA"]


def test_gpudirect_by_the_rings_alone(tmp_path: Path) -> None:
    ready = [started(host, 0, rank, 2) for rank, host in enumerate("ab")]
    for gdr in (0, 1):
        lines = [*ready, says("a", 0, f"Connected all rings, use ring PXN 0 GDR {gdr}")]
        lines.insert(0, started("a", 0, 0, 2, state="START"))
        assert answer(tmp_path, lines)["nccl"]["gdr"] is bool(gdr)


def test_shared_memory_and_why(tmp_path: Path) -> None:
    lines = run(inside="SHM/direct/direct")
    assert first(tmp_path, lines)["cause"] == "shared memory instead of P2P within a node"
    verdict = first(tmp_path, [*on_all("NCCL_P2P_DISABLE set by environment to 1."), *lines])
    assert verdict["evidence"] == [
        "4 of 4 links within a node go through the host's memory",
        "NCCL_P2P_DISABLE is set to 1 on a, b",
    ]
    assert verdict["fix"] == "unset NCCL_P2P_DISABLE"


def test_some_pairs_go_over_shared_memory(tmp_path: Path) -> None:
    lines = [line.replace("P2P/CUMEM/read", "SHM/direct") if line.startswith("b:") else line for line in run()]
    assert "mixed transports within a node" in causes(tmp_path, lines)


def test_the_network_between_gpus_of_one_host(tmp_path: Path) -> None:
    assert "the network within a node" in causes(tmp_path, run(inside="NET/IB/0/GDRDMA"))


def test_pcie_where_graphs_are_printed(tmp_path: Path) -> None:
    graph = "Pattern 4, crossNic 0, nChannels 8, bw 12.0/12.0, type {}/PIX, sameChannels 1"
    assert causes(tmp_path, [*run(), *on_all(graph.format("NVL"))]) == []
    assert causes(tmp_path, [*run(), *on_all(graph.format("PHB"))]) == ["PCIe instead of NVLink within a node"]


def test_few_channels(tmp_path: Path) -> None:
    limit = on_all("NCCL_MAX_NCHANNELS set by environment to 2.")
    assert causes(tmp_path, run(channels=2)) == ["few channels"]
    assert first(tmp_path, [*limit, *run(channels=2)])["fix"] == "unset it"


def test_one_adapter_of_several(tmp_path: Path) -> None:
    lines = [line.replace("NET/IB/1/", "NET/IB/0/") for line in run()]
    verdict = first(tmp_path, lines)
    assert verdict["cause"] == "one adapter used of several"
    assert verdict["evidence"][0] == "a has 2 adapters, and its links go over 1: mlx5_0"


def test_the_wrong_interface(tmp_path: Path) -> None:
    lines = [line.replace("Using ens1:", "Using docker0:") for line in run()]
    verdict = first(tmp_path, lines)
    assert verdict["cause"] == "the wrong interface"
    assert "a, b use docker0" in verdict["evidence"][0]


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("Using ens1:10.7.0.1<0>", "Using eth0:10.7.0.1<0>", "hosts use different interfaces"),
        ("Using network IB", "Using network Socket", "ranks use different networks"),
        ("[1]mlx5_1:1/IB ", "", "hosts have different adapters"),
    ],
)
def test_a_host_that_does_otherwise(tmp_path: Path, old: str, new: str, cause: str) -> None:
    lines = [line.replace(old, new) if line.startswith("b:") else line for line in run()]
    [verdict] = [entry for entry in answer(tmp_path, lines)["verdicts"] if entry["cause"] == cause]
    assert any("b" in sentence for sentence in verdict["evidence"])


def test_ranks_that_have_fewer_channels(tmp_path: Path) -> None:
    lines = [line.replace("8 coll", "4 coll") if line.startswith("b:4001") else line for line in run()]
    [verdict] = answer(tmp_path, lines)["verdicts"]
    assert verdict["cause"] == "ranks have different numbers of channels"
    assert verdict["evidence"] == ["8 channels on ranks 0, 1, 2", "4 channels on ranks 3"]


def test_versions_that_differ(tmp_path: Path) -> None:
    lines = [*run(), says("b", 0, "NCCL version 2.18.5+cuda12.1")]
    assert causes(tmp_path, lines) == ["versions of NCCL differ"]
    same = [*run(), "RuntimeError: NCCL error: internal error, NCCL version 2.21.5"]
    assert "versions of NCCL differ" not in causes(tmp_path, same)


def test_variables_that_differ(tmp_path: Path) -> None:
    setting = [says(host, 0, f"NCCL_ALGO set by environment to {value}.") for host, value in ("a1", "b2")]
    assert first(tmp_path, [*run(), *setting])["evidence"] == ["NCCL_ALGO is 1 on a, 2 on b"]


def test_a_refused_connection_names_both_ends(tmp_path: Path) -> None:
    warning = says("b", 1, "Connect to 10.9.8.7<4455> failed : Connection refused", "WARN")
    result = answer(tmp_path, [*run(), warning, "torch: ncclSystemError: System call failed"])
    [verdict] = result["verdicts"]
    assert verdict["cause"] == "connection refused"
    assert verdict["evidence"][1:] == ["printed once, by b", "the other end: 10.9.8.7"]


def test_a_symptom_alone_is_better_than_nothing(tmp_path: Path) -> None:
    assert causes(tmp_path, [*run(), "torch: ncclRemoteError: A call failed"]) == ["a remote rank ended"]


def test_a_warning_that_no_table_knows_is_shown(tmp_path: Path) -> None:
    warnings = [says("a", 0, f"Something new at {number}", "WARN") for number in range(7, 12)]
    [verdict] = answer(tmp_path, [*run(), *warnings])["verdicts"]
    assert verdict["cause"] == "warning: Something new at #"
    assert verdict["evidence"][0].endswith("Something new at 7")
    assert verdict["evidence"][1] == "printed 5 times, by a"


@pytest.mark.parametrize("columns", [80, 120])
def test_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    hostile = says("a", 0, "NCCL_ALGO set by environment to \x07evil\x9b31m.")
    show(show_answer(answer(tmp_path, [*run("Socket", ""), hostile])), everything=True)
    text = capsys.readouterr().out
    assert text.startswith("NCCL 2.21.5+cuda12.4: 4 ranks on 2 nodes, 8 channels\n")
    assert "1. sockets instead of InfiniBand or RoCE" in text
    assert "\x07" not in text
    assert "\x9b" not in text
    assert max(map(len, text.splitlines())) <= columns
