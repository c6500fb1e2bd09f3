"""The recipes of CONTRIBUTING.md ("How to add"), each followed on a throw-away example.

    section ### A chip --its paths--> all exist          its steps --on copies of the tables--> it is priced

A registry gets the example by `monkeypatch`; a table that is a file is copied, and its readers' caches are
emptied before and after.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from levels import level_for
from scalewright import cli
from scalewright.cli.output import only_answer, print_json
from scalewright.cli.verbs import VERBS
from scalewright.data import prepare
from scalewright.data.dataset import open_data
from scalewright.data.documents import fragments
from scalewright.data.pieces import cut_pieces
from scalewright.launch import detect, targets
from scalewright.launch.job import LaunchJob, Written
from scalewright.launch.preflight import rules
from scalewright.launch.preflight.facts import Facts, Machine, ProcessPlace
from scalewright.launch.preflight.rule import RuleFailure, Subject
from scalewright.launch.rank import find_context
from scalewright.launch.starters import STARTERS, Starter
from scalewright.plan import frameworks, releases, request
from scalewright.plan.cost import table
from scalewright.plan.predict import Prediction, predict
from scalewright.spec import capabilities, optimizers
from scalewright.spec.base import read_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.families import FAMILIES, ModelFamily, common
from scalewright.spec.hardware import cluster, device_families, devices
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.launch import LaunchSpec
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec
from scalewright.spec.run import PythonRef
from scalewright.spec.schedule import StageCost, check_sizes, find_kind, schedule, simulate
from scalewright.spec.schedules.action import Action
from scalewright.spec.schedules.bubble import idle_time
from scalewright.spec.schedules.kinds import KINDS, Kind
from scalewright.spec.tensors import count

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "scalewright"
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## How to add\n")[2]
RECIPES = dict(re.findall(r"^### (.+?)\n(.*?)(?=^### |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))
PATH = re.compile(r"`((?:[\w.\-]+/)*(?:<\w+>|[\w\-]+)(?:\.(?:py|yaml|csv|md)|/))`")
EXAMPLE = "throw-away"
MODEL = load_model_spec("llama-3.1-8b")
PROMISED = {
    "A verb", "A model family", "A parallel axis", "A pipeline schedule", "A chip", "A cluster",
    "An optimizer", "A data source", "A launcher", "A rule before a start", "A trainer to price",
}  # fmt: skip


def paths(recipe: str) -> list[Path]:
    """The files that a recipe names; of a name to be chosen (`<vendor>.yaml`) the folder that it goes to."""
    found = []
    for name in PATH.findall(RECIPES[recipe]):
        fixed = name.split("<")[0]
        top = ROOT if fixed.split("/")[0] in ("tests", "docs") or "/" not in fixed else SOURCE
        found.append(top / fixed)
    return found


def price(cluster_name: Any = "dgx-h100", layout: Layout | None = None, **changes: Any) -> Prediction:
    """A step of Llama 3.1 8B on 16 devices."""
    layout = layout or Layout.parse({"devices": 16, "zero_stage": 1, "global_batch": 32})
    return predict(MODEL, load_cluster(cluster_name), layout, 4096, **changes)


def test_every_promised_recipe_is_there() -> None:
    assert set(RECIPES) == PROMISED


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_path_of_a_recipe_exists(recipe: str) -> None:
    named = paths(recipe)
    assert len(named) >= 2
    assert [path for path in named if not path.exists()] == []
    assert len(RECIPES[recipe].strip().splitlines()) <= 9


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_ends_with_its_tests_and_their_time(recipe: str) -> None:
    """Under a minute: what a contributor runs again and again."""
    ((command, seconds),) = re.findall(r"`pytest ([^`]+)` \((\d+) s\)", RECIPES[recipe])
    assert 1 <= int(seconds) <= 60
    for word in command.split():
        file, _, function = word.partition("::")
        assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8") if function else (ROOT / file).exists()
    assert "pytest" in RECIPES[recipe].strip().splitlines()[-1] + RECIPES[recipe].strip().splitlines()[-2]


def test_every_path_of_the_techniques_table_exists() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Where a technique is")[1]
    named = PATH.findall(section.split("\n## ")[0].split("---|\n")[1])
    assert len(named) > 40
    assert [name for name in named if not (SOURCE / name).exists()] == []


# -- a verb -----------------------------------------------------------------------------------------


def throw_away_verb(json: bool = False) -> None:
    """Answers with its own name."""
    with only_answer(json):
        print("work")
    if json:
        print_json({"verb": EXAMPLE})


def test_a_verb(monkeypatch: pytest.MonkeyPatch, call_cli: Callable[..., Any]) -> None:
    assert call_cli(EXAMPLE).code == 2
    monkeypatch.setitem(VERBS["Plan"], EXAMPLE, throw_away_verb)
    monkeypatch.setattr(cli, "build_app", cli.build_app.__wrapped__)  # one process builds it once
    assert call_cli(EXAMPLE, "--json").json() == {"verb": EXAMPLE}
    assert f"{EXAMPLE}  Answers with its own name" in call_cli("--help").out


# -- a model family ---------------------------------------------------------------------------------


def test_a_family(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Llama's shapes under keys of its own: loaded by its config.json, and counted."""
    keys = {"width": "hidden_size", "depth": "num_hidden_layers"}

    def read(config: common.Config) -> common.Keys:
        return dict(FAMILIES["llama"].read({**config, **{keys[key]: config[key] for key in keys}}))

    config = {"model_type": EXAMPLE, "width": 512, "num_attention_heads": 8, "intermediate_size": 1024}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=f"unknown model family '{EXAMPLE}'"):
        load_model_spec(tmp_path)
    monkeypatch.setitem(FAMILIES, EXAMPLE, ModelFamily(EXAMPLE, read))
    defaults = common.defaults()
    monkeypatch.setitem(defaults, EXAMPLE, {**defaults["llama"], "depth": 3})
    model = load_model_spec(tmp_path)
    assert (model.family, model.num_hidden_layers) == (EXAMPLE, 3)  # the depth is the family's default
    layer = 4 * 512 * 512 + 3 * 512 * 1024 + 2 * 512
    assert count(model).total == 2 * 32000 * 512 + 3 * layer + 512
    dumped = predict(model, load_cluster("l4"), Layout(), 1024).dump()
    assert dumped["model"]["params"] == count(model).total


