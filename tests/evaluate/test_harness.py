"""lm-evaluation-harness on our checkpoints: what its own `hf` model gives on the exported folder."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chat_folders import make_folder
from scalewright.api import train
from scalewright.data.prepare import prepare

pytest.importorskip("lm_eval")


@pytest.mark.parametrize("family", ["gemma", "qwen"])
@pytest.mark.parametrize("words", [3, 60])
def test_rolling_gives_bos_once_and_does_not_score_it(family: str, words: int, tmp_path: Path) -> None:
    """As lm-eval's own model with add_bos_token=False, whose default gives Gemma's <bos> twice."""
    from lm_eval.models.huggingface import HFLM

    from scalewright.evaluate.harness import HarnessModel, Subject
    from scalewright.serve.load import load_for_generation

    folder = make_folder(tmp_path, family)
    loaded = load_for_generation(str(folder))
    assert loaded.end is not None
    beginning = loaded.end if loaded.beginning is None else loaded.beginning
    subject = Subject(loaded.model, loaded.tokenizer, lambda *_: [], loaded.end, beginning, 32, start=loaded.start)
    ours = HarnessModel(subject, 4)
    keys = {"dtype": "float32", "batch_size": 1, "max_length": 32, "add_bos_token": False}
    theirs = HFLM(pretrained=str(folder), device="cpu", **keys)
    text = SimpleNamespace(args=(" ".join(["alpha beta gamma"] * words),))
    wanted = theirs.loglikelihood_rolling([text], disable_tqdm=True)
    assert ours.loglikelihood_rolling([text]) == pytest.approx(wanted, rel=1e-5)  # sums of fp32 logs
    ids = loaded.tokenizer.encode(text.args[0], add_special_tokens=False).ids
    assert ours.tok_encode(text.args[0]) == [*loaded.start, *ids]
    if family == "gemma":
        assert ours.tok_encode("<bos>" + text.args[0]) == [2, *ids]


CHOICE = """
task: own_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
ROLLING = """
task: own_rolling
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: bits_per_byte}}]
"""
WRITING = """
task: own_writing
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{target}}}}"
generation_kwargs: {{until: ["g "], max_gen_toks: 6, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""
MODEL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learnt a little, and three tasks about its text, in local files."""
    folder = tmp_path_factory.mktemp("harness")
    words = [f"{a}{b} {b}ing" for a in "abcdefgh" for b in ("cat", "dog", "sun", "rain", "wind")]
    (folder / "text.txt").write_text(" ".join(words) * 40)
    prepare(folder / "text.txt", folder / "data", vocab_size=300, workers=1, progress=None)
    run = {
        "name": "harness",
        "out_dir": str(folder / "run"),
        "device": "cpu",
        "model": {"vocab_size": 300, "context": 24, **MODEL},
        "layout": {"global_batch": 8, "precision": "fp32"},
        "data": {"train": str(folder / "data"), "seq_len": 24},
        "optimizer": {"lr": 0.01},
        "train": {"steps": 30},
    }
    train(run, quiet=True)
    tasks = folder / "tasks"
    tasks.mkdir()
    rows = [
        {
            "question": " ".join(words[number : number + 1 + number % 9]),
            "choices": [" acat", " bdog doging", " " + words[(number + 2) % 40], " x"],
            "answer": number % 4,
            "text": " ".join(words[number : number + 3 + 3 * (number % 7)]),
            "target": "",
        }
        for number in range(14)
    ]
    rows[0]["question"] = ""  # an empty context, which the harness's own model can't write on from
    file = tasks / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in (("choice", CHOICE), ("rolling", ROLLING), ("writing", WRITING)):
        (tasks / f"{name}.yaml").write_text(text.format(file=file))
    return folder


