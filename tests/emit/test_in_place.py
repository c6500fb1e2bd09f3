"""A layout in a user's own file: all that isn't of the layout stays as it was."""

from __future__ import annotations

import json
import random
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emit.random_runs import random_layout, random_runs
from scalewright.emit.command_lines import flags
from scalewright.emit.edits import put_literals, put_values
from scalewright.emit.emitted import Emitted
from scalewright.emit.in_place import Rewritten, rewrite
from scalewright.emit.question import question
from scalewright.emit.settings import Settings
from scalewright.emit.write import emit
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.question import Question

SCRIPT = """#!/bin/bash
# Llama 3 8B, as in the paper: --tensor-model-parallel-size 8
GPUS_PER_NODE=8
NNODES=${NNODES:-2}
TP=8; PP=1
DATA_PATH=/data/text_document
GPT_ARGS=(
    --tensor-model-parallel-size ${TP}   # of a node
    --pipeline-model-parallel-size $PP
    --sequence-parallel
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --rotary-base 500000
    --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights
    --micro-batch-size 1 --global-batch-size 128
    --lr 3.0e-4 --min-lr 3.0e-5 --train-iters 10000 --lr-warmup-iters 500 --lr-decay-style linear
    --weight-decay 0.1 --clip-grad 1.0 --bf16 --seed 7 --use-distributed-optimizer
    --vocab-size 128256 --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta/llama3
    --data-path $DATA_PATH
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py "${GPT_ARGS[@]}"
"""
BARE = ("deepspeed", "accelerate", "torchtitan")  # their files have no network, or name it


def asked(folder: Path, name: str, text: str, model: str | None = None) -> Question:
    (folder / name).write_text(text)
    return question(str(folder / name), model)


def changed_lines(before: str, rewritten: Rewritten) -> tuple[list[str], list[str]]:
    """Lines that went, and lines that came."""
    after = next(iter(rewritten.files.values())).splitlines()
    return (
        [line.strip() for line in before.splitlines() if line not in after],
        [line.strip() for line in after if line not in before.splitlines()],
    )


def test_flags_keep_their_places_and_variables_are_set_where_they_are_defined(tmp_path: Path) -> None:
    text = SCRIPT
    foreign = asked(tmp_path, "pretrain.sh", text)
    keys = {**foreign.layout.dump(), "tp": 4, "pp": 2, "zero_stage": 1, "recompute": "none"}
    rewritten = rewrite(foreign, Layout.parse(keys))
    assert rewritten.in_place
    went, came = changed_lines(text, rewritten)
    recompute = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    assert went == ["TP=8; PP=1", "--sequence-parallel", recompute]
    assert came == ["TP=4; PP=2", "--sequence-parallel --pipeline-model-parallel-layout 'Et*17|t*15L'"]
    assert all(f"-{line}" in rewritten.diff.replace("-    ", "-") for line in went)


def test_another_number_of_devices_changes_the_launch_line(tmp_path: Path) -> None:
    text = SCRIPT.replace("NNODES=${NNODES:-2}", "NNODES=2")
    foreign = asked(tmp_path, "pretrain.sh", text)
    rewritten = rewrite(foreign, Layout.parse({**foreign.layout.dump(), "devices": 32}))
    assert rewritten.in_place
    assert changed_lines(text, rewritten) == (["NNODES=2"], ["NNODES=4"])


def test_a_variable_of_two_meanings_is_left_alone(tmp_path: Path) -> None:
    """`$N` is the tensor and the pipeline size: only the flag changes."""
    text = SCRIPT.replace("TP=8; PP=1\n", "N=2\n").replace("${TP}", "$N").replace("$PP", "$N")
    foreign = asked(tmp_path, "pretrain.sh", text)
    rewritten = rewrite(foreign, Layout.parse({**foreign.layout.dump(), "tp": 4, "schedule": "1f1b"}))
    assert rewritten.in_place
    went, came = changed_lines(text, rewritten)
    assert went == ["--tensor-model-parallel-size $N   # of a node"]
    assert came == ["--tensor-model-parallel-size 4   # of a node"]


def test_a_document_keeps_its_comments_and_order(tmp_path: Path) -> None:
    text = """{
  "zero_optimization": {"stage": 3, "overlap_comm": true},
  "bf16": {"enabled": true},
  "train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.0002}}
}
"""
    foreign = asked(tmp_path, "ds_config.json", text, "llama-3.1-8b")
    rewritten = rewrite(foreign, Layout.parse({**foreign.layout.dump(), "zero_stage": 2}))
    assert rewritten.in_place
    assert json.loads(rewritten.files["ds_config.json"])["zero_optimization"]["stage"] == 2
    assert changed_lines(text, rewritten)[0] == [text.splitlines()[1].strip()]


