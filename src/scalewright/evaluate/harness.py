"""A model of ours under lm-evaluation-harness: the tasks that others report, scored in the same way.

    documents ──harness──► requests ──► tokens ──► our logits ──► log-likelihoods, texts ──harness──► scores

    loglikelihood           log p(continuation | context), and whether each of its tokens is the likeliest
    loglikelihood_rolling   log p(text), in windows of the model's length
    generate_until          text after a prompt, up to a stop string

A text that is too long loses its beginning, as in the harness's own models. Sums are in fp32.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor, nn

from scalewright.spec.ends import beginning, started
from scalewright.spec.errors import UserError, nearest

NOT_SCORES = ("alias", "sample_len")  # a name and a count among the metrics
MAX_NEW_TOKENS = 256  # where a task sets none, as in the harness's own models

# (context tokens of equal or unequal length, new tokens, temperature, stop strings) -> new tokens of each
Generate = Callable[[list[list[int]], int, float, list[str]], list[list[int]]]
Scored = tuple[float, bool]
Request = tuple[tuple[str, str], list[int], list[int]]  # texts, context tokens, continuation tokens


@dataclass(frozen=True)
class Subject:
    """A loaded model, with its properties that the harness needs."""

    model: nn.Module  # tokens [B, T] -> logits [B, T, V]
    tokenizer: Any  # tokenizers.Tokenizer
    generate: Generate
    end_of_text: int
    beginning: int  # the context where a request has none
    max_length: int
    vocabulary: int | None = None
    start: tuple[int, ...] | None = None  # the ids before a text; None: those of the tokenizer


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """A `Subject` as the harness's `LM`."""

    def __init__(self, subject: Subject, batch_size: int) -> None:
        super().__init__()
        self.subject, self.batch_size = subject, batch_size
        self._device = next(subject.model.parameters()).device
        self._start = subject.start if subject.start is not None else beginning(subject.tokenizer, {})

    @property
    def eot_token_id(self) -> int:
        return self.subject.end_of_text

    @property
    def prefix_token_id(self) -> int:
        return self.subject.beginning

    @property
    def max_length(self) -> int:
        """Tokens that a forward may have."""
        return self.subject.max_length

    @property
    def tokenizer_name(self) -> str:
        """Names no chat template: a checkpoint of ours has none."""
        return ""

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids, begun as in training (once), unless `add_special_tokens` is false."""
        ids: list[int] = self.subject.tokenizer.encode(string, add_special_tokens=False).ids
        return ids if add_special_tokens is False else started(ids, self._start)

    def tok_decode(self, tokens: Sequence[int]) -> str:
        """Text without special tokens."""
        text: str = self.subject.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def _loglikelihood_tokens(self, requests: Sequence[Request], **_: Any) -> list[Scored]:
        """Scores in the order of the requests; long ones first, so that a batch is of one length."""
        order = sorted(range(len(requests)), key=lambda n: -len(requests[n][1]) - len(requests[n][2]))
        scores: list[Scored] = [(0.0, False)] * len(requests)
        for batch in _batches(order, self.batch_size):
            for number, score in zip(batch, self._score([requests[n] for n in batch]), strict=True):
                scores[number] = score
                if requests[number][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[number][0], score)
        return scores

    @torch.inference_mode()
    def _score(self, requests: Sequence[Request]) -> Iterator[Scored]:
        """A batch, padded on the right: with causal attention padding changes nothing before it."""
        texts = [prefix + continuation for _, prefix, continuation in requests]
        rows = [text[-(self.max_length + 1) :][:-1] for text in texts]
        width = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=self._device)
        logits = self.subject.model(tokens)
        for row, values, (_, _, continuation) in zip(rows, logits, requests, strict=True):
            if len(continuation) > len(row):
                problem = f"a continuation has {len(continuation)} tokens, more than the model's {self.max_length}"
                raise UserError(problem, "--tasks", "evaluate with a longer --seq-len, or leave the task out")
            yield _sum(values[len(row) - len(continuation) : len(row)], continuation)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """log p of whole texts, each token given at most `max_length` before it; of what begins one, none."""
        windows, owners = list[Request](), list[int]()
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            parts = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1)
            for index, (prefix, continuation) in enumerate(map(make_disjoint_window, parts)):
                context = list(self._start) if index == 0 and self._start else prefix
                windows.append((None, context, continuation))  # type: ignore[arg-type]
                owners.append(number)
        totals = [0.0] * len(requests)
        for owner, (score, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[owner] += score
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Texts after prompts, without their stop strings."""
        texts = [""] * len(requests)
        groups = defaultdict[str, list[int]](list)
        for number, request in enumerate(requests):
            groups[repr(request.args[1])].append(number)
        for numbers in groups.values():
            for batch in _batches(numbers, self.batch_size):
                generated = self._generate([requests[n].args[0] for n in batch], requests[batch[0]].args[1])
                for number, text in zip(batch, generated, strict=True):
                    texts[number] = text
                    self.cache_hook.add_partial("generate_until", requests[number].args, text)
        return texts

    def _generate(self, prompts: list[str], request: Mapping[str, Any]) -> list[str]:
        settings = dict(normalize_gen_kwargs(request, MAX_NEW_TOKENS))
        end = self.subject.tokenizer.decode([self.eot_token_id], skip_special_tokens=False)
        stops = handle_stop_sequences(settings.get("until"), eos=end)
        count = min(int(settings["max_gen_toks"]), self.max_length - 1)
        temperature = float(settings.get("temperature") or 0.0) if settings.get("do_sample") else 0.0
        prompt_ids = [self.tok_encode(prompt)[-(self.max_length - count) :] for prompt in prompts]
        prompt_ids = [ids or [self.prefix_token_id] for ids in prompt_ids]
        new_tokens = self.subject.generate(prompt_ids, count, temperature, [stop for stop in stops if stop])
        return [postprocess_generated_text(self.tok_decode(tokens), stops, None) for tokens in new_tokens]


