"""Recipes of CONTRIBUTING.md followed literally: edits of a copy of the package, then the tests that the recipe names.

    recipe --names--> files --edits of these alone--> copy --what was wanted, the recipe's own command--> must pass
                        one of them left out          ------------------------------------------------> must fail

An edit of a file that the recipe doesn't name isn't made, so that a name that is missing fails as a contributor
who follows the page would. All recipes are followed in one copy and tried in one process; of tests with a case for each
entry of a table, the cases of the new entries run (recipe_copies.py).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from test_how_to_add import HAS, RECIPES, ROOT, TRAINER

# recipe -> file as the recipe names it -> (text after which an addition stands, None: at the end; the addition; ...)
Edits = dict[str, tuple[str | None, ...]]
CHIP = """
throw-away-laptop:
  {name: Throw-away Laptop 8GB, vendor: NVIDIA, kind: gpu, family: ada, driver_names: [Throw-away Laptop GPU],
   peaks: {fp32: 15e12, bf16: 60e12, fp16: 60e12}, memory_bytes: 8e9, memory_bytes_reported: 8585740288,
   memory_bytes_per_s: 192e9, host_bytes_per_s: 16e9, sources: [a test]}
"""
ORDER = '''

def throw_away(rank: int, ranks: int, chunks: int, micros: int) -> list[Action]:
    """All forwards, then the backwards from the last."""
    forwards = [Action("forward", rank, micro) for micro in range(micros)]
    return forwards + [Action("backward", rank, micro) for micro in reversed(range(micros))]
'''
VERB = '''"""`scalewright throwaway`: its own name."""

from __future__ import annotations

from scalewright.cli.options import Json
from scalewright.cli.output import only_answer, print_json


def throwaway(json: Json = False) -> None:
    """Print its own name."""
    with only_answer(json):
        pass
    print_json({"verb": "throwaway"})
'''
TARGET = '''"""`launch throwaway`: the name of a job."""

from __future__ import annotations

from scalewright.launch.job import LaunchJob, Written


def write(job: LaunchJob) -> Written:
    """The job's name."""
    return Written({"job": f"{job.name} x {job.world}\\n"}, ("start", "job"))