CONTINUED = """#!/bin/bash
NODES=${NODES:-1}; GPUS=8
torchrun --nnodes $NODES --nproc_per_node "$GPUS" pretrain_gpt.py \\
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
    --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 \\
    --tensor-model-parallel-size=2 \\
    --micro-batch-size 1 --global-batch-size 64 --lr 1e-4 --train-iters 500 \\
    --recompute-modules layernorm mlp \\
    --tokenizer-type HuggingFaceTokenizer \\
    --tokenizer-model "my tokenizer" --bf16 \\
    --use-distributed-optimizer \\
    --sequence-parallel
echo "done # $NODES"
"""


def run_by_bash(script: str, folder: Path) -> tuple[list[str], str]:
    """The words that bash gives to torchrun, and all that the script prints besides."""
    (folder / "torchrun").write_text('#!/bin/bash\nprintf "%s\\n" "$@" > "$WORDS"\n')
    (folder / "torchrun").chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "WORDS": str(folder / "words")}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
    return (folder / "words").read_text().splitlines(), done.stdout


@pytest.mark.parametrize(
    "changes",
    [
        {"tp": 1, "sp": False},  # the last line of the command goes
        {"tp": 4},
        {"zero_stage": 0},
        {"pp": 2, "schedule": "1f1b"},
        {"devices": 16},
        {"recompute": "full", "micro_batch": 2},
    ],
    ids=str,
)
def test_bash_gives_the_edited_script_the_words_of_the_new_layout(tmp_path: Path, changes: Any) -> None:
    """The oracle is bash: all words are as before but those of the layout, and what follows still runs."""
    theirs = asked(tmp_path, "pretrain.sh", CONTINUED)
    layout = Layout.parse({**theirs.layout.dump(), **changes, "stage_layers": None})
    rewritten = rewrite(theirs, layout)
    assert rewritten.in_place
    before, printed = run_by_bash(CONTINUED, tmp_path)
    after, still_printed = run_by_bash(next(iter(rewritten.files.values())), tmp_path)
    assert (printed.split()[0], still_printed.split()[0]) == ("done", "done")
    kept = ["--tokenizer-model", "my tokenizer", "--lr", "1e-4", "--train-iters", "500", "--bf16"]
    assert all(word in after for word in kept)
    new, old = flags(after), flags(before)
    of_layout = {key for key in {*new, *old} if new.get(key) != old.get(key)}
    assert of_layout
    assert not of_layout & {"num-layers", "hidden-size", "vocab-size", "tokenizer-type", "seq-length"}
    assert (
        question("torchrun " + shlex.join(after)).layout.dump()
        == question(str(write(tmp_path, rewritten))).layout.dump()
    )


def write(folder: Path, rewritten: Rewritten) -> Path:
    path = folder / "edited.sh"
    path.write_text(next(iter(rewritten.files.values())))
    return path


