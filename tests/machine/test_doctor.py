"""Doctor: every problem has a fix; a check that can't run is a note and stops nothing."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalewright.machine.checks import accelerator, memory, network, processor, software, speed, storage
from scalewright.machine.doctor import examine, render
from scalewright.machine.findings import Report, guarded
from scalewright.machine.load import too_many_threads
from scalewright.machine.probe import Bf16Speed, Rate
from scalewright.machine.processor import Processor
from scalewright.spec.errors import SEVERITIES, Finding, install

EIGHT = Processor("Fake CPU", 8, 4, 8, None, ("avx2",), 1, 2**34, 2**33, None)


def named(report: Report, name: str) -> Finding | None:
    return next((finding for finding in report.findings if finding.rule == name), None)


def only(found: list[Finding], name: str) -> Finding:
    (finding,) = [entry for entry in found if entry.rule == name]
    return finding


def test_the_whole_examination(tmp_path: Path) -> None:
    report = examine(tmp_path / "runs" / "not-yet-there", {})
    assert not list(tmp_path.iterdir()), "an examination leaves nothing behind"
    data = json.loads(json.dumps(report.dump()))
    assert data["worst"] in SEVERITIES
    assert sum(data["counts"].values()) == len(data["findings"])
    assert data["versions"]["python"]
    for name in ("cores", "threads", "memory", "loopback", "space", "write speed", "bf16"):
        assert named(report, name) is not None, name
    for finding in report.findings:
        assert finding.what
        if finding.severity in ("warn", "problem"):
            assert finding.how, finding
    page = render(report)
    assert not set("✓✗→") & set(page), "without colour: words and ASCII marks"
    assert all(group in page for group in report.groups)
    assert "\x1b[" in render(report, colour=True)


@pytest.mark.parametrize(
    ("environ", "severity", "fix"),
    [
        ({"OMP_NUM_THREADS": "16"}, "warn", "OMP_NUM_THREADS=8"),
        ({"OMP_NUM_THREADS": "8", "LOCAL_WORLD_SIZE": "4"}, "warn", "OMP_NUM_THREADS=2"),
        ({"MKL_NUM_THREADS": "64"}, "warn", "OMP_NUM_THREADS=8"),
        ({"OMP_NUM_THREADS": "2", "LOCAL_WORLD_SIZE": "4"}, "ok", ""),
        ({"OMP_NUM_THREADS": "1"}, "note", "OMP_NUM_THREADS=8"),
        ({}, "ok", ""),
    ],
)
def test_threads_against_cores(environ: dict[str, str], severity: str, fix: str) -> None:
    finding = only(processor.threads(EIGHT, environ, 8), "threads")
    assert finding.severity == severity
    assert fix in finding.how


@pytest.mark.parametrize("others", [None, 0.0, 1.0, 3.4, 6.0, 8.0, 20.0])
@pytest.mark.parametrize("threads", [1, 2, 5, 8, 16])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_threads_are_advised_as_train_does(threads: int, workers: int, others: float | None) -> None:
    environ = {"OMP_NUM_THREADS": str(threads), "LOCAL_WORLD_SIZE": str(workers)}
    finding = only(processor.threads(EIGHT, environ, 8, others), "threads")
    remark = too_many_threads(EIGHT, threads, workers, others)
    assert (finding.severity == "warn") is (remark is not None)
    if remark is not None:
        assert remark.endswith(f"; {finding.how}")
    if "OMP_NUM_THREADS=" in finding.how:  # what follows the advice is not advised against
        number = finding.how.partition("OMP_NUM_THREADS=")[2].split()[0]
        again = only(processor.threads(EIGHT, {**environ, "OMP_NUM_THREADS": number}, 8, others), "threads")
        assert "OMP_NUM_THREADS=" not in again.how


def test_few_threads_of_one_process_are_not_advised_to_each_of_many() -> None:
    alone = only(processor.threads(EIGHT, {"OMP_NUM_THREADS": "1"}, 8), "threads")
    assert alone.how.startswith("unset OMP_NUM_THREADS: `train` gives every rank its share")
    assert alone.how.endswith("for one process")
    of_two = only(processor.threads(EIGHT, {"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2"}, 8), "threads")
    assert of_two.how == "export OMP_NUM_THREADS=4"


def compared(spread: float = 1.0, overall: float = 4.1) -> Any:
    return lambda device, seconds: Bf16Speed(device, 4.0, 4.0, 4.0, overall, "how", 5, 1.0, 143e9, spread)


@pytest.mark.parametrize(("spread", "others", "judged"), [
    (1.0, 0.0, True), (1.4, 2.0, True), (1.6, 0.0, False), (1.0, 2.1, False), (3.0, 8.0, False),
])  # fmt: skip
def test_rates_agree_and_are_not_judged_on_a_loaded_machine(
    monkeypatch: pytest.MonkeyPatch, spread: float, others: float, judged: bool
) -> None:
    monkeypatch.setattr(speed, "compare_bf16", compared(spread))
    found = {entry.rule: entry for entry in speed.rates(None, "cpu", EIGHT, others)}
    assert {entry.severity for entry in found.values()} == {"ok" if judged else "note"}
    assert "143 GFLOP/s in fp32" in found["matmul fp32"].what
    assert "586 GFLOP/s in bf16" in found["matmul bf16"].what  # 4.1 times as much
    assert found["matmul bf16"].data["judged"] is judged
    assert ("bf16 is 4.10 times as fast" in found["bf16"].what) is judged
    if not judged:
        assert all("not judged" in entry.what for entry in found.values())
        assert "auto means" not in found["bf16"].what
        why = "cores busy" if others > 2 else "as long from one moment to the next"
        assert why in found["copy"].what


def test_a_gpu_is_judged_beside_a_busy_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "compare_bf16", compared())
    monkeypatch.setattr(speed, "copy_rate", lambda *_, **__: Rate("copy", 1e12, 1e12, 3, "how, best of 3"))
    found = speed.rates(None, "cuda:0", EIGHT, 8.0)
    assert {entry.severity for entry in found} == {"ok"}
    assert "median of 3" in found[-1].what


def test_a_thread_count_that_is_no_number() -> None:
    found = processor.threads(EIGHT, {"OMP_NUM_THREADS": "all"}, 8)
    assert found[0].severity == "warn"
    assert "not a number" in found[0].what


def test_too_many_threads_reach_the_report(tmp_path: Path) -> None:
    report = examine(tmp_path, {"OMP_NUM_THREADS": "4096"}, measure=False)
    finding = named(report, "threads")
    assert finding is not None
    assert finding.severity == "warn"
    assert "4,096 threads" in finding.what
    text = " ".join(render(report, width=200).split())
    assert finding.how in text
    assert "what it is: scalewright explain OpenMP" in text


def test_a_container_quota_is_told() -> None:
    finding = processor.cores(replace(EIGHT, quota_cores=2.5))
    assert (finding.severity, finding.data["usable_cores"]) == ("note", 2)
    assert "quota of 2.50" in finding.what


def test_governor(tmp_path: Path) -> None:
    path = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    path.parent.mkdir(parents=True)
    path.write_text("powersave\n")
    assert "performance" in processor.clocks(tmp_path).how
    path.write_text("performance\n")
    assert processor.clocks(tmp_path).severity == "ok"


def test_memory_that_is_short_or_limited() -> None:
    assert memory.memory(EIGHT).severity == "ok"
    assert memory.memory(replace(EIGHT, memory_available_bytes=2**29)).severity == "warn"
    assert "limit" in memory.memory(replace(EIGHT, memory_limit_bytes=2**31)).what


def test_a_host_name_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(name: str) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(network, "resolve", nowhere)
    finding = network.hostname({})
    assert finding.severity == "warn"
    assert "GLOO_SOCKET_IFNAME" in finding.how
    monkeypatch.setattr(network, "resolve", lambda name: ["192.0.2.7"])
    assert "no address of this machine" in network.hostname({}).what
    assert network.hostname({"GLOO_SOCKET_IFNAME": "lo"}).severity == "ok"


def test_an_interface_that_is_not_there() -> None:
    (finding,) = network.named_interfaces({"NCCL_SOCKET_IFNAME": "nosuch0"})
    assert finding.severity == "problem"
    assert network.named_interfaces({"NCCL_SOCKET_IFNAME": "^docker0"}) == []


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        finding = network.main_port({"MASTER_PORT": port})
        assert finding is not None
        assert "taken" in finding.what
    bad = network.main_port({"MASTER_PORT": "http"})
    assert bad is not None
    assert bad.severity == "problem"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (finding,) = storage.write_speed(tmp_path / "nowhere")
    assert finding.severity == "problem"
    assert "out_dir" in finding.how


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: (2**40, 2**40 - 2**20, 2**20))
    assert storage.space(tmp_path).severity == "problem"


SMI = (
    "NVIDIA H100 80GB HBM3, 570.86, 81559, 3, Enabled, Enabled, 0, Disabled, 31, 700.00, Not Active, 16, 16\n"
    "NVIDIA H100 80GB HBM3, 570.86, 81559, 60000, Disabled, Enabled, 2, Disabled, 90, 700.00, Active, 8, 16\n"
)


def test_what_a_driver_says() -> None:
    gpus = accelerator.parse_nvidia(SMI)
    assert [gpu["memory.used"] for gpu in gpus] == ["3", "60000"]
    found = {finding.rule: finding for finding in accelerator.driver(gpus)}
    assert found["ecc"].severity == "problem"
    assert found["throttling"].severity == "warn"
    assert {"persistence", "pcie", "in use"} <= set(found)
    healthy = {finding.rule: finding.severity for finding in accelerator.driver(gpus[:1])}
    assert healthy == {"driver": "ok", "ecc": "ok"}
    assert accelerator.driver(None) == []


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")
def test_a_driver_that_knows_fewer_fields(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\ncase $1 in *throttle*) echo 'Field \"x\" is not a valid field to query.'; exit 2;; esac\n"
        "echo 'Tesla T4, 450.80, 15109, 0'\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(accelerator.shutil, "which", lambda _: str(program))
    gpus = accelerator.query_nvidia()
    assert gpus is not None
    assert (gpus[0]["name"], gpus[0]["mig.mode.current"]) == ("Tesla T4", "[N/A]")
    assert [finding.rule for finding in accelerator.driver(gpus)] == ["driver"]
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    with pytest.raises(RuntimeError, match="has failed"):
        accelerator.query_nvidia()


def fake_torch(cuda: str | None) -> Any:
    no = SimpleNamespace(is_available=lambda: False)
    version = SimpleNamespace(cuda=cuda, hip=None)
    return SimpleNamespace(__version__="9", cuda=no, backends=SimpleNamespace(mps=no), version=version)


def test_gpus_that_torch_does_not_see() -> None:
    gpus = accelerator.parse_nvidia(SMI)
    (build,) = accelerator.torch_devices(fake_torch(None), gpus, {})
    assert (build.severity, "CPU build" in build.how) == ("problem", True)
    (hidden,) = accelerator.torch_devices(fake_torch("13.0"), gpus, {"CUDA_VISIBLE_DEVICES": ""})
    assert "CUDA_VISIBLE_DEVICES" in hidden.how
    (old,) = accelerator.torch_devices(fake_torch("13.0"), gpus, {})
    assert "driver" in old.how
    (none,) = accelerator.torch_devices(fake_torch(None), None, {})
    assert none.severity == "note"


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        ("sm_80", (8, 6), True),
        ("sm_90a", (9, 0), True),
        ("sm_90", (8, 9), False),
        ("compute_90", (10, 0), True),
        ("sm_75", (8, 0), False),
    ],
)
def test_code_for_a_capability(arch: str, capability: tuple[int, int], runs: bool) -> None:
    assert accelerator._runs_on(arch, *capability) is runs


def test_training_needs_its_packages() -> None:
    there = {"torch": "2.13.0+cpu", "safetensors": "1", "tokenizers": "1", "pyarrow": "1", "numpy": "2"}
    assert software.training(there).severity == "ok"
    assert software.training({**there, "torch": None}).how == install("train")
    assert software.training({**there, "torch": "2.4.1"}).severity == "problem"


def test_without_torch_planning_is_all_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("scalewright.machine.doctor.load_torch", lambda: None)
    monkeypatch.setattr("scalewright.machine.probe.load_torch", lambda: None)
    report = examine(tmp_path)
    bf16 = named(report, "bf16")
    assert bf16 is not None
    assert "auto means fp32" in bf16.what
    assert named(report, "matmul fp32") is not None


def test_a_check_that_cannot_look_is_a_note() -> None:
    def broken() -> Finding:
        raise PermissionError("not yours")

    (finding,) = guarded("group", "name", broken)
    assert finding.severity == "note"
    assert "cannot tell here (PermissionError: not yours)" in finding.what


def test_a_driver_that_hangs_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hangs() -> None:
        raise TimeoutError("timed out after 2 seconds")

    monkeypatch.setattr(accelerator, "query_nvidia", hangs)
    report = examine(tmp_path, measure=False)
    assert report.worst == "problem"
    assert "to fix before a run" in render(report)


def test_the_worst_severity_decides() -> None:
    report = Report((Finding("a", "x", "note", "."), Finding("a", "y", "warn", ".", "do")), {}, 0.1)
    assert report.worst == "warn"
    assert Report((), {}, 0.0).worst == "ok"