'''
SYSTEM = """
throw-away-pod:
  device: h100-sxm
  devices_per_node: 4
  fabric: {kind: ethernet, bytes_per_s: 12.5e9, source: a test}
"""
EDITS: dict[str, Edits] = {
    "A verb": {
        "cli/verbs/<verb>.py": (None, VERB),
        "cli/verbs/__init__.py": (
            '    "Start here": {\n',
            '        "throwaway": throwaway,\n',
            "import sweep\n",
            "from scalewright.cli.verbs.throwaway import throwaway\n",
        ),
        "README.md": ("| command | what it does |\n| --- | --- |\n", "| `scalewright throwaway` | its own name |\n"),
    },
    "A pipeline schedule": {
        "spec/schedules/one_f_one_b.py": (None, ORDER),
        "spec/schedules/kinds.py": (
            "_RECORDS = (\n",
            '    Kind("throw-away", one_f_one_b.throw_away, "round", "one", _fill, lambda p, v, m, rank: m),\n',
            "import fold",
            ", one_f_one_b",
        ),
        "spec/layout.py": ("ScheduleName = Literal[\n", '    "throw-away",\n'),
        "docs/run-yaml.md": ("| `layout.schedule` | ", "`throw-away` "),
        "spec/capabilities.yaml": ("    schedule: [gpipe, ", "throw-away, "),
        "tests/spec/test_schedule.py": ("WHOLE = {", '"throw-away", '),
    },
    "A model family": {
        "spec/families/<like>.py": ("FAMILIES = (\n", '    ModelFamily("throw-away", _read_llama),\n'),
        "spec/families/defaults.yaml": (
            None,
            "\nthrow-away: {vocab_size: 32000, hidden_size: 4096, intermediate_size: 11008, num_hidden_layers: 32,\n"
            "  num_attention_heads: 32, num_key_value_heads: null, head_dim: null, hidden_act: silu,\n"
            "  max_position_embeddings: 2048, rms_norm_eps: 1.0e-6, tie_word_embeddings: false,\n"
            "  attention_bias: false, mlp_bias: false}\n",
        ),
        "spec/presets/styles.yaml": (None, "\nthrow-away: {ratio: 3.5, kv_heads: 8, keys: {context: 8192}}\n"),
        "tests/spec/test_huggingface.py": ("sorted(set(FAMILIES) - {", '"throw-away", '),
    },
    "A chip": {"spec/hardware/data/<vendor>.yaml": (None, CHIP)},
    "An optimizer": {
        "spec/optimizers.py": (
            '"lion", "muon", "adamw_bf16", "adamw_8bit"',
            ', "throw-away"',
            "_RECORDS = (\n",
            '    Optimizer(name="throw-away", written="throw-away", states=("exp_avg", "exp_avg_sq"), step_bytes=4,\n'
            '              update=28, source="a test"),\n',
        ),
        "docs/run-yaml.md": ("| `optimizer.name` | ", "`throw-away` "),
        "train/optimizer.py": ("BUILDERS = {", '"throw-away": _adamw, '),
    },
    "A cluster": {"spec/hardware/data/clusters.yaml": (None, SYSTEM)},
    "A launcher": {
        "launch/starters.py": (
            "STARTERS = (\n",
            '    Starter("throw-away", ("TOSS_RANK",), ("TOSS_RANKS",), host=("TOSS_FIRST",)),\n',
        ),
        "tests/launch/environments/<name>.env": (
            None,
            "# expect: starter=throw-away rank=2 world=4 local_rank=0 at=node1:29500\n"
            "TOSS_RANK=2\nTOSS_RANKS=4\nTOSS_FIRST=node1\n",
        ),
        "launch/targets/<name>.py": (None, TARGET),
        "launch/targets/__init__.py": ("NAMES = (", '"throwaway", '),
    },
    "A trainer to price": {
        "plan/data/frameworks.yaml": ("\nentries:\n", TRAINER.removeprefix("entries:\n")),
        "spec/capabilities.yaml": (None, HAS),
    },
}
CHOSEN = {"<like>": "llama", "<vendor>": "nvidia", "<verb>": "throwaway", "<name>": "throwaway"}
# What a contributor wants of each, as a program
PRICED = """
from scalewright.plan.predict import predict
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec
def price(cluster="dgx-h100", **keys):
    layout = Layout.parse({"devices": 16, "pp": 4, "zero_stage": 1, "global_batch": 32, "schedule": "gpipe"} | keys)
    return predict(load_model_spec("llama-3.2-1b"), load_cluster(cluster), layout, 4096, framework=framework)
"""
AIMS = {
    "A verb": "from scalewright.cli import main; assert main(['throwaway', '--json']) == 0",
    "An optimizer": """
from scalewright.spec.optimizers import find_optimizer
assert find_optimizer("throw-away").each == 8
""",
    "A cluster": """
from scalewright.spec.hardware.cluster import load_cluster
assert load_cluster("throw-away-pod").devices_per_node == 4
""",
    "A launcher": """
from scalewright.launch.job import LaunchJob
from scalewright.launch.rank import find_context
from scalewright.launch.targets import find_target
from scalewright.spec.launch import LaunchSpec
assert find_context({"TOSS_RANK": "2", "TOSS_RANKS": "4", "TOSS_FIRST": "node1"}).rank == 2
assert find_target("throwaway")(LaunchJob("tiny", 2, 8, LaunchSpec(), "run.yaml")).files == {"job": "tiny x 16\\n"}
""",
    "A pipeline schedule": "framework = 'scalewright'"
    + PRICED
    + """
from scalewright.spec.trains import why_not_trained
assert price(schedule="throw-away").request.schedule == "throw-away"
from scalewright.spec.capabilities import find_capabilities
assert not find_capabilities("scalewright").missing({"pp": 4, "schedule": "throw-away"})
""",
    "A model family": """
from scalewright.spec.huggingface import read_huggingface
from scalewright.spec.shapes import new_preset
from scalewright.spec.tensors import count
assert count(read_huggingface({"model_type": "throw-away", "num_hidden_layers": 2})).total > 5e8
assert new_preset(1e9, "throw-away").family == "throw-away"
""",
    "A chip": "framework = 'scalewright'"
    + PRICED
    + """
from scalewright.spec.hardware.devices import match_gpu
assert match_gpu("NVIDIA Throw-away Laptop GPU").memory_bytes == 8e9
assert price("throw-away-laptop", devices=1, pp=1, zero_stage=0, global_batch=1).step_time_s > 0
""",
    "A trainer to price": "framework = 'throw-away'"
    + PRICED
    + """
from scalewright.spec.capabilities import find_capabilities
assert price(pp=1).request.framework.name == "throw-away"
assert find_capabilities("throw-away").missing({"pp": 4, "schedule": "zbv"}) == ["schedule zbv"]
""",
}


def follow(folder: Path, recipes: dict[str, str]) -> dict[str, Any]:
    """A copy with the edits of the files that each recipe's text names; what is wanted of it, and its tests."""
    for name in ("src", "tests", "docs"):  # compiled files stay valid: times are kept
        shutil.copytree(ROOT / name, folder / name, copy_function=link)
    for name in ("pyproject.toml", "CONTRIBUTING.md", "examples"):
        (folder / name).symlink_to(ROOT / name)
    link(ROOT / "README.md", folder / "README.md")
    for recipe, text in recipes.items():
        for name, additions in EDITS[recipe].items():
            if f"`{name}`" in text:
                edit(folder, re.sub("<.*?>", lambda match: CHOSEN[match[0]], name), additions)
    tests = [file for text in recipes.values() for file in re.findall(r"`pytest ([^`]+)`", text)[0].split()]
    return {"folder": str(folder), "aims": [AIMS[recipe] for recipe in recipes], "tests": list(dict.fromkeys(tests))}


def link(source: str | Path, target: str | Path) -> None:
    """A hard link, or a copy where the two are on different file systems."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def edit(folder: Path, name: str, additions: tuple[str | None, ...]) -> None:
    """Adds texts to a file of a copy, which may be a link, or makes the file."""
    top = folder if name.split("/")[0] in ("tests", "docs", "README.md") else folder / "src/scalewright"
    path = top / name
    content = path.read_text(encoding="utf-8") if path.exists() else ""
    for after, addition in zip(additions[::2], additions[1::2], strict=True):
        assert addition is not None
        assert after is None or after in content, name
        content = content + addition if after is None else content.replace(after, after + addition, 1)
    path.unlink(missing_ok=True)
    path.write_text(content, encoding="utf-8")


def try_copies(copies: list[Any], folder: Path) -> list[tuple[int, str]]:
    """The exit code and output of the tests of each copy."""
    tried = subprocess.run(
        [sys.executable, ROOT / "tests/recipe_copies.py"],
        input=json.dumps(copies), cwd=folder, capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    return [(code, output) for code, output in json.loads(tried.stdout)]


@pytest.mark.slow
def test_recipes_are_whole(tmp_path: Path) -> None:
    copy = follow(tmp_path / "all", {recipe: RECIPES[recipe] for recipe in EDITS})
    ((code, output),) = try_copies([copy], tmp_path)
    assert code == 0, output[-3000:]


@pytest.mark.slow
def test_recipes_need_each_file_that_they_name(tmp_path: Path) -> None:
    copies: dict[str, Any] = {}
    for recipe, edits in EDITS.items():
        for number, file in enumerate(edits):
            assert f"`{file}`" in RECIPES[recipe]
            text = RECIPES[recipe].replace(f"`{file}`", "")
            copies[f"{recipe} without {file}"] = follow(tmp_path / f"{recipe} {number}", {recipe: text})
    results = dict(zip(copies, try_copies(list(copies.values()), tmp_path), strict=True))
    assert {name: output[-300:] for name, (code, output) in results.items() if code != 1} == {}
