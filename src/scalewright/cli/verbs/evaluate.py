"""`scalewright evaluate MODEL_OR_RUN [--data DIR]`: validation loss and bits per byte, outside of a run.

`scalewright evaluate MODEL --tasks NAME,...`: the tasks of lm-evaluation-harness, as JSON or a table.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from scalewright.cli.options import Device, Json, NoVerify, TrustCode, argument, check_device, flag, option
from scalewright.cli.output import only_answer, print, print_json, working
from scalewright.cli.terminal import print_table
from scalewright.spec.common.heartbeat import Heartbeat
from scalewright.spec.common.urls import local_or_url
from scalewright.spec.errors import UserError

if TYPE_CHECKING:
    from scalewright.spec.run import DataSpec, PythonRef, RunSpec


def evaluate(
    model: Annotated[Path, argument("MODEL_OR_RUN", "A run's folder, a checkpoint or a Hugging Face folder.")],
    data: Annotated[Path | None, option("DIR", "Prepared data; default: the run's own.")] = None,
    seq_len: Annotated[int | None, flag("Tokens per sequence; default: the run's own.", min=2)] = None,
    batches: Annotated[int | None, flag("Batches of the run's size; default: as the run, else 16 of 1.", min=1)] = None,
    tasks: Annotated[str | None, option("NAME,...", "Tasks of lm-evaluation-harness, in the place of a loss.")] = None,
    task_path: Annotated[Path | None, option("DIR", "A folder with task files of your own.")] = None,
    limit: Annotated[int | None, flag("Only so many documents of each task.", min=1)] = None,
    batch_size: Annotated[int | None, flag("Rows at a time, for tasks; 8 unless said.", min=1)] = None,
    device: Device = "cpu",
    trust_code: TrustCode = False,
    no_verify: NoVerify = False,
    json: Json = False,
) -> None:
    """Measure validation loss and bits per byte, or the tasks of lm-evaluation-harness."""
    if model.is_file():
        how = "give a run's out_dir, a checkpoint or a model's folder"
        raise UserError("it is a file, not a folder", str(model), how)
    if tasks is not None:
        _check_flags({"--data": data, "--batches": batches}, "--tasks", "it is about the validation loss")
        with only_answer(json), Heartbeat(f"evaluating {tasks}"):  # beside the harness's own bars
            rows = batch_size or 8
            scores = score_tasks(model, tasks, task_path, limit, rows, seq_len, device, trust_code, not no_verify)
        print_json(scores) if json else show_scores(scores)
        return
    flags: dict[str, object] = {"--task-path": task_path, "--limit": limit, "--batch-size": batch_size}
    _check_flags(flags, "a loss", "or add --tasks NAME")
    with only_answer(json), working("evaluating"):
        figures = measure(model, data, seq_len, batches, device, trust_code, not no_verify)
    if json:
        print_json(figures)
        return
    per_byte = figures["bits_per_byte"]
    print(f"loss           {figures['loss']:.4f} nats per token")
    print("bits per byte  " + (f"{per_byte:.4f}" if per_byte is not None else "unknown: the data has no text"))
    print(f"over           {_over(figures)}")


def _over(figures: Mapping[str, float | int | None]) -> str:
    tokens, held_out = figures["tokens"], figures["held_out_tokens"]
    if held_out is None:
        return f"{tokens:,} held-out tokens"
    if tokens == held_out:
        return f"all {tokens:,} held-out tokens"
    return f"{tokens:,} of {held_out:,} held-out tokens (--batches takes more)"


def _check_flags(flags: dict[str, object], beside: str, how: str) -> None:
    for name, value in flags.items():
        if value is not None:
            raise UserError(f"{name} has no meaning for {beside}", name, f"remove it ({how})")


def measure(
    model: Path, data: Path | None, seq_len: int | None, batches: int | None, device: str, trust_code: bool = False,
    verify: bool = True,
) -> dict[str, float | int | None]:  # fmt: skip
    """`{loss, bits_per_byte, tokens, held_out_tokens}` of a model on validation data, counted as in its run.

    `tokens` were evaluated, of the `held_out_tokens` that there are (None for data of the user's own class).
    """
    import torch

    from scalewright.checkpoint.store.bring import bring
    from scalewright.data.dataset import TokenDataset, open_data
    from scalewright.evaluate.validate import validate
    from scalewright.parallel.mesh import make_mesh
    from scalewright.serve.load import load_model
    from scalewright.spec.grid import make_grid
    from scalewright.spec.layout import Layout
    from scalewright.spec.run import PythonRef
    from scalewright.spec.user_code import check_trusted
    from scalewright.train.batches import in_vocabulary
    from scalewright.train.initial import odd_beginning, start_of_texts

    check_device(device)
    model = bring(model)
    run = _run_of(model)
    spec = _data(model, run, data, seq_len)
    if isinstance(spec, PythonRef):  # of the folder's own run.yaml
        check_trusted(spec.python, str(model), trust_code)
    dataset = open_data(spec, "valid", run.seed if run else 0)
    network = load_model(model, device=device, trust_code=trust_code, verify=verify)
    known, size = getattr(getattr(network, "spec", None), "vocab_size", None), dataset.vocab_size
    if size is not None and known is not None and size > known:
        how = "prepare the data with the model's tokenizer.json"
        raise UserError(f"the data's vocabulary {size} is more than the model's {known}", "--data", how)
    if verify:
        _check_tokenizer(model, dataset.tokenizer_path)
    dataset = in_vocabulary(dataset, known)
    for line in odd_beginning(dataset, start_of_texts(model), str(model)):
        print(line, file=sys.stderr)
    mesh = make_mesh(make_grid(Layout()), 0, torch.device(device))
    layout = run.layout if run else Layout()
    count = batches or (run.train.valid_batches if run else 16)
    samples = count * layout.global_batch
    score = validate(network, dataset, mesh, layout.micro_batch, samples)
    assert score is not None  # nothing stops it
    whole = dataset.targets if isinstance(dataset, TokenDataset) else None
    return {
        "loss": score.loss,
        "bits_per_byte": score.bits_per_byte,
        "tokens": score.tokens,
        "held_out_tokens": score.tokens if samples >= len(dataset) else whole,
    }


def _run_of(model: Path) -> RunSpec | None:
    from scalewright.spec.run import load_run

    if not model.exists():
        raise UserError("no such folder", str(model), "give a run's folder, a checkpoint or a Hugging Face folder")
    for folder in (model, *model.resolve().parents[:2]):
        if (folder / "run.yaml").is_file() and (folder / "checkpoints").is_dir():
            return load_run(folder / "run.yaml")
    return None


def _data(model: Path, run: RunSpec | None, data: Path | None, seq_len: int | None) -> DataSpec | PythonRef:
    from scalewright.spec.run import DataSpec

    source = run.data if run else None
    if data is not None:
        length = seq_len or (source.seq_len if isinstance(source, DataSpec) else 1024)
        return DataSpec.parse({"train": local_or_url(data), "valid": local_or_url(data), "seq_len": length}, "--data")
    if source is None or (isinstance(source, DataSpec) and not source.valid):
        raise UserError("no validation data is known", str(model), "add --data DIR, a folder that `prepare` wrote")
    if isinstance(source, DataSpec) and seq_len is not None:
        return source.replace(seq_len=seq_len)
    return source


def _check_tokenizer(model: Path, path: Path | None) -> None:
    """Raises UserError for data of another tokenizer than the model's: its ids are other words there."""
    from scalewright.checkpoint.read import text_files
    from scalewright.data.tokenizer import read_tokenizer

    folder = next((place for place in text_files(model)[0] if (place / "tokenizer.json").is_file()), None)
    if path is None or folder is None:
        return
    words, known = read_tokenizer(path), read_tokenizer(folder)
    shared = min(words.get_vocab_size(), known.get_vocab_size())
    if any(words.id_to_token(number) != known.id_to_token(number) for number in range(shared)):
        fix = f"prepare the data with --tokenizer {folder}, or add --no-verify"
        raise UserError("the data's tokenizer is not the model's: the same ids are other words", str(path), fix)


def score_tasks(
    model: Path, tasks: str, folder: Path | None, limit: int | None, batch_size: int, seq_len: int | None, device: str,
    trust_code: bool = False, verify: bool = True,
) -> dict[str, object]:  # fmt: skip
    """The scores of a model at a path, with the keys of `evaluate_tasks`; raises UserError."""
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    if not names:
        raise UserError("no task is named", "--tasks", "give names, such as --tasks hellaswag,lambada_openai")
    check_device(device)
    from scalewright.evaluate.harness import Subject, evaluate_tasks
    from scalewright.serve.generate import tokens_of
    from scalewright.serve.load import load_for_generation
    from scalewright.serve.request import Request
    from scalewright.serve.sampling import Sampling

    loaded = load_for_generation(str(model), device=device, trust_code=trust_code, verify=verify)
    if loaded.end is None:
        how = "add tokenizer_config.json with its eos_token beside tokenizer.json"
        raise UserError("the tokenizer has no token that ends a text", str(model), how)
    end = loaded.end
    spec = getattr(loaded.model, "spec", None)

    def write(prompts: list[list[int]], count: int, temperature: float, stops: list[str]) -> list[list[int]]:
        drawn = [Sampling(temperature, seed=row) for row in range(len(prompts))]
        rows = zip(prompts, drawn, strict=True)
        return tokens_of(loaded, [Request(prompt, count, sampling, tuple(stops)) for prompt, sampling in rows])

    subject = Subject(
        loaded.model, loaded.tokenizer, write, end_of_text=end, start=loaded.start,
        beginning=loaded.beginning if loaded.beginning is not None else end,
        max_length=seq_len or (spec.context if spec is not None else 2048),
    )  # fmt: skip
    return evaluate_tasks(subject, names, folder, limit, batch_size)


def show_scores(evaluation: Mapping[str, Any]) -> None:
    rows = []
    for task, scores in evaluation["results"].items():
        for metric, value in scores.items():
            if "_stderr" in metric or not isinstance(value, (int, float)):
                continue
            name, comma, kind = metric.partition(",")
            error = scores.get(f"{name}_stderr{comma}{kind}")
            band = f"± {error:.4f}" if isinstance(error, float) and error == error else ""
            rows.append((task, metric, f"{value:.4f}", band, evaluation["samples"].get(task)))
    print_table(("task", "metric", "value", "error", "samples"), rows)
    print(f"lm-evaluation-harness {evaluation['lm_eval']}")