# -- a parallel axis --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", paths("A parallel axis"), ids=lambda path: path.name)
def test_an_axis_is_in_every_file_of_its_recipe(path: Path) -> None:
    """`cp` is the worked example."""
    if path.name != "test_grid.py":  # runs over `AXES`, whatever they are
        assert re.search(r"\bcp(?:_\w+)?\b", path.read_text(encoding="utf-8"))


# -- a pipeline schedule ----------------------------------------------------------------------------


def last_in_first_out(rank: int, ranks: int, chunks: int, micros: int) -> list[Action]:
    """GPipe with the backwards in the opposite order."""
    forwards = [Action("forward", rank, micro) for micro in range(micros)]
    return forwards + [Action("backward", rank, micro) for micro in reversed(range(micros))]


def test_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=f"unknown schedule '{EXAMPLE}'"):
        find_kind(EXAMPLE)
    gpipe = KINDS["gpipe"]
    record = Kind(EXAMPLE, last_in_first_out, "round", "one", gpipe.idle, gpipe.alive)
    monkeypatch.setitem(KINDS, EXAMPLE, record)
    monkeypatch.setattr(table, "_trait", table._trait.__wrapped__)  # read once, otherwise
    before = request.SCHEDULES  # made of KINDS when it is imported
    for module in [m for n, m in sys.modules.items() if n.startswith("scalewright.plan")]:
        if getattr(module, "SCHEDULES", None) is before:
            monkeypatch.setattr(module, "SCHEDULES", tuple(KINDS))
    monkeypatch.setitem(table.WORDS, "schedule", tuple(KINDS))
    plan, cost = schedule(EXAMPLE, 4, 1, 6), StageCost(1, 1, 1)
    timing = simulate(plan, cost)
    assert timing.makespan - max(timing.busy) == idle_time(EXAMPLE, 4, 1, 6, cost)
    with pytest.raises(UserError, match="takes virtual_stages 1"):
        check_sizes(EXAMPLE, 4, 2, 6)
    keys = {"devices": 16, "pp": 4, "global_batch": 32, "schedule": "gpipe"}
    as_gpipe = Layout.parse(keys)
    # The word of a run file is the recipe's third step; a copy isn't validated against the words.
    layout = as_gpipe.model_copy(update={"schedule": EXAMPLE})
    priced = price(layout=layout)
    assert priced.request.schedule == EXAMPLE
    assert priced.step_time_s == pytest.approx(price(layout=as_gpipe).step_time_s)
    with pytest.raises(UserError, match="schedule"):
        Layout.parse({**keys, "schedule": "nobody's"})


# -- a chip, a cluster ------------------------------------------------------------------------------

