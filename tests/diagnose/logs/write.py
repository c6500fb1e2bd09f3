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


# The form of a line, whose log it is, and which of these it states.
TIME, LOSS, NORM, RATE, TFLOPS, LR = ("step_time_s", "loss", "grad_norm", "tokens_per_s_per_device", "tflops", "lr")
FORMS: dict[Line, tuple[str, set[str]]] = {
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
    neox: ("gpt-neox", {TIME, LOSS, LR, TFLOPS}),
}
VALUES = {TIME: 1.5, LOSS: 3.25, NORM: 0.5, RATE: 6344.0, TFLOPS: 400.0, LR: 0.00015}


def write(folder: Path, line: Line, steps: int = 12, before: str = "", name: str = "run.log") -> Path:
    """A log of so many steps of 1.5 s at a loss of 3.25, after other lines."""
    path = folder / name
    lines = [line(step, VALUES[TIME], VALUES[LOSS]) for step in range(1, steps + 1)]
    path.write_text(before + "\n".join(lines) + "\n", newline="")
    return path
