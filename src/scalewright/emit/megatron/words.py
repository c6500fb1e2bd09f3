"""Arguments of Megatron-LM that mean the same as a key of ours; names without their dashes."""

from __future__ import annotations

from typing import Any

from scalewright.emit.words import Word


def number(value: Any) -> float | int:
    """A number of a command line; `1e-5` is one."""
    real = float(value)
    return (
        int(real) if real.is_integer() and "." not in str(value) and "e" not in str(value).lower() else real
    )


def whole(value: Any) -> int:
    """A whole number of a command line, where `1_000` and 1000.0 are ones."""
    return int(float(str(value).replace("_", "")))


def real(value: Any) -> float:
    """A number with a fraction."""
    return float(value)


MODEL = (
    Word("model.num_hidden_layers", "num-layers", back=whole),
    Word("model.hidden_size", "hidden-size", back=whole),
    Word("model.intermediate_size", "ffn-hidden-size", back=whole),
    Word("model.num_attention_heads", "num-attention-heads", back=whole),
    Word("model.context", "max-position-embeddings", back=whole),
    Word("model.norm_eps", "norm-epsilon", back=real),
)
PREDICTION = (
    Word("model.mtp_layers", "mtp-num-layers", back=whole),
    Word("train.mtp_weight", "mtp-loss-scaling-factor", back=real),
)  # fmt: skip
MIXTURE = (
    Word("model.moe.num_experts", "num-experts", back=whole),
    Word("model.moe.top_k", "moe-router-topk", back=whole),
    Word("model.moe.moe_intermediate_size", "moe-ffn-hidden-size", back=whole),
    Word("model.moe.score", "moe-router-score-function"),
    Word("model.moe.routed_scale", "moe-router-topk-scaling-factor", back=real, always=False),
    Word("model.moe.groups", "moe-router-num-groups", back=whole, always=False),
    Word("model.moe.top_groups", "moe-router-group-topk", back=whole, always=False),
    Word("model.moe.latent_size", "moe-latent-size", back=whole, always=False),
    Word("train.balance.loss", "moe-aux-loss-coeff", back=real),
    Word("train.balance.z_loss", "moe-z-loss-coeff", back=real, always=False),
    Word("train.balance.capacity_factor", "moe-expert-capacity-factor", back=real, always=False),
)  # fmt: skip
LATENT = (
    Word("model.mla.q_lora_rank", "q-lora-rank", back=whole),
    Word("model.mla.kv_lora_rank", "kv-lora-rank", back=whole),
    Word("model.mla.qk_nope_head_dim", "qk-head-dim", back=whole),
    Word("model.mla.qk_rope_head_dim", "qk-pos-emb-head-dim", back=whole),
    Word("model.mla.v_head_dim", "v-head-dim", back=whole),
)  # fmt: skip
LAYOUT = (
    Word("layout.tp", "tensor-model-parallel-size", back=whole),
    Word("layout.pp", "pipeline-model-parallel-size", back=whole),
    Word("layout.cp", "context-parallel-size", back=whole),
    Word("layout.micro_batch", "micro-batch-size", back=whole),
    Word("layout.global_batch", "global-batch-size", back=whole),
)  # fmt: skip
EXPERTS = (
    Word("layout.ep", "expert-model-parallel-size", back=whole),
    Word("layout.etp", "expert-tensor-parallel-size", back=whole),
)  # fmt: skip
TRAINING = (
    Word("data.seq_len", "seq-length", back=whole),
    Word("seed", "seed", back=whole),
    Word("optimizer.lr", "lr", back=real),
    Word("optimizer.weight_decay", "weight-decay", back=real),
    Word("optimizer.clip_norm", "clip-grad", back=real),
)  # fmt: skip
ADAM = (
    Word("optimizer.eps", "adam-eps", back=real),
)  # fmt: skip

# What a trainer prints, profiles, caches, or checks: it changes neither the model nor its numbers, nor the layout.
ASIDE = frozenset({
    "log-interval", "log-throughput", "log-params-norm", "log-num-zeros-in-grad", "log-progress", "log-timers-to-tensorboard",
    "log-validation-ppl-to-tensorboard", "log-memory-to-tensorboard", "log-batch-size-to-tensorboard",
    "log-world-size-to-tensorboard", "log-straggler", "log-energy", "timing-log-level", "timing-log-option", "tensorboard-dir",
    "tensorboard-log-interval", "tensorboard-queue-size", "wandb-project", "wandb-exp-name", "wandb-save-dir", "wandb-entity",
    "eval-interval", "eval-iters", "exit-interval", "exit-duration-in-mins", "exit-signal-handler", "save", "load", "save-interval",
    "ckpt-format", "async-save", "use-dist-ckpt", "ckpt-assume-constant-structure", "ckpt-fully-parallel-load",
    "ckpt-fully-parallel-save", "dist-ckpt-strictness", "no-load-optim", "no-load-rng", "no-save-optim", "no-save-rng",
    "use-persistent-ckpt-worker", "auto-detect-ckpt-format", "use-checkpoint-args", "no-initialization", "data-cache-path",
    "num-workers", "num-dataset-builder-threads", "no-mmap-bin-files", "no-create-attention-mask-in-dataloader", "data-impl",
    "distributed-backend", "distributed-timeout-minutes", "use-mcore-models", "use-legacy-models", "transformer-impl",
    "attention-backend", "use-flash-attn", "manual-gc", "manual-gc-interval", "no-gradient-accumulation-fusion",
    "no-masked-softmax-fusion", "no-bias-gelu-fusion", "no-bias-swiglu-fusion", "no-bias-dropout-fusion", "no-rope-fusion",
    "no-persist-layer-norm", "cross-entropy-loss-fusion", "cross-entropy-fusion-impl", "attention-softmax-in-fp32",
    "apply-query-key-layer-scaling", "no-query-key-layer-scaling", "overlap-grad-reduce", "overlap-param-gather",
    "overlap-param-gather-with-optimizer-step", "no-async-tensor-model-parallel-allreduce", "tp-comm-overlap",
    "tp-comm-overlap-cfg", "delay-wgrad-compute", "deterministic-mode", "enable-cuda-graph", "external-cuda-graph",
    "cuda-graph-impl", "cuda-graph-scope", "moe-grouped-gemm", "moe-permute-fusion", "moe-token-dispatcher-type",
    "moe-flex-dispatcher-backend", "moe-enable-deepep", "moe-router-fusion", "moe-router-dtype", "moe-per-layer-logging",
    "moe-use-upcycling", "use-tp-pp-dp-mapping", "init-method-std", "vocab-file", "merge-file", "tokenizer-model",
    "mock-data", "profile", "profile-step-start", "profile-step-end", "profile-ranks", "use-pytorch-profiler", "test-mode",
    "check-for-nan-in-loss-and-grad", "no-check-for-nan-in-loss-and-grad", "reset-attention-mask", "reset-position-ids",
    "eod-mask-loss", "use-cpu-initialization", "ddp-bucket-size", "ddp-num-buckets", "calculate-per-token-loss",
    "loss-scale", "initial-loss-scale", "min-loss-scale", "loss-scale-window", "hysteresis", "accumulate-allreduce-grads-in-fp32",
    "rampup-batch-size", "split", "use-precision-aware-optimizer", "lr-warmup-init", "empty-unused-memory-level", "local-rank",
    "record-memory-history", "enable-experimental", "rerun-mode", "result-rejected-tracker-filename", "expert-bias",
})  # fmt: skip