def offline(folder: Path) -> dict[str, str]:
    """No network, and a cache of its own."""
    return {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf-home")}


# One row at a time: with more, lm-eval 0.4.13's own model scores some windows of rolling texts differently
# (its cache of logits), while ours gives the same for any number of rows.
SCRIPT = """
import json, sys, lm_eval
from lm_eval.tasks import TaskManager
found = lm_eval.simple_evaluate(
    model="hf", model_args={"pretrained": sys.argv[1], "dtype": "float32"}, device="cpu", batch_size=1,
    tasks=["own_choice", "own_rolling", "own_writing"], bootstrap_iters=0,
    task_manager=TaskManager(include_path=sys.argv[2], include_defaults=False),
)
texts = [sample["filtered_resps"] for sample in found["samples"]["own_writing"]]
print(json.dumps([found["results"], texts]))
"""


def numbers(results: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {
        (task, metric.removesuffix(",none")): value
        for task, scores in results.items()
        for metric, value in scores.items()
        if isinstance(value, float) and "stderr" not in metric
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_scores_are_those_of_the_harness_on_the_exported_folder(run_cli, trained):
    import subprocess
    import sys

    assert run_cli("convert", trained / "run", trained / "hf").code == 0
    tasks = ("--tasks", "own_choice,own_rolling,own_writing", "--task-path", trained / "tasks")
    ours = run_cli("evaluate", trained / "run", *tasks, "--batch-size", 4, "--json", timeout=600, **offline(trained))
    assert ours.code == 0, ours.err
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(trained / "hf"), str(trained / "tasks")],
        env={**os.environ, **offline(trained)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    theirs, texts = json.loads(done.stdout.strip().splitlines()[-1])
    mine, wanted = numbers(ours.json()["results"]), numbers(theirs)
    assert mine.keys() == wanted.keys()
    for key, value in wanted.items():
        assert mine[key] == pytest.approx(value, rel=1e-5), key  # sums of fp32 logs, in batches of other sizes
    assert wanted["own_rolling", "bits_per_byte"] > 0
    assert 0 < wanted["own_choice", "acc"] < 1
    assert len({text[0] for text in texts}) > 1
    assert ours.json()["samples"] == {"own_choice": 14, "own_rolling": 14, "own_writing": 14}


@pytest.mark.slow
def test_a_table_of_few_documents(run_cli, trained):
    tasks = ("--tasks", "own_choice", "--task-path", trained / "tasks", "--limit", 3)
    found = run_cli("evaluate", trained / "run", *tasks, timeout=600, **offline(trained))
    assert found.code == 0, found.err
    (line,) = (line for line in found.out.splitlines() if "acc_norm" in line)
    assert line.split()[0] == "own_choice"
    assert line.split()[-1] == "3"


@pytest.mark.slow  # the harness reads its thousands of task files
def test_a_task_that_is_not_there(run_cli, trained):
    tasks = ("--tasks", "own_choic", "--task-path", trained / "tasks")
    found = run_cli("evaluate", trained / "run", *tasks, timeout=280, **offline(trained))
    assert found.code == 2
    assert "no task 'own_choic'" in found.err
    assert "own_choice" in found.err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--tasks", ","), "no task is named"),
        (("--tasks", "own_choice", "--data", "x"), "--data has no meaning for --tasks"),
        (("--limit", "3"), "--limit has no meaning for a loss.*add --tasks NAME"),
        (("--batch-size", "3"), "--batch-size has no meaning for a loss"),
    ],
)
def test_mistakes(call_cli, tmp_path, flags, says):
    found = call_cli("evaluate", tmp_path, *flags)
    assert found.code == 2
    assert re.search(says, found.err), found.err


def test_a_metric_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import lm_eval
    from torch import nn

    from scalewright.evaluate.harness import Subject, evaluate_tasks
    from scalewright.spec.errors import UserError

    def no_hub(**_: Any) -> None:
        raise FileNotFoundError("Module 'code_eval' doesn't exist on the Hugging Face Hub either.")

    monkeypatch.setattr(lm_eval, "simple_evaluate", no_hub)
    (tmp_path / "own.yaml").write_text("task: own\ndataset_path: json\noutput_type: loglikelihood\n")
    subject = Subject(nn.Linear(1, 1), None, lambda *_: [], 0, 0, 8, start=())
    with pytest.raises(UserError, match=r"code_eval.*--tasks own"):
        evaluate_tasks(subject, ["own"], tmp_path, None, 1)
