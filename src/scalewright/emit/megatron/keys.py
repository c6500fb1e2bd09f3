"""Arguments of Megatron-LM that mean the same as a key of ours; names without their dashes."""

from __future__ import annotations

from scalewright.emit.foreign import keys_of, real, whole
from scalewright.emit.rules import Word

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
)
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
)
LATENT = (
    Word("model.mla.q_lora_rank", "q-lora-rank", back=whole),
    Word("model.mla.kv_lora_rank", "kv-lora-rank", back=whole),
    Word("model.mla.qk_nope_head_dim", "qk-head-dim", back=whole),
    Word("model.mla.qk_rope_head_dim", "qk-pos-emb-head-dim", back=whole),
    Word("model.mla.v_head_dim", "v-head-dim", back=whole),
)
LAYOUT = (
    Word("layout.tp", "tensor-model-parallel-size", back=whole),
    Word("layout.pp", "pipeline-model-parallel-size", back=whole),
    Word("layout.cp", "context-parallel-size", back=whole),
    Word("layout.micro_batch", "micro-batch-size", back=whole),
    Word("layout.global_batch", "global-batch-size", back=whole),
)
EXPERTS = (
    Word("layout.ep", "expert-model-parallel-size", back=whole),
    Word("layout.etp", "expert-tensor-parallel-size", back=whole),
)
TRAINING = (
    Word("data.seq_len", "seq-length", back=whole),
    Word("seed", "seed", back=whole),
    Word("optimizer.lr", "lr", back=real),
    Word("optimizer.weight_decay", "weight-decay", back=real),
    Word("optimizer.clip_norm", "clip-grad", back=real),
)
ADAM = (Word("optimizer.eps", "adam-eps", back=real),)

# What it prints, profiles, caches, fuses or checks: neither the model, nor its layout, nor what it learns.
ASIDE = keys_of("""
    accumulate-allreduce-grads-in-fp32 apply-query-key-layer-scaling async-save attention-backend
    attention-softmax-in-fp32 auto-detect-ckpt-format calculate-per-token-loss check-for-nan-in-loss-and-grad
    ckpt-assume-constant-structure ckpt-convert-format ckpt-format ckpt-fully-parallel-load ckpt-fully-parallel-save
    cross-entropy-fusion-impl cross-entropy-loss-fusion cuda-graph-impl cuda-graph-scope data-cache-path data-impl
    ddp-bucket-size ddp-num-buckets delay-wgrad-compute deterministic-mode dist-ckpt-optim-fully-reshardable
    dist-ckpt-strictness distributed-backend distributed-timeout-minutes empty-unused-memory-level enable-cuda-graph
    enable-experimental enable-one-logger eod-mask-loss eval-interval eval-iters exit-duration-in-mins exit-interval
    exit-signal-handler expert-bias external-cuda-graph high-priority-stream-groups hysteresis init-method-std
    initial-loss-scale load local-rank log-batch-size-to-tensorboard log-energy log-interval
    log-loss-scale-to-tensorboard log-memory-to-tensorboard log-num-zeros-in-grad log-params-norm log-progress
    log-straggler log-throughput log-timers-to-tensorboard log-validation-ppl-to-tensorboard
    log-world-size-to-tensorboard logging-level loss-scale loss-scale-window lr-warmup-init make-vocab-size-divisible-by
    manual-gc manual-gc-interval merge-file min-loss-scale mock-data moe-enable-deepep moe-flex-dispatcher-backend
    moe-grouped-gemm moe-per-layer-logging moe-permute-fusion moe-router-dtype moe-router-fusion
    moe-token-dispatcher-type moe-use-upcycling no-async-tensor-model-parallel-allreduce no-bias-dropout-fusion
    no-bias-gelu-fusion no-bias-swiglu-fusion no-check-for-nan-in-loss-and-grad no-ckpt-fully-parallel-save
    no-create-attention-mask-in-dataloader no-gradient-accumulation-fusion no-initialization no-load-optim no-load-rng
    no-log-learning-rate-to-tensorboard no-log-loss-scale-to-tensorboard no-masked-softmax-fusion no-mmap-bin-files
    no-one-logger no-persist-layer-norm no-query-key-layer-scaling no-rope-fusion no-save-optim no-save-rng
    num-dataset-builder-threads num-workers overlap-grad-reduce overlap-param-gather
    overlap-param-gather-with-optimizer-step profile profile-ranks profile-step-end profile-step-start rampup-batch-size
    rank record-memory-history rerun-mode reset-attention-mask reset-position-ids result-rejected-tracker-filename save
    save-interval split tensorboard-dir tensorboard-log-interval tensorboard-queue-size test-mode timing-log-level
    timing-log-option tokenizer-model tp-comm-overlap tp-comm-overlap-cfg transformer-impl use-checkpoint-args
    use-checkpoint-opt-param-scheduler use-cpu-initialization use-dist-ckpt use-flash-attn use-legacy-models
    use-mcore-models use-persistent-ckpt-worker use-precision-aware-optimizer use-pytorch-profiler use-tp-pp-dp-mapping
    vocab-file wandb-entity wandb-exp-name wandb-project wandb-save-dir world-size
""")