def _sum(logits: Tensor, continuation: list[int]) -> Scored:
    """log p of the continuation's tokens under logits [n, V], and whether each is the likeliest."""
    targets = torch.tensor(continuation, device=logits.device)
    logs = F.log_softmax(logits, dim=-1, dtype=torch.float32)
    chosen = logs.gather(1, targets[:, None])[:, 0]
    return float(chosen.sum()), bool((logs.argmax(dim=-1) == targets).all())


def _batches(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


def evaluate_tasks(
    subject: Subject, tasks: Sequence[str], folder: Path | None, limit: int | None, batch_size: int
) -> dict[str, object]:
    """`{results: {task: {metric: value}}, samples: {task: n}, versions, lm_eval}`; raises UserError."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    if folder is not None and not folder.is_dir():
        raise UserError("no such folder", f"--task-path {folder}", "give a folder with the tasks' YAML files")
    path = str(folder) if folder else None
    manager = TaskManager(include_path=path, include_defaults=folder is None)
    if folder is not None and not set(tasks) <= set(manager.all_tasks):
        manager = TaskManager(include_path=path)  # all of the harness's own: thousands of files are read
    for task in tasks:
        if task not in manager.all_tasks:
            near = nearest(task, manager.all_tasks)
            advice = f"did you mean {' or '.join(near)}?" if near else "`lm_eval ls tasks` lists them"
            raise UserError(f"no task '{task}'", "--tasks", f"{advice}; --task-path DIR adds your own")
    model, settings = HarnessModel(subject, batch_size), {"log_samples": False, "bootstrap_iters": 100}
    try:
        evaluation = lm_eval.simple_evaluate(
            model=model, tasks=list(tasks), limit=limit, task_manager=manager, **settings
        )
    except OSError as error:  # a data set or a metric of the Hub, such as HumanEval's code_eval
        raise UserError(str(error), f"--tasks {','.join(tasks)}", "have its files in HF_HOME's cache first") from error
    assert evaluation is not None
    results = {
        task: {key.removesuffix(",none"): value for key, value in scores.items() if key not in NOT_SCORES}
        for task, scores in evaluation["results"].items()
    }
    about = {"versions": dict(evaluation["versions"]), "lm_eval": lm_eval.__version__}
    samples = {task: counts["effective"] for task, counts in evaluation["n-samples"].items()}
    return {"results": results, "samples": samples} | about
