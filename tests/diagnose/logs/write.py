"""Logs in the forms of trainers, of made-up runs: steps 1 to n with given times and losses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Line = Callable[[int, float, float], str]  # step, seconds, loss


def megatron_2021(step: int, seconds: float, loss: float) -> str:
    return (
        f" iteration {step:8d}/    1000 | consumed samples: {step * 64:12d} | elapsed time per "
        f"iteration (ms): "
        f"{seconds * 1000:.1f} | learning rate: 1.500E-04 | global batch size:    64 | lm loss: {loss:.6E} | "
        "loss scale: 65536.0 | grad norm: 0.500 | number of skipped iterations:   0 | number of nan "
        "iterations:"
        "   0 |"
    )


def megatron_2026(step: int, seconds: float, loss: float) -> str:
    stamp = f"2026-09-23 03:{step // 60 % 60:02}:{step % 60:02}.284603"
    return f" [{stamp}]" + (
        f" iteration {step:8d}/    1000 | consumed samples: {step * 64:12d} | elapsed time per "
        f"iteration (ms): "
        f"{seconds * 1000:.1f} | throughput per GPU (TFLOP/s/GPU): 400.0 | learning rate: 1.500000E-04 | "
        f"global batch size:    64 | lm loss: {loss:.6E} | grad norm: 0.500 | number of skipped "
        f"iterations:   0 |"
    )


def bridge(step: int, seconds: float, loss: float) -> str:
    line = megatron_2026(step, seconds, loss)
    return line[line.index(" iteration") :]


def bridge_step_time(step: int, seconds: float, loss: float) -> str:
    return f"Step Time : {seconds:.2f}s GPU utilization: 400.0MODEL_TFLOP/s/GPU"


def nemo(step: int, seconds: float, loss: float) -> str:
    return (
        f"[default0]:Training epoch 0, iteration {step}/99 | lr: 0.00015 | global_batch_size: 64 | "
        f"global_step: {step} | reduced_train_loss: {loss:.4g} | train_step_timing in s: {seconds:.4g}"
    )


def nemo_bar(step: int, seconds: float, loss: float) -> str:
    return (
        f"\rEpoch 0: : 1%|#   | {step}/99 [v_num=1, reduced_train_loss={loss:.4g}, global_step={step}.0, "
        f"train_step_timing in s={seconds:.4g}]"
    )


def titan(step: int, seconds: float, loss: float) -> str:
    return (
        f"[rank0]:[titan] 2025-06-04 11:{step // 60 % 60:02}:{step % 60:02},404 - root - INFO - step: "
        f"{step:2d}  "
        f"loss: {loss:7.4f}  grad_norm:  0.5000  memory: 30.89GiB(32.51%)  tps: 6,344  tflops: 400.00  "
        f"mfu: 40.0%"
    )


def titan_2024(step: int, seconds: float, loss: float) -> str:
    line = titan(step, seconds, loss).replace("tps", "wps").replace("  tflops: 400.00", "")
    return line.replace("  grad_norm:  0.5000", "").replace("[titan] ", "")


def titan_colours(step: int, seconds: float, loss: float) -> str:
    return titan(step, seconds, loss).replace("loss:", "\x1b[32mloss:").replace("step:", "\x1b[36mstep:")


def nanotron(step: int, seconds: float, loss: float) -> str:
    return (
        f"12/21 01:39:51 [INFO|DP=0|TP=0|node7]: iteration: {step} / 1000 | consumed_tokens: 480B | "
        f"time_per_iteration_ms: {seconds:.3g}K | tokens_per_sec: 182K | tokens_per_sec_per_gpu: 6.344K | "
        f"global_batch_size: 1.6M | grad_norm: 0.5 | lm_loss: {loss:.4g} | lr: 0.00015 | "
        "model_tflops_per_gpu: 400 | eta: 1 day, 1:45:39"
    )


def litgpt(step: int, seconds: float, loss: float) -> str:
    return f"Epoch 1 | iter {step} step {step // 2} | loss train: {loss:.3f}, val: n/a | iter time: " + (
        f"{seconds * 1000:.2f} ms (step)"
    )


def litgpt_2023(step: int, seconds: float, loss: float) -> str:
    return f"iter {step} step {step // 2}: loss {loss:.4f}, iter time: {seconds * 1000:.2f}ms (optimizer.step)"


def nanogpt(step: int, seconds: float, loss: float) -> str:
    return f"iter {step}: loss {loss:.4f}, time {seconds * 1000:.2f}ms, mfu 31.31%"


def nanochat(step: int, seconds: float, loss: float) -> str:
    return (
        f"step {step:05d}/21400 ({step / 214:.2f}%) | loss: {loss:.6f} | lrm: 1.00 | dt: {seconds * 1000:.2f}ms | "
        f"tok/sec: {int(524288 / seconds):,} | mfu: 24.71 | total time: 0.02m"
    )


def maxtext(step: int, seconds: float, loss: float) -> str:
    return (
        f"completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: 400.000, Tokens/s/device: "
        f"6344.000, "
        f"total_weights: 196608, loss: {loss:.3f}"
    )


def composer(step: int, seconds: float, loss: float) -> str:
    return (
        f"[batch={step}/1000]:\n\t Train time/epoch: 0\n\t Train loss/train/total: {loss:.4f}\n"
        f"\t Train metrics/train/LanguageCrossEntropy: {loss:.4f}\n\t Train "
        f"throughput/device/tokens_per_sec: 6344.0"
    )


def trainer(step: int, seconds: float, loss: float) -> str:
    return (
        f"{{'loss': {loss:.4f}, 'grad_norm': 0.5, 'learning_rate': 0.00015, 'epoch': {step / 100:.2f}}}\n"
        "{'eval_loss': 9.0, 'eval_runtime': 2.0, 'epoch': 0.5}"
    )


def factory(step: int, seconds: float, loss: float) -> str:
    return f'{{"current_steps": {step}, "total_steps": 240, "loss": {loss:.4f}, "lr": 0.00015, "epoch": 0.1}}'


def ours(step: int, seconds: float, loss: float) -> str:
    return (
        f'{{"kind": "train", "step": {step}, "loss": {loss!r}, "grad_norm": 0.5, "lr": 0.00015, '
        f'"step_time_s": {seconds!r}, "tokens_per_s": 50752.0, "memory_gib": 1.5}}'
    )


def deepspeed(step: int, seconds: float, loss: float) -> str:
    stamp = "2023-04-18 01:46:59,142"
    return (
        f"[{stamp}] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0, lr=[0.00015], "
        f"mom=[(0.9, 0.95)]\n"
        f"[{stamp}] [INFO] [timer.py:199:stop] epoch=0/micro_step={step}/global_step={step}, "
        f"RunningAvgSamplesPerSec="
        "173.4, CurrSamplesPerSec=171.9, MemAllocated=3.96GB, MaxMemAllocated=22.95GB"
    )


def pipeline(step: int, seconds: float, loss: float) -> str:
    return f"steps: {step} loss: {loss:.4f} iter time (s): {seconds:.3f} samples/sec: 51.2"


def megatron_deepspeed(step: int, seconds: float, loss: float) -> str:
    return deepspeed(step, seconds, loss).split("\n")[1] + "\n" + megatron_2021(step, seconds, loss)


def neox(step: int, seconds: float, loss: float) -> str:
    return (
        f" samples/sec: 51.2 | iteration {step:8d}/    1000 | elapsed time per iteration (ms): "
        f"{seconds * 1000:.1f} | "
        f"learning rate: 1.500E-04 | approx flops per GPU: 400.0TFLOPS | lm_loss: {loss:.6E} | number "
        f"of skipped "
        "iterations:   0 | number of nan iterations:   0 |"
    )


def equals(step: int, seconds: float, loss: float) -> str:
    return (
        f"[2024-07-10 21:{step:02}:02.135126][INFO][training:1885] - iteration={step:8d}/  317892 | "
        f"consumed_samples= {step * 64} | elapsed_time_per_iteration_ms={seconds * 1000} | learning_rate=0.00015 | "
        f"global_batch_size=   64 | lm loss={loss} | loss_scale=1.0 | grad_norm=0.5 | actual_seqlen= 4096 | "
        "number_of_skipped_iterations=  0 | samples_per_second=42.6 | tokens_per_gpu_per_second_tgs=6344.0 | "
        "[LM]TFLOPs=400.0 | [DS]TFLOPs=499.2 |"
    )


def equals_seconds(step: int, seconds: float, loss: float) -> str:
    return (
        f"iteration= {step}/ 500 | elapsed_time_per_iteration_s={seconds} | learning_rate=1.5e-04 | lm_loss={loss} | "
        "step=7 | global_step=70 | grad_norm=0.5"
    )


def lm_loss(step: int, seconds: float, loss: float) -> str:
    return f" iteration {step}/ 9 | elapsed time per iteration (ms): {seconds * 1000} | lm-loss: {loss:.6E} | "


def deepspeed_two_numbers(step: int, seconds: float, loss: float) -> str:
    return deepspeed(step + 5000, seconds, loss).replace(f"global_step={step + 5000}", f"global_step={step}")


def deepspeed_2021(step: int, seconds: float, loss: float) -> str:
    return f"[2021-04-18 01:46:59,142] [INFO] [timer.py:181:stop] 0/{step}, SamplesPerSec=6.67"


def factory_time(step: int, seconds: float, loss: float) -> str:
    whole = int(step * seconds * 2)
    return (
        f'{{"current_steps": {2 * step}, "total_steps": 1752, "loss": {loss}, "lr": 0.00015, "epoch": 0.01, '
        f'"elapsed_time": "1 day, 0:{whole // 60:02}:{whole % 60:02}", "remaining_time": "0:59:13"}}'
    )


def swift(step: int, seconds: float, loss: float) -> str:
    return (
        f"{{'loss': {loss}, 'grad_norm': 0.5, 'learning_rate': 0.00015, 'memory(GiB)': 33.2, "
        f"'train_speed(iter/s)': {1 / seconds}, 'epoch': 0.01, 'global_step/max_steps': '{step}/500', "
        "'percentage': '2.00%', 'elapsed_time': '1m 5s', 'remaining_time': '9m 5s'}"
    )


def open_lm(step: int, seconds: float, loss: float) -> str:
    return (
        f"2024-03-01,10:00:00 | INFO | Train Epoch: 0 [{step * 100:>8}/1000000 (1%)] Loss: {loss} Data (t): 0.012 "
        f"Batch (t): {seconds}, 204.8/s, 25.6/s/gpu LR: 0.000150 Logit Scale: 14.3"
    )


def xtuner(step: int, seconds: float, loss: float) -> str:
    return (
        f"2024/03/01 10:00:00 - mmengine - INFO - Iter(train) [{step:>5}/1000]  lr: 1.5000e-04  eta: 1:00:00  "
        f"time: {seconds}  data_time: 0.01  memory: 12345  loss: {loss}  grad_norm: 0.5"
    )


def megatron_llm(step: int, seconds: float, loss: float) -> str:
    return megatron_2021(step, seconds, loss).replace("| learning", "| rate (tokens/sec): 52428.80 | learning")


def fms(step: int, seconds: float, loss: float) -> str:
    return (
        f"step: {step}\nloss: {loss}\nLR: 0.00015\ntokens seen: {step * 524288}\ngradient norm: 0.5\n"
        f"reserved memory: 99\ncurrent step time: {seconds}\noverall step time: 9.5\n"
        "current token per gpu per sec: 6344\noverall token per gpu per sec: 61\noverall token per day: 12345678\n"
    )


def easylm(step: int, seconds: float, loss: float) -> str:
    return (
        f"\n{{'accuracy': 0.1,\n 'gradient_norm': array(0.5, dtype=float32),\n 'learning_rate': 0.00015,\n"
        f" 'loss': {loss},\n 'param_norm': 512.0,\n 'step': {step}}}\n"
    )


def nemo_rl(step: int, seconds: float, loss: float) -> str:
    return (
        f"\n{'=' * 25} Step {step}/1000 {'=' * 25}\nPreparing batch...\nTraining Results:\n  • Loss: {loss}\n"
        f"  • Avg Reward: 0.41\n\nTiming:\n  • Total step time: {seconds}s\n  • policy_training: 12.1s (26.7%)"
    )


# The form of a line, whose log it is, and which of these it states.
TIME, LOSS, NORM, RATE, TFLOPS, LR = ("step_time_s", "loss", "grad_norm", "tokens_per_s_per_device", "tflops", "lr")
FORMS: dict[Line, tuple[str | None, set[str]]] = {
    megatron_2021: ("megatron-lm", {TIME, LOSS, NORM, LR}),
    megatron_2026: ("megatron-lm", {TIME, LOSS, NORM, LR, TFLOPS}),
    bridge: ("megatron-bridge", {TIME, LOSS, NORM, LR, TFLOPS}),
    bridge_step_time: ("megatron-bridge", {TIME, TFLOPS}),
    nemo: ("nemo", {TIME, LOSS, LR}),
    nemo_bar: ("nemo", {TIME, LOSS}),
    titan: ("torchtitan", {LOSS, NORM, RATE, TFLOPS}),
    titan_2024: ("torchtitan", {LOSS, RATE}),
    titan_colours: ("torchtitan", {LOSS, NORM, RATE, TFLOPS}),
    nanotron: ("nanotron", {TIME, LOSS, NORM, LR, RATE, TFLOPS}),
    litgpt: ("litgpt", {TIME, LOSS}),
    litgpt_2023: ("litgpt", {TIME, LOSS}),
    nanogpt: ("nanogpt", {TIME, LOSS}),
    nanochat: ("nanochat", {TIME, LOSS}),
    maxtext: ("maxtext", {TIME, LOSS, RATE, TFLOPS}),
    composer: ("composer", {LOSS, RATE}),
    trainer: ("hf-trainer", {LOSS, NORM, LR}),
    factory: ("hf-trainer", {LOSS, LR}),
    ours: ("scalewright", {TIME, LOSS, NORM, LR}),
    deepspeed: ("deepspeed", {LR}),
    pipeline: ("deepspeed", {TIME, LOSS}),
    megatron_deepspeed: ("megatron-deepspeed", {TIME, LOSS, NORM, LR}),
    equals: ("megatron-deepspeed", {TIME, LOSS, NORM, LR, RATE, TFLOPS}),
    equals_seconds: ("megatron-deepspeed", {TIME, LOSS, NORM, LR}),
    lm_loss: ("megatron-lm", {TIME, LOSS}),
    deepspeed_two_numbers: ("deepspeed", {LR}),
    deepspeed_2021: ("deepspeed", set()),
    factory_time: ("hf-trainer", {LOSS, LR}),
    swift: ("hf-trainer", {TIME, LOSS, NORM, LR}),
    open_lm: ("open_lm", {TIME, LOSS, LR}),
    xtuner: ("xtuner", {TIME, LOSS, NORM, LR}),
    megatron_llm: ("megatron-lm", {TIME, LOSS, NORM, LR}),
    fms: (None, {TIME, LOSS, NORM, LR, RATE}),
    easylm: (None, {LOSS, NORM, LR}),
    nemo_rl: (None, {TIME, LOSS}),
    neox: ("gpt-neox", {TIME, LOSS, LR, TFLOPS}),
}
VALUES = {TIME: 1.5, LOSS: 3.25, NORM: 0.5, RATE: 6344.0, TFLOPS: 400.0, LR: 0.00015}


def write(folder: Path, line: Line, steps: int = 12, before: str = "", name: str = "run.log") -> Path:
    """A log of so many steps of 1.5 s at a loss of 3.25, after other lines."""
    path = folder / name
    lines = [line(step, VALUES[TIME], VALUES[LOSS]) for step in range(1, steps + 1)]
    path.write_text(before + "\n".join(lines) + "\n", newline="")
    return path