CHIP = """
throw-away:
  {name: Throw-away 96GB, vendor: NVIDIA, kind: gpu, family: throw-away, driver_names: [Throw-away PCIe],
   peaks: {fp32: 60e12, bf16: 2e15, fp16: 2e15}, memory_bytes: 96e9, memory_bytes_per_s: 5e12,
   link: {kind: nvlink, bytes_per_s: 450e9, domain: 8}, host_bytes_per_s: 63e9,
   network_bytes_per_s: 50e9, sources: [a test]}
"""
SYSTEM = """
throw-away-pod:
  aliases: [throw-away-system]
  device: h100-sxm
  devices_per_node: 4
  fabric: {kind: ethernet, bytes_per_s: 12.5e9, source: a test}
"""


@pytest.fixture
def append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Adds text to a file of a copy of spec/hardware/data, which is read from then on."""
    readers = (
        devices._devices, devices._ids_by_name, devices._ids_by_driver_name,
        cluster._written, cluster._entries, cluster._preset,
    )  # fmt: skip
    folder = shutil.copytree(devices.DATA, tmp_path / "data")
    for module in (devices, cluster):
        monkeypatch.setattr(module, "DATA", folder)

    def add(name: str, text: str) -> None:
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write(text)
        for reader in readers:
            reader.cache_clear()

    yield add
    for reader in readers:
        reader.cache_clear()


def test_a_chip(append: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=f"unknown cluster '{EXAMPLE}'"):
        load_cluster(EXAMPLE)
    append("nvidia.yaml", CHIP)
    with pytest.raises(UserError, match=f"unknown device family '{EXAMPLE}'"):
        load_cluster(EXAMPLE)
    monkeypatch.setitem(device_families.FAMILIES, EXAMPLE, device_families.Family(EXAMPLE, like="hopper"))
    chip = load_cluster(EXAMPLE).device
    assert chip.resolved_family.kernels.name == "hopper"
    assert devices.match_gpu("NVIDIA Throw-away PCIe") == chip
    assert price(EXAMPLE).step_time_s < price("dgx-h100").step_time_s  # twice the peak


def test_a_cluster(append: Callable[[str, str], None]) -> None:
    append("clusters.yaml", SYSTEM)
    made = load_cluster("throw-away-system")
    assert (made.name, made.devices_per_node) == ("throw-away-pod", 4)
    assert level_for(made, 8).bytes_per_s == 12.5e9
    assert price("throw-away-pod").step_time_s > price("dgx-h100").step_time_s  # a quarter of its network


def test_a_cluster_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("like: dgx-h100\nnodes: 2\nfabric: {kind: ethernet, bytes_per_s: 12.5e9}\n")
    assert load_cluster(path).devices == 16
    assert price(path).step_time_s > price("dgx-h100").step_time_s
    path.write_text(f"device: {{id: mine, {CHIP.partition('{')[2]}".replace("family: throw-away, ", ""))
    assert price({"device": read_yaml(path)["device"], "nodes": 2, "fabric": {"bytes_per_s": 50e9}}).fits


# -- an optimizer -----------------------------------------------------------------------------------


def test_an_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adagrad keeps one state: 4 bytes less of a parameter than AdamW. test_optimizer.py builds it."""
    with pytest.raises(UserError, match=f"unknown optimizer '{EXAMPLE}'"):
        optimizers.find_optimizer(EXAMPLE)
    record = optimizers.Optimizer(
        name=EXAMPLE, written="sgd", states=("sum",), step_bytes=4, update=20, source="Duchi et al. 2011"
    )
    monkeypatch.setitem(optimizers.OPTIMIZERS, EXAMPLE, record)
    monkeypatch.setattr(optimizers, "NAMES", (*optimizers.NAMES, EXAMPLE))
    assert optimizers.find_optimizer(EXAMPLE) is record
    adamw, planned = price(), price(optimizer=record)
    saved = adamw.memory_gib["optimizer"] - planned.memory_gib["optimizer"]
    assert saved == pytest.approx(4 * count(MODEL).total / 16 / 2**30, rel=0.01)  # 4 bytes on each of 16 ranks
    assert planned.step_time_s < adamw.step_time_s


# -- a data source ----------------------------------------------------------------------------------