@pytest.mark.parametrize(
    ("name", "text", "changes", "went", "came"),
    [
        (
            "auto.json",  # what the Trainer fills in stays
            '{\n  "bf16": {"enabled": "auto"},\n  "train_batch_size": "auto",\n'
            '  "zero_optimization": {"stage": 2}\n}\n',
            {"zero_stage": 1, "precision": "bf16"},
            ['"zero_optimization": {"stage": 2}'],
            ['"zero_optimization": {"stage": 1}'],
        ),
        (
            "short.json",  # the short form of old files
            '{\n  "zero_optimization": 2,\n  "fp16": {"enabled": true},\n  "train_batch_size": 64\n}\n',
            {"zero_stage": 1},
            ['"zero_optimization": 2,', '"fp16": {"enabled": true},'],  # JSON is laid out anew
            ['"zero_optimization": {', '"stage": 1', "},", '"fp16": {', '"enabled": true', "},"],
        ),
        (
            "model_config.yaml",  # a functional test of Megatron-LM's
            "# nightly\nMODEL_ARGS:\n  --num-layers: 12\n  --hidden-size: 512\n  --num-attention-heads: 8\n"
            "  --seq-length: 1024\n  --max-position-embeddings: 1024\n  --vocab-size: 32000\n"
            "  --tensor-model-parallel-size: 2  # of a node\n  --micro-batch-size: 4\n"
            "  --sequence-parallel: true\n  --global-batch-size: 32\n",
            {"tp": 1, "sp": False, "devices": 1, "zero_stage": 0},
            ["--tensor-model-parallel-size: 2  # of a node", "--sequence-parallel: true"],
            ["--tensor-model-parallel-size: 1  # of a node"],
        ),
        (
            "accelerate.yaml",
            "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: 'no'\n"
            "fsdp_config:\n  fsdp_version: 2\n  'fsdp_reshard_after_forward': true\n"
            "  fsdp_activation_checkpointing: false\nnum_processes: 8\n",
            {"recompute": "full"},
            ["fsdp_activation_checkpointing: false"],
            ["fsdp_activation_checkpointing: true"],
        ),
    ],
)
def test_forms_that_people_have(
    tmp_path: Path, name: str, text: str, changes: Any, went: list[str], came: list[str]
) -> None:
    theirs = asked(tmp_path, name, text, None if name.startswith("model") else "llama-3.2-1b")
    keys = {**theirs.layout.dump(), "global_batch": None, **changes}
    rewritten = rewrite(theirs, Layout.parse({**keys, "global_batch": theirs.layout.global_batch}))
    assert rewritten.in_place
    assert changed_lines(text, rewritten) == (went, came)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("f(a=1, b=2)\ng(c=3, d=4)\n", "f(a=1)\ng(c=3, d=4)\n"),  # the last one
        ("f(b=2, a=1)\n", "f(a=1)\n"),
        ("f(\n    a=1,\n    b=2,\n)\n", "f(\n    a=1,\n)\n"),
        ("f(\n    a=1,\n    b=2\n)\n", "f(\n    a=1\n)\n"),
    ],
)
def test_a_keyword_goes_with_its_comma_alone(text: str, left: str) -> None:
    assert put_literals(text, {("f", "b"): None}) == left


def test_a_run_file_of_ours(tmp_path: Path) -> None:
    text = "# mine\nmodel: llama-3.2-1b  # small\nlayout: {devices: 8, tp: 2}\n"
    text += "optimizer: {name: lion, lr: 1e-4}\ndata: {train: corpus, seq_len: 4096}\n"
    ours = asked(tmp_path, "run.yaml", text)
    rewritten = rewrite(ours, Layout.parse({"devices": 8, "tp": 4, "recompute": "full"}), "planned: {}\n")
    assert rewritten.in_place
    went, came = changed_lines(text, rewritten)
    assert went == ["layout: {devices: 8, tp: 2}"]
    [line] = came
    assert "tp: 4" in line
    assert "recompute: full" in line


def test_a_run_file_of_ours_writes_a_default_where_the_key_was(tmp_path: Path) -> None:
    text = "model: llama-3.2-1b\nlayout: {devices: 8, zero_stage: 2}\ndata: {train: corpus, seq_len: 4096}\n"
    ours = asked(tmp_path, "run.yaml", text)
    assert Layout(devices=8).zero_stage == 3
    rewritten = rewrite(ours, Layout(devices=8), "planned: {}\n")
    assert (rewritten.in_place, changed_lines(text, rewritten)[1]) == (True, ["layout: {devices: 8, zero_stage: 3}"])


def test_added_flags_stand_together_in_their_order_and_indents_stay(tmp_path: Path) -> None:
    foreign = asked(tmp_path, "pretrain.sh", SCRIPT)
    keys = {**foreign.layout.dump(), "tp": 1, "sp": False, "cp": 2, "zero_stage": 2, "recompute": "none"}
    rewritten = rewrite(foreign, Layout.parse(keys))
    edited = next(iter(rewritten.files.values()))
    assert rewritten.in_place
    added = next(line for line in edited.splitlines() if "--use-megatron-fsdp" in line)
    assert re.search(r"--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", added)
    indents = {len(row) - len(row.lstrip()) for row in SCRIPT.splitlines()}
    assert {len(row) - len(row.lstrip()) for row in edited.splitlines()} <= indents


def test_flags_are_added_beside_each_other_and_not_where_a_comment_names_one(tmp_path: Path) -> None:
    text = "# not --use-megatron-fsdp, which is slow\n" + SCRIPT
    text = text if text.startswith("#!") else "#!/bin/bash\n" + text.replace("#!/bin/bash\n", "")
    foreign = asked(tmp_path, "pretrain.sh", text)
    rewritten = rewrite(foreign, Layout.parse({**foreign.layout.dump(), "zero_stage": 2, "pp": 1}))
    edited = next(iter(rewritten.files.values()))
    assert rewritten.in_place
    assert "# not --use-megatron-fsdp, which is slow\n" in edited


