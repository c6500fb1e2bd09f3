"""Hugging Face's Llama: in a bare loop, and under its Trainer.

The Trainer has a loop of its own, so it runs in a thread that a gate holds between segments:

    on_step_begin: enough steps? -> tell the timer, wait for the next segment

A segment thus holds everything that the Trainer does for a step, its data loader and its log included.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, SequentialSampler
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging

from harness.bare import BareLoop
from harness.setting import Setting
from scalewright.model.huggingface import write_huggingface

Samples = list[tuple[Tensor, Tensor]]


def llama(setting: Setting) -> Any:
    """transformers' model of the setting's shape, with the weights that everyone starts from, in fp32."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    folder = setting.work / "hugging-face"
    if not (folder / "config.json").exists():
        weights = setting.decoder().state_dict()
        write_huggingface(folder, setting.model, weights.__getitem__)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model.config.use_cache = False
    return model.train()


def bare_llama(name: str, setting: Setting, samples: Samples, precision: str) -> BareLoop:
    """The plain loop over transformers' model."""
    model = llama(setting)
    return BareLoop(name, setting, model, lambda tokens: model(tokens).logits, samples, precision)


class TrainerLoop:
    """`transformers.Trainer` with fused AdamW; bf16 is its own `bf16=True`."""

    def __init__(self, name: str, setting: Setting, samples: Samples, *, bf16: bool) -> None:
        self.name, self.precision = name, "bf16-mixed (its bf16=True)" if bf16 else "fp32"
        spec = setting.optimizer
        arguments = TrainingArguments(
            output_dir=str(setting.work / name.replace(" ", "-")),
            per_device_train_batch_size=setting.batch,
            max_steps=len(samples),
            learning_rate=spec.lr,
            lr_scheduler_type="constant",
            weight_decay=spec.weight_decay,
            adam_beta1=spec.betas[0],
            adam_beta2=spec.betas[1],
            adam_epsilon=spec.eps,
            max_grad_norm=spec.clip_norm,
            optim="adamw_torch_fused",
            bf16=bf16,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,  # ours writes every step down, too
            logging_nan_inf_filter=False,
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        self.gate = _Gate()
        trainer = _InOrder(model=llama(setting), args=arguments, train_dataset=_Rows(samples))
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(self.gate)
        self.thread = threading.Thread(target=self._train, args=(trainer,), daemon=True)
        self.threads = torch.get_num_threads()
        self.error: BaseException | None = None

    def run(self, steps: int) -> list[float]:
        """The next steps; the losses that it has logged meanwhile."""
        before = len(self.gate.losses)
        self.gate.open(steps)
        if not self.thread.is_alive() and not self.gate.ended:
            self.thread.start()
        self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.gate.losses[before:]

    def close(self) -> None:
        """Lets the Trainer end."""
        self.gate.end()
        self.thread.join(60)

    def _train(self, trainer: Trainer) -> None:
        torch.set_num_threads(self.threads)
        try:
            trainer.train()
        except BaseException as error:
            self.error = error
        finally:
            self.gate.leave()


class _Gate(TrainerCallback):
    """Stops the Trainer before a step when a segment's steps are done."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.ended = False
        self._left = 0
        self._go, self._done = threading.Event(), threading.Event()

    def open(self, steps: int) -> None:
        """Lets some steps through."""
        self._left = steps
        self._done.clear()
        self._go.set()

    def wait(self) -> None:
        """Until they are done."""
        self._done.wait()

    def end(self) -> None:
        """Lets the Trainer out."""
        self.ended = True
        self._go.set()

    def leave(self) -> None:
        """The Trainer has gone."""
        self._done.set()

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self._left == 0:
            self._go.clear()
            self._done.set()
            self._go.wait()
        self._left -= 1

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        control.should_training_stop = control.should_training_stop or self.ended

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        if logs and "loss" in logs:
            self.losses.append(float(logs["loss"]))


class _Rows(Dataset):  # type: ignore[type-arg]
    """Samples row by row. The targets are already shifted, which `shift_labels` tells the model's loss."""

    def __init__(self, samples: Samples) -> None:
        self.tokens = torch.cat([tokens for tokens, _ in samples])
        self.targets = torch.cat([targets for _, targets in samples])

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        targets = self.targets[index]
        return {"input_ids": self.tokens[index], "labels": targets, "shift_labels": targets}


class _InOrder(Trainer):
    """Takes the samples in the order in which everyone takes them."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        rows: Any = self.train_dataset
        return SequentialSampler(rows)
