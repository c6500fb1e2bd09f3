"""Keys of torchtitan 0.2 that mean the same as ours, with their defaults, and what other releases call them."""

from __future__ import annotations

from scalewright.emit.rules import words_for
from scalewright.emit.tables import keys_for

LAYOUT = words_for("torchtitan, layout")
TRAINING = words_for("torchtitan, training")
# Names of 0.1, by those of 0.2; 2024's are further below
V01 = {
    "lr_scheduler.min_lr_factor": "lr_scheduler.lr_min", "checkpoint.enable": "checkpoint.enable_checkpoint",
    "checkpoint.last_save_model_only": "checkpoint.last_save_model_weights_only", "debug.seed": "training.seed",
    "debug.deterministic": "training.deterministic", "compile.enable": "training.compile",
    "model.hf_assets_path": "model.tokenizer_path", "quantize.linear.float8.recipe_name": "float8.recipe_name",
    "quantize.linear.mx.recipe_name": "mx.recipe_name",
}  # fmt: skip
V2024 = {
    "training.batch_size": "training.local_batch_size",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    **{key: f"parallelism.{key.partition('.')[2]}" for key in keys_for("torchtitan, until 2024")},
    "optimizer.min_lr_factor": "lr_scheduler.min_lr_factor",
}
OLDER = {**{older: name for name, older in V01.items()}, **V2024}
# What is printed, profiled, saved, compiled or overlapped: neither the model nor its numbers
ASIDE_SECTIONS = (
    "job", "profiling", "metrics", "checkpoint", "comm", "memory_estimation", "validation", "compile",
    "profiler", "validator", "fault_tolerance", "loss", "tokenizer", "dataloader", "override",
)  # fmt: skip
ASIDE = keys_for("torchtitan")


def renamed(values: dict[str, object]) -> dict[str, object]:
    """The same settings under the names of 0.2."""
    return {OLDER.get(key, key): value for key, value in values.items()}