@pytest.mark.parametrize(
    "behind", ["$EXTRA", "2>&1 | tee train.log", "${MORE[@]} --seed 3", "--overlap-param-gather-with-optimizer-step"]
)
def test_what_stands_behind_a_flag_stays(tmp_path: Path, behind: str) -> None:
    """A switch has no words of its own: what follows is the user's, though no reader knows it."""
    line = "--sequence-parallel"
    text = SCRIPT.replace(line, f"{line} {behind}") if "|" not in behind else SCRIPT.replace(line, "")
    if "|" in behind:
        text = text.rstrip() + f" {line} {behind}\n"
    text = text.replace("#!/bin/bash\n", '#!/bin/bash\nEXTRA="--save /ckpt --wandb-project mine"\n')
    foreign = asked(tmp_path, "pretrain.sh", text)
    layout = {**foreign.layout.dump(), "tp": 1, "sp": False, "zero_stage": 2, "pp": 1}
    rewritten = rewrite(foreign, Layout.parse(layout))
    edited = next(iter(rewritten.files.values()))
    if rewritten.in_place:
        assert behind in edited
        assert line not in edited
        assert "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads" in edited
    else:
        assert rewritten.why


def test_json_stays_json_under_any_name(tmp_path: Path) -> None:
    text = json.dumps({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}})
    foreign = asked(tmp_path, "ds.json", text, "llama-3.2-1b").resized(8, 64)
    rewritten = rewrite(foreign, Layout.parse({**foreign.layout.dump(), "zero_stage": 2}))
    for name in ("new.json", "new.cfg", "new", "new.yaml"):
        rewritten.save(tmp_path / name, False)
        assert isinstance(json.loads((tmp_path / name).read_text()), dict)


def test_lines_end_as_they_did() -> None:
    config = '{\r\n  "zero_optimization": {"stage": 3},\r\n  "train_batch_size": 64\r\n}\r\n'
    for suffix, text in ((".json", config), (".yaml", "model:\r\n  tp: 2\r\n")):
        for edited in put_values(text, suffix, {"model.tp": 4, "model.pp": 2}):
            assert "\n" not in edited.replace("\r\n", "")
    assert put_literals("# \x0c x\nf(a=1)", {("f", "a"): "3"}) == "# \x0c x\nf(a=3)"
    assert put_literals("x='\u2028'\nf(a=1)", {("f", "a"): "3"}) == "x='\u2028'\nf(a=3)"
    assert [*put_values("model:\n  a: 1\n", ".yaml", {"use_fsdp": True})] == []  # of no section


def test_a_checkpoint_format_that_changes_is_told(tmp_path: Path) -> None:
    text = SCRIPT.replace("--num-layers 32", "--load ckpt --save ckpt --ckpt-format torch_dist --num-layers 32")
    foreign = asked(tmp_path, "pretrain.sh", text)
    sharded = {**foreign.layout.dump(), "zero_stage": 2, "pp": 1}
    [note] = rewrite(foreign, Layout.parse(sharded)).notes
    assert note == "--ckpt-format is fsdp_dtensor: checkpoints of torch_dist aren't loaded by it"
    assert not rewrite(foreign, Layout.parse({**foreign.layout.dump(), "tp": 4})).notes


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    """An edit would write other bytes than it read: a path of the data, for one."""
    foreign = asked(tmp_path, "pretrain.sh", SCRIPT)
    (tmp_path / "pretrain.sh").write_bytes(SCRIPT.replace("#!/bin/bash", "#!/bin/bash\n# größe").encode("latin1"))
    with pytest.raises(UserError, match=r"byte \d+ isn't UTF-8.*iconv"):
        rewrite(foreign, Layout.parse({**foreign.layout.dump(), "tp": 4}))


