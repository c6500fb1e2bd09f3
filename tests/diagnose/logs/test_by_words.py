"""Step lines of many trainers, in forms of our own writing: the words that they share are enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.diagnose.logs.by_words import by_words
from scalewright.diagnose.logs.log import read_log

LINES: dict[str, tuple[str, dict[str, float | None]]] = {
    "llm.c": (
        "step    7/18865 | loss 11.007 (+nanz)| norm 15.1 (+nanz)| lr 8.57e-07 | 3056.36 ms | 171546 tok/s",
        {"step": 7, "loss": 11.007, "grad_norm": 15.1, "lr": 8.57e-7, "step_time_s": 3.05636, "tokens_per_s": 171546},
    ),
    "verl": (
        "(TaskRunner pid=1) step:7 - actor/pg_loss:0.01 - actor/grad_norm:0.2 - timing_s/gen:20.1 - timing_s/step:45.3",
        {"step": 7, "loss": 0.01, "grad_norm": 0.2, "step_time_s": 45.3},
    ),
    "OpenRLHF": (
        "Train step of epoch 0:   7%|7         | 7/100 [00:07<01:40,  1.02s/it, gpt_loss=2.37, loss_mean=2.4, lr=1e-6]",
        {"step": 7, "loss": 2.37, "step_time_s": 1.02, "lr": 1e-6},
    ),
    "Lightning": (
        "Epoch 0:  7%|#         | 70/1000 [01:07<10:00,  2.00it/s, v_num=0, train_loss=2.37]",
        {"step": 70, "loss": 2.37, "steps_per_s": 2.0},
    ),
    "torchtune": ("1|7|Loss: 1.237:   7%|#  | 7/100 [00:07<01:50,  1.02s/it]", {"step": 7, "loss": 1.237}),
    "fairseq": (
        '| INFO | train_inner | {"epoch": 1, "loss": "12.07", "ups": "1.2", "num_updates": "700", "gnorm": "1.2"}',
        {"step": 700, "loss": 12.07, "steps_per_s": 1.2, "grad_norm": 1.2},
    ),
    "lingua": (
        "step: 70  acc: 0  loss: 10.07  grad: 1.2e+00  flops: 4.12e+14  wps: 1.23e+04  iter: 0.82  lr: 3.00e-04",
        {"step": 70, "loss": 10.07, "grad_norm": 1.2, "tflops": 412.0, "step_time_s": None},
    ),
    "modded-nanogpt": ("step:7/1770 train_loss:4.07 train_time:861ms step_avg:123.47ms", {"step_time_s": 0.12347}),
    "picotron": (
        "Step: 7     | Loss: 10.87 | Global batch size:  1.02M | Tokens/s:  12.30K | Tokens/s/GPU:   1.54K |",
        {"step": 7, "loss": 10.87, "tokens_per_s": 12300, "tokens_per_s_per_device": 1540, "global_batch": None},
    ),
    "PaddleNLP": (
        "loss: 10.07, global_step: 7, interval_runtime: 3.127, interval_tokens_per_second_per_device: 2624.1",
        {"step": 7, "loss": 10.07, "step_time_s": 3.127, "tokens_per_s_per_device": 2624.1},
    ),
    "InternEvo": (
        "tflops=180.7 step=7 loss=10.1 tgs (tokens/gpu/second)=3000.1 lr=3e-04 fwd_bwd_time=3.1",
        {"step": 7, "loss": 10.1, "tflops": 180.7, "tokens_per_s_per_device": 3000.1},
    ),
    "JSON lines": ('{"step": 7, "loss": 2.37, "lr": 0.0003, "step_time": 3.17}', {"step": 7, "step_time_s": 3.17}),
    "a print": ("Step 7: loss = 2.37, time = 127.5ms", {"step": 7, "loss": 2.37, "step_time_s": 0.1275}),
    "seconds of an iteration": ("[Train] Step: 7/1000, Loss: 2.37, Time: 0.52s/it", {"step": 7, "step_time_s": 0.52}),
    "steps a second": ("global step 7, loss: 2.37, speed: 1.2 step/s", {"step": 7, "steps_per_s": 1.2}),
    "Weights & Biases' names": ("{'train/loss': 2.37, 'train/step': 7, 'time/step': 0.51}", {"step_time_s": 0.51}),
    "a print of seconds": ("Step 7: loss = 2.37, time = 127s", {"step": 7, "loss": 2.37, "step_time_s": None}),
    "parts of a step": ("step 7 | loss 2.37 | forward 12 ms | backward 24 ms", {"step": 7, "step_time_s": None}),
    "Levanter": (
        "INFO :: Progress on:train 7.00it/10.0kit rate:1.3s/it remaining:2:31:12 elapsed:00:15 postfix:loss=6.38",
        {"step": 7, "loss": 6.38, "step_time_s": 1.3},
    ),
    "Levanter, later": (
        "Progress on:train 1.21kit/10.0kit rate:2.1it/s remaining:1:12 elapsed:15:15 postfix:loss=3.4",
        {"step": 1210, "loss": 3.4, "steps_per_s": 2.1},
    ),
    "Composer's bar": (
        "train  Epoch   0:   7%|##    | 7/100 [00:10<01:00,  1.25s/ba, loss/train/total=6.4]",
        {"step": 7, "loss": 6.4, "step_time_s": 1.25},
    ),
    "torchtune's file": (
        "Step 7 | loss:6.4 lr:2e-05 tokens_per_second_per_gpu:6344.1",
        {"step": 7, "loss": 6.4, "tokens_per_s_per_device": 6344.1},
    ),
    "lingua's file": (
        '{"created_at": "2024-10-01T10:00", "global_step": 7, "optim/grad_norm": 0.5, "loss/out": 6.4}',
        {"step": 7, "loss": 6.4, "grad_norm": 0.5},
    ),
    "ms-swift's file": (
        '{"loss": 6.4, "train_speed(iter/s)": 0.8, "epoch": 0.1, "global_step/max_steps": "7/100"}',
        {"step": 7, "loss": 6.4, "steps_per_s": 0.8},
    ),
    "DeepSpeed-Chat": (
        "Epoch: 0 | Step: 7 | PPO Epoch: 1 | Actor Loss: 0.02 | Critic Loss: 0.5", {"step": 7, "loss": 0.02},
    ),
    "words and hyphens": (
        "| INFO | step 00000007/00000015 | step-time 28.823 sec | cross-entropy-loss 2.5949 | load-balance-loss 0.01 | "
        "gradient-norm 20.0672 | tokens-per-second 72,759 | peak-gpu-memory 63.84 GB",
        {"step": 7, "loss": 2.5949, "step_time_s": 28.823, "grad_norm": 20.0672, "tokens_per_s": 72759},
    ),
    "TRL's PPO": (
        "{'eps': 1, 'objective/kl': 10.5, 'loss/policy_avg': -0.0009, 'loss/value_avg': 0.15, 'episode': 816}",
        {"step": 816, "loss": -0.0009},
    ),
    "a bar of a later epoch": (
        "Epoch 2:  35%|███   | 7/20 [00:07<00:10,  1.95it/s, v_num=3, train_loss_step=2.3]", {"step": 47, "loss": 2.3},
    ),
    "a bar's global step": ("Epoch 2:  7%|# | 7/20 [00:07<00:10,  2.0s/it, loss=2.3, global_step=99]", {"step": 99}),
    "a validation's score beside a step": ("step:7 - actor/pg_loss:0.1 - val/test_score/gsm8k:0.2", {"loss": 0.1}),
    "PyTorch's examples": ("| epoch   1 |   200/ 2928 batches | lr 5.00 | ms/batch 12.34 | loss 8.17 |", {}),
}  # fmt: skip
OTHERS = (
    "step:0/1770 val_loss:10.82 train_time:0ms",
    "validation loss at iteration 10 | lm loss value: 2.3E+00",
    "Saving a checkpoint at step 7: the loss scale is 65536",
    "eval: step 7 loss 2.31",
    "Progress on:eval 7.00it/184it rate:1.3s/it remaining:1:12 elapsed:00:15 postfix:loss=6.38",
    "step 7 loss/val: 2.31",
    "loss=cross_entropy step=exact",
)


@pytest.mark.parametrize("name", LINES)
def test_a_step_s_line(name: str) -> None:
    line, expected = LINES[name]
    values = {key: float(value) for key, value in by_words(line)}
    assert {key: values.get(key) for key in expected} == pytest.approx(expected)
    assert bool(values) == bool(expected)  # without a step's number it isn't one


@pytest.mark.parametrize("line", OTHERS)
def test_other_lines_with_a_loss(line: str) -> None:
    assert not dict(by_words(line))


def test_a_log_of_such_lines(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"step:{n}/1770 train_loss:4.{n} step_avg:{100 + n}ms\n" for n in range(10, 30)))
    log = read_log(path)
    assert (log.framework, [step.step for step in log.steps]) == (None, [*range(10, 30)])
    assert log.steps[0].step_time_s == pytest.approx(0.11)


def test_steps_that_take_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    speed = "throughput/device/tokens_per_second=12,345"
    step = "olmo.train:967\t[step={0}/1000]\n    train/CrossEntropyLoss=10.{0}\n    " + speed + "\n"
    path.write_text("".join(step.format(n) for n in range(10, 20)))
    log = read_log(path)
    assert (log.framework, len(log.steps), log.steps[3].loss) == ("olmo", 10, 10.13)
    assert log.steps[3].tokens_per_s_per_device == 12345
