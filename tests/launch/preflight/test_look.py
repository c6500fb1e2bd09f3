"""What is seen of a machine and of a run: by files of a pretend system, and on this machine."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from runs import run, run_data
from scalewright.launch.preflight import look as looking
from scalewright.launch.preflight.ask import job_facts, last_save_s, place_of, save_bytes, start_facts
from scalewright.launch.preflight.facts import ProcessPlace
from scalewright.launch.preflight.look import has_gpus, look
from scalewright.launch.preflight.rules import check
from scalewright.spec.run import RunSpec, load_run

FILES = {
    "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
    "proc/sys/vm/overcommit_memory": "2\n",
    "proc/modules": "nvidia_peermem 16384 0 - Live 0x0\nib_core 1 0 - Live 0x0\n",
    "proc/self/status": "Name:\tpython\nCapEff:\t0000000000004000\n",
    "proc/self/cgroup": "0::/kubepods/pod1\n",
    "sys/fs/cgroup/kubepods/pod1/pids.max": "512\n",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
    "sys/class/infiniband/rdmap0s6/device/vendor": "0x1d0f\n",
    "sys/class/infiniband/rdmap0s6/ports/1/state": "4: ACTIVE\n",
}


@pytest.fixture
def system(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_machine_by_its_files(system: Path) -> None:
    machine = look({}, ProcessPlace(), root=system)
    assert machine.ephemeral_ports == (32768, 60999)
    assert machine.overcommit == 2
    assert machine.peer_memory is True
    assert machine.locks_freely
    assert machine.limits["processes"] <= 512
    assert {name: card.active for name, card in machine.cards.items()} == {
        "mlx5_0": True, "mlx5_1": False, "rdmap0s6": True,
    }  # fmt: skip
    assert [name for name, card in machine.cards.items() if card.efa] == ["rdmap0s6"]
    bare = look({}, ProcessPlace(), root=system / "nothing")
    assert (bare.ephemeral_ports, bare.overcommit, bare.peer_memory, bare.cards) == (None, None, None, {})
    assert not has_gpus("auto", {}, system)
    assert has_gpus("cuda", {}, system)
    (system / "dev").mkdir()
    (system / "dev" / "nvidia0").touch()
    assert has_gpus("auto", {}, system)
    assert not has_gpus("auto", {"CUDA_VISIBLE_DEVICES": ""}, system)


def test_a_port_that_somebody_holds() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        place = ProcessPlace("Slurm", world=2, per_node=2, address="127.0.0.1", port=port)
        assert look({}, place).port_taken is True
    assert look({}, place).port_taken is False
    assert look({}, ProcessPlace("torchrun", world=2, port=port, store_is_up=True)).port_taken is None


def test_what_hangs_is_left_behind() -> None:
    began = time.perf_counter()
    assert looking._within(lambda: time.sleep(60), 0.1) is None
    assert looking._within(lambda: 1 / 0) is None
    assert looking._within(lambda: "answer") == "answer"
    assert time.perf_counter() - began < 2


def test_a_look_takes_a_moment(tmp_path: Path) -> None:
    """On one node; the first look imports psutil."""
    look({}, ProcessPlace(), tmp_path)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        look({}, ProcessPlace(world=8, per_node=8), tmp_path / "not" / "there")
        times.append(time.perf_counter() - began)
    assert min(times) < 0.3
    assert not list(tmp_path.iterdir())


def test_the_size_of_a_save_is_that_of_its_files(tmp_path: Path) -> None:
    data = run_data(tmp_path, train={"steps": 1}, optimizer={"name": "adamw"}, checkpoint={"at_end": True})
    out = Path(run(data).out_dir)
    saved = list(out.glob("checkpoints/*/*.safetensors"))
    size = save_bytes(RunSpec.parse(data))
    assert size is not None
    headers = sum(path.stat().st_size for path in saved) - size  # names and shapes
    assert 0 < headers < 20_000
    assert (last_save_s(out) or -1) >= 0
    assert last_save_s(tmp_path) is None


SRUN = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_STEP_NODELIST": "n[1-2]",
}  # fmt: skip


def test_places() -> None:
    eight = RunSpec.parse({"model": "gpt2", "data": "x", "layout": {"devices": 8}})
    sixteen = eight.replace(layout={"devices": 16})
    assert place_of({}, eight) == ProcessPlace(world=8, per_node=8)
    assert place_of(SRUN, sixteen) == ProcessPlace("Slurm", "", 9, 16, 2, 8, "n1", 20007)
    pod = {"PET_NODE_RANK": "1", "PET_NNODES": "2", "PET_MASTER_ADDR": "p-0"}
    assert place_of(pod, sixteen) == ProcessPlace("Kubeflow Trainer 2", "", 8, 16, 2, 8, "p-0", 29500)
    by_hand = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}
    assert place_of(by_hand, eight).nodes == 1  # it doesn't tell, and may be one


def test_this_machine_is_clean(tmp_path: Path) -> None:
    run_file = RunSpec.parse({**run_data(tmp_path), "layout": {"devices": 2}})
    facts = start_facts({"PATH": "/usr/bin"}, run_file, gpus=False)
    assert check(facts, "meeting", "node") == ()


def test_a_job_has_the_variables_of_its_site(tmp_path: Path) -> None:
    from scalewright.launch.job import make_job

    (tmp_path / "run.yaml").write_text(
        "{model: gpt2, data: x, layout: {devices: 16}, launch: {interface: ib0, env: {NCCL_DEBUG: INFO}}}"
    )
    spec = load_run(tmp_path / "run.yaml")
    facts = job_facts(make_job(spec, "run.yaml", [], None, None), "slurm", spec)
    assert facts.environ == {"NCCL_DEBUG": "INFO", "GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "ib0"}
    assert (facts.place.nodes, facts.place.per_node, facts.place.port) == (2, 8, None)
    assert {"nccl-debug", "one-core-a-task"} <= {finding.rule for finding in check(facts, "submit")}