def test_data_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A generator of token lists beside the run file, named in `data`."""
    (tmp_path / "throw_away_data.py").write_text(
        "def rows(split):\n    for first in range(50):\n        yield list(range(first, first + 9))\n"
    )
    monkeypatch.chdir(tmp_path)
    ref = PythonRef.parse({"python": "throw_away_data:rows", "seq_len": 8, "packing": False})
    batch = open_data(ref, "train", seed=1).batch(range(2))
    assert batch.tokens.tolist() == [list(range(8)), list(range(1, 9))]
    assert batch.targets[0].tolist() == list(range(1, 9))


def test_a_bundled_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / EXAMPLE).mkdir()
    (tmp_path / EXAMPLE / "input.txt").write_text("To be, or not to be.")
    monkeypatch.setattr(prepare, "FOLDER", tmp_path)
    monkeypatch.setitem(prepare.BUNDLED, EXAMPLE, (("input.txt", "text", "train"),))
    pieces = cut_pieces(prepare.corpus(EXAMPLE, Counter()), 0.1)
    texts = [f.text for piece in pieces for part in piece.parts for f in fragments(part, "text", Counter())]
    assert "".join(texts) == "To be, or not to be."
    assert (prepare.BUNDLED.keys() | {"python-stdlib"}) - {EXAMPLE} == set(prepare.CORPORA)


# -- a launcher -------------------------------------------------------------------------------------


def write(job: LaunchJob) -> Written:
    """What the throw-away target makes of a job."""
    return Written({"job": f"{job.name} x {job.world}\n"}, ("start", "job"))


def test_a_rule_before_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject(EXAMPLE)

    @subject.rule(EXAMPLE, "warn", "a name that shouts", "this file", at=("node",), needs=("several ranks",))
    def shouts(facts: Facts) -> RuleFailure | None:
        host = facts.machine.host
        return RuleFailure(f"{host} shouts", "host", "write it small") if host.isupper() else None

    monkeypatch.setattr(rules, "RULES", (*rules.RULES, *subject.rules))
    facts = Facts(place=ProcessPlace(world=2), machine=Machine(host="NODE"))
    (found,) = rules.check(facts, "node")
    assert (found.rule, found.line) == (EXAMPLE, "NODE shouts (host): write it small")
    assert rules.check(facts, "submit") == ()
    assert rules.check(Facts(machine=Machine(host="NODE")), "node") == ()


def test_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"TOSS_NODE": "1", "TOSS_NODES": "3", "TOSS_FIRST": "node-a"}
    assert find_context(variables).alone
    row = Starter(EXAMPLE, ("TOSS_NODE",), ("TOSS_NODES",), node=True, host=("TOSS_FIRST",))
    monkeypatch.setattr(detect, "STARTERS", (*STARTERS, row))
    context = find_context(variables)
    assert (context.rank, context.world, context.rendezvous) == (1, 3, "tcp://node-a:29500")
    assert context.whole_node
    monkeypatch.setitem(targets.TARGETS, EXAMPLE, __name__)
    written = targets.find_target(EXAMPLE)(LaunchJob("tiny", 2, 8, LaunchSpec(), "run.yaml"))
    assert written.files == {"job": "tiny x 16\n"}


# -- a trainer to price -----------------------------------------------------------------------------

TRAINER = """entries:
  throw-away:
    match: ["throw.?away"]
    measured: false
    kernels: modern
    host: modern
    attention: best
    overlap_grads: true
"""
HAS = """
throw-away: {title: Throw-away, devices: [gpu], axes: {schedule: [gpipe, 1f1b], cp: [1]}, source: a test}
"""


@pytest.fixture
def trainer_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Copies of frameworks.yaml and capabilities.yaml that have the throw-away trainer."""
    readers = (
        releases.table, frameworks.find_framework,
        capabilities._entries, capabilities.find_capabilities, capabilities.titled_trainers,
    )  # fmt: skip
    facts = releases.FILE.read_text(encoding="utf-8")
    assert facts.count("\nentries:\n") == 1
    (tmp_path / "frameworks.yaml").write_text(facts.replace("entries:\n", TRAINER, 1), encoding="utf-8")
    axes = capabilities.FILE.read_text(encoding="utf-8")
    (tmp_path / "capabilities.yaml").write_text(axes + HAS, encoding="utf-8")
    with pytest.raises(UserError, match=f"unknown framework '{EXAMPLE}'"):
        frameworks.check_name(EXAMPLE)
    monkeypatch.setattr(releases, "FILE", tmp_path / "frameworks.yaml")
    monkeypatch.setattr(capabilities, "FILE", tmp_path / "capabilities.yaml")
    for reader in readers:
        reader.cache_clear()
    yield
    for reader in readers:
        reader.cache_clear()


@pytest.mark.usefixtures("trainer_tables")
def test_a_trainer() -> None:
    frameworks.check_name(EXAMPLE)
    trainer = frameworks.find_framework("ThrowAway", "26.03")
    assert (trainer.name, trainer.known, trainer.kernels) == (EXAMPLE, True, "modern")
    has = capabilities.find_capabilities(EXAMPLE)
    assert has.missing({"pp": 4, "schedule": "zbv"}) == ["schedule zbv"]
    assert EXAMPLE in capabilities.titled_trainers()
    priced = price(framework="throwaway")
    assert priced.request.framework == frameworks.find_framework("throwaway")
    assert priced.step_time_s < price(framework="scalewright").step_time_s  # eager kernels
