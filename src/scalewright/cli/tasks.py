"""`scalewright evaluate MODEL --tasks NAME,...`: the tasks of lm-evaluation-harness, as JSON or a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalewright.cli.output import print
from scalewright.spec.errors import UserError


def score_tasks(
    model: Path,
    tasks: str,
    folder: Path | None,
    limit: int | None,
    batch_size: int,
    seq_len: int | None,
    device: str,
    trust_code: bool = False,
    verify: bool = True,
) -> dict[str, object]:
    """The scores of a model at a path, with the keys of `evaluate_tasks`; raises UserError."""
    from scalewright.cli.options import check_device

    names = [name.strip() for name in tasks.split(",") if name.strip()]
    if not names:
        raise UserError("no task is named", "--tasks", "give names, such as --tasks hellaswag,lambada_openai")
    check_device(device)
    from scalewright.evaluate.harness import Subject, evaluate_tasks
    from scalewright.serve.generate import generate
    from scalewright.serve.load import load_for_generation
    from scalewright.serve.text import holds_stop

    loaded = load_for_generation(str(model), device=device, trust_code=trust_code, verify=verify)
    if loaded.end is None:
        raise UserError(
            "the tokenizer has no token that ends a text",
            str(model),
            "add tokenizer_config.json with its eos_token beside tokenizer.json",
        )
    end = loaded.end
    spec = getattr(loaded.model, "spec", None)

    def write(prompts: list[list[int]], count: int, temperature: float, stops: list[str]) -> list[list[int]]:
        return generate(
            loaded.model,
            prompts,
            count,
            temperature=temperature,
            stop=sorted(loaded.end_of_text),
            ends=lambda tokens: holds_stop(loaded.decode, tokens, stops),
        )

    subject = Subject(
        loaded.model,
        loaded.tokenizer,
        write,
        end_of_text=end,
        beginning=loaded.beginning if loaded.beginning is not None else end,
        max_length=seq_len or (spec.context if spec is not None else 2048),
        start=loaded.start,
    )
    return evaluate_tasks(subject, names, folder, limit, batch_size)


def show_scores(evaluation: Mapping[str, Any]) -> None:
    from scalewright.cli.terminal import print_table

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