def test_one_file_is_written_and_no_other_replaced(tmp_path: Path) -> None:
    """DeepSpeed's emitter has a train.py, and so has the user."""
    text = json.dumps({"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}})
    (tmp_path / "train.py").write_text("mine\n")
    foreign = asked(tmp_path, "ds.json", text, "llama-3.2-1b")
    rewritten = rewrite(
        foreign, Layout.parse({**foreign.layout.dump(), "devices": 8, "global_batch": 8, "offload": "optimizer"})
    )
    with pytest.raises(UserError, match="another text"):
        rewritten.save(tmp_path / "ds.json", False)
    assert rewritten.save(tmp_path / "new.json", False) == [tmp_path / "new.json"]
    assert (tmp_path / "train.py").read_text() == "mine\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds.json", "new.json", "train.py"]
    if not rewritten.in_place:
        assert "`scalewright emit deepspeed PLAN.json --out DIR` has all files" in rewritten.notes[0]


def test_a_script_is_written_again_and_stays_executable(tmp_path: Path) -> None:
    text = SCRIPT.replace("\n", "\r\n")
    foreign = asked(tmp_path, "pretrain.sh", SCRIPT)
    (tmp_path / "pretrain.sh").chmod(0o755)
    for tp in (4, 2):
        rewritten = rewrite(foreign, Layout.parse({**foreign.layout.dump(), "tp": tp}))
        rewritten.save(tmp_path / "better.sh", False, foreign.source)
    assert (tmp_path / "better.sh").stat().st_mode & 0o777 == 0o755
    (tmp_path / "pretrain.sh").write_bytes(text.encode())
    rewritten = rewrite(foreign, Layout.parse({**foreign.layout.dump(), "tp": 4}))
    rewritten.save(tmp_path / "better.sh", False, foreign.source)
    assert b"\r\r" not in (tmp_path / "better.sh").read_bytes()


def test_a_recipe_in_python_keeps_what_is_beside_the_literals(tmp_path: Path) -> None:
    text = """from titan import ours
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


def config() -> Trainer.Config:
    config = Trainer.Config(
        model_spec=model_registry(flavor="8B"),
        parallelism=ParallelismConfig(tensor_parallel_degree=2, data_parallel_shard_degree=4),  # ours
        training=TrainingConfig(local_batch_size=1, global_batch_size=64, seq_len=4096, steps=50),
    )
    config.training.seq_len = 2048
    return config
"""
    foreign = asked(tmp_path, "recipe.py", text)
    keys = {**foreign.layout.dump(), "tp": 4, "global_batch": 128}
    rewritten = rewrite(foreign, Layout.parse(keys))
    went, came = changed_lines(text, rewritten)
    assert rewritten.in_place
    assert len(went) == len(came) == 2
    assert "tensor_parallel_degree=4, data_parallel_shard_degree=2),  # ours" in came[0]
    assert "global_batch_size=128" in came[1]


def test_a_form_that_is_not_edited_is_written_whole(tmp_path: Path) -> None:
    printed = "\n".join(f"  {key} {'.' * 20} {value}" for key, value in {
        "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "num_layers": 32,
        "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 4096, "max_position_embeddings": 4096,
        "micro_batch_size": 1, "global_batch_size": 64, "world_size": 8, "vocab_size": 32000, "bf16": True,
    }.items())  # fmt: skip
    foreign = asked(tmp_path, "train.log", printed)
    rewritten = rewrite(foreign, Layout.parse({**foreign.layout.dump(), "tp": 4}))
    assert not rewritten.in_place
    assert "--tensor-model-parallel-size 4" in next(iter(rewritten.files.values()))


def other_layouts(settings: Settings, seed: int) -> Iterator[Layout]:
    """Layouts of the same devices and batch that are legal, and not the run's own."""
    rng = random.Random(seed)
    kept = ("devices", "global_batch", "precision")
    for _ in range(60):
        keys = {**random_layout(rng, settings.model.moe is not None)}
        keys |= {key: getattr(settings.layout, key) for key in kept} | {"offload": "none"}
        try:
            layout = Layout.parse(keys)
            check_layout(layout, settings.model, settings.run.seq_len)
        except UserError:
            continue
        if layout != settings.layout:
            yield layout


def outcome(folder: Path, trainer: str, settings: Settings, version: str | None, seed: int) -> str:
    """How a random run, written and read, took another layout: in place, whole, or refused by the trainer."""
    settings.version = version
    try:
        emitted: Emitted = emit(trainer, settings)
    except UserError:
        return "refused"
    name, text = next(iter(emitted.files.items()))
    for beside, content in emitted.files.items():
        (folder / beside).parent.mkdir(parents=True, exist_ok=True)
        (folder / beside).write_text(content)
    shape = folder / "model.yaml"
    shape.write_text(json.dumps(settings.model.dump()))
    foreign = asked(folder, name, text, str(shape) if trainer in BARE else None)
    for layout in other_layouts(settings, seed):
        try:
            rewritten = rewrite(foreign, layout)
        except UserError:
            continue
        if rewritten.in_place:
            again = asked(folder, f"again-{name}", next(iter(rewritten.files.values())),
                          str(shape) if trainer in BARE else None)  # fmt: skip
            assert rewritten.emitted is not None
            planned_name, planned = next(iter(rewritten.emitted.files.items()))
            whole = asked(folder, f"whole-{planned_name}", planned, str(shape) if trainer in BARE else None)
            assert again.layout == whole.layout
            dumps: list[dict[str, Any]] = [entry.run.dump() for entry in (foreign, again)]
            for dump in dumps:
                dump.pop("layout")
            assert dumps[0] == dumps[1]
        if not str(rewritten.why).startswith("torchtitan 0."):
            return "in place" if rewritten.in_place else "whole"
        continue  # this release has no words for it: the file of another one is no edit
    return "refused"


# The least share that is edited in place, as measured with a margin of a tenth: the rest is written whole.
TRAINERS = {
    "megatron": (None, 0.9),
    "torchtitan": ("0.2", 0.9),
    "deepspeed": (None, 0.9),
    "accelerate": (None, 0.9),
    "nanotron": (None, 0.9),
    "megatron-bridge": (None, 0.7),
    "torchtitan 0.3": ("0.3", 0.3),  # another recomputation is another class, which needs an import
}


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("count", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_random_runs_in_random_other_layouts(tmp_path: Path, trainer: str, count: int) -> None:
    version, least = TRAINERS[trainer]
    outcomes = [
        outcome(tmp_path, trainer.split()[0], settings, version, seed)
        for seed, settings in enumerate(random_runs(count, 20261126))
    ]
    taken = [item for item in outcomes if item != "refused"]
    assert "in place" in taken
    if count > 100:
        assert outcomes.count("in place") / len(taken) >= least, {o: outcomes.count(o) for o in set(outcomes)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("export CUDA_DEVICE_MAX_CONNECTIONS=1\n", "export CUDA_DEVICE_MAX_CONNECTIONS=8\n"),
        ('export CUDA_DEVICE_MAX_CONNECTIONS="1"\n', 'export CUDA_DEVICE_MAX_CONNECTIONS="8"\n'),
        ("export A=2 CUDA_DEVICE_MAX_CONNECTIONS=1 B=1\n", "export A=2 CUDA_DEVICE_MAX_CONNECTIONS=8 B=1\n"),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}\n",
         "export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-8}\n"),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=32\n", "export CUDA_DEVICE_MAX_CONNECTIONS=8\n"),
        ("", ""),
    ],
)  # fmt: skip
def test_megatron_s_fsdp_and_its_overlap_want_other_connections(tmp_path: Path, before: str, after: str) -> None:
    """Megatron-LM's validate_args stops `--use-megatron-fsdp` with 1, and tp or cp on a Hopper with another number."""
    foreign = asked(tmp_path, "pretrain.sh", SCRIPT.replace("#!/bin/bash\n", f"#!/bin/bash\n{before}"))
    sharded = rewrite(foreign, Layout.parse({**foreign.layout.dump(), "zero_stage": 2, "pp": 1}))
    edited = next(iter(sharded.files.values()))
    assert sharded.in_place
    assert after in edited
    assert "CONNECTIONS=1" not in edited
    again = asked(tmp_path, "sharded.sh", edited)
    back = rewrite(again, Layout.parse({**again.layout.dump(), "zero_stage": 1, "tp": 4}))
    assert back.in_place
    assert not re.search(r"CONNECTIONS(=|:-)\D*[^1]$", next(iter(back.files.values())), re.MULTILINE)


def test_a_first_layout_with_tensor_parallelism_needs_one_connection(tmp_path: Path) -> None:
    alone = SCRIPT.replace("TP=8", "TP=1").replace("    --sequence-parallel\n", "")
    foreign = asked(tmp_path, "pretrain.sh", alone)
    split = Layout.parse({**foreign.layout.dump(), "tp": 4, "sp": True})
    [note] = rewrite(foreign, split).notes
    assert note.startswith("export CUDA_DEVICE_MAX_CONNECTIONS=1: ")
    has_it = asked(tmp_path, "set.sh", alone.replace("TP=1", "export CUDA_DEVICE_MAX_CONNECTIONS=1; TP=1"))
    assert not rewrite(has_it, split).notes
