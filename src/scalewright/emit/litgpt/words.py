"""litgpt's words: keys that mean the same in both, and keys that say nothing about the run."""

from __future__ import annotations

from scalewright.emit.numbers import real, whole
from scalewright.emit.rules import Word

TITLE, VERSION, FILE = "litgpt", "0.5.13", "pretrain.yaml"
CONFIG = "model_config."
WORDS = (
    Word("model.context", CONFIG + "block_size", back=whole),
    Word("model.num_hidden_layers", CONFIG + "n_layer", back=whole),
    Word("model.hidden_size", CONFIG + "n_embd", back=whole),
    Word("model.num_attention_heads", CONFIG + "n_head", back=whole),
    Word("model.num_key_value_heads", CONFIG + "n_query_groups", back=whole),
    Word("model.head_dim", CONFIG + "head_size", back=whole),
    Word("model.intermediate_size", CONFIG + "intermediate_size", back=whole),
    Word("model.norm_eps", CONFIG + "norm_eps", back=real),
    Word("model.rope.theta", CONFIG + "rope_base", to=int, back=real),
    Word("model.rope.fraction", CONFIG + "rotary_percentage", back=real),
    Word("model.head_bias", CONFIG + "lm_head_bias"),
    Word("model.attention_softcap", CONFIG + "attention_logit_softcapping", back=real),
    Word("model.logit_softcap", CONFIG + "final_logit_softcapping", back=real),
    Word("model.tie_word_embeddings", "train.tie_embeddings"),
    Word("layout.micro_batch", "train.micro_batch_size", back=whole),
    Word("layout.global_batch", "train.global_batch_size", back=whole),
    Word("data.seq_len", "train.max_seq_length", back=whole),
    Word("seed", "seed", back=whole),
)  # fmt: skip
MIXTURE = (
    Word("model.moe.num_experts", CONFIG + "n_expert", back=whole),
    Word("model.moe.top_k", CONFIG + "n_expert_per_token", back=whole),
    Word("model.moe.moe_intermediate_size", CONFIG + "moe_intermediate_size", back=whole),
)
MLPS = {
    "swiglu": ("LLaMAMLP", "none"), "gelu": ("GptNeoxMLP", "none"), "gelu_tanh": ("GptNeoxMLP", "tanh"),
    "geglu": ("GemmaMLP", "none"), "geglu_tanh": ("GemmaMLP", "tanh"),
}  # fmt: skip
NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
RESIDUALS = {"sequential": (False, False), "parallel": (True, False), "parallel_shared": (True, True)}
POSITIONS = {"pre": (True, False), "post": (False, True), "both": (True, True)}  # norms before, after
PRECISIONS = {"bf16": "bf16-mixed", "auto": "bf16-mixed", "fp32": "32-true"}
RATES = {"cosine": "cosine", "constant": "cosine"}
SCALING = {
    "factor": "factor", "low_freq_factor": "low_freq_factor", "high_freq_factor": "high_freq_factor",
    "original_context": "original_max_seq_len",
}  # fmt: skip
ADJUSTED = CONFIG + "rope_adjustments."
UNCLIPPED = 1e9  # its pretrain wants a number
ADAMW, SGD = "torch.optim.AdamW", "torch.optim.SGD"
ASIDE = frozenset({
    "model_name", "out_dir", "logger_name", "tokenizer_dir", "train.log_interval", "train.max_time",
    "eval.max_new_tokens", "eval.initial_validation", "eval.final_validation", "eval.evaluate_example",
    "eval.interval", "eval.max_iters", "optimizer.init_args.fused", CONFIG + "name",
    CONFIG + "padding_multiple", "data.init_args.seed", "data.init_args.num_workers", "resume",
})  # fmt: skip
