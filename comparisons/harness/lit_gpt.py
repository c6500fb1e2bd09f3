"""litgpt's GPT in the loop of its `pretrain`: Fabric, its chunked cross-entropy, its clipping."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.setting import Setting, adamw, take

PRECISIONS = {"fp32": "32-true", "bf16-mixed": "bf16-mixed", "bf16-true": "bf16-true"}


class LitLoop:
    """What `litgpt pretrain` does for a step, without its compile, its validation and its saving."""

    def __init__(self, name: str, setting: Setting, samples: list[tuple[Tensor, Tensor]], precision: str) -> None:
        from lightning.fabric import Fabric
        from litgpt.utils import chunked_cross_entropy  # type: ignore[import-untyped]

        self.name, self.precision = name, f"{PRECISIONS[precision]} (Fabric)"
        self.samples, self.done, self.clip = samples, 0, setting.optimizer.clip_norm
        self.loss = chunked_cross_entropy
        self.fabric = Fabric(accelerator="cpu", devices=1, precision=PRECISIONS[precision])  # type: ignore[arg-type]
        model = gpt(setting)
        if precision == "bf16-true":
            model = model.to(torch.bfloat16)
        self.model: Any = self.fabric.setup(model)
        self.optimizer: Any = self.fabric.setup_optimizers(adamw(self.model, setting.optimizer))

    def run(self, steps: int) -> list[float]:
        """The next steps."""
        losses = []
        for tokens, targets in take(self.samples, self.done, steps):
            logits = self.model(tokens)
            loss = self.loss(logits, targets)
            self.fabric.backward(loss)
            self.fabric.clip_gradients(self.model, self.optimizer, max_norm=self.clip)
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        self.done += steps
        return losses

    def close(self) -> None:
        """Nothing is open."""


def gpt(setting: Setting) -> Any:
    """litgpt's GPT of the setting's shape, with the weights that everyone starts from, in fp32."""
    from litgpt.config import Config  # type: ignore[import-untyped]
    from litgpt.model import GPT  # type: ignore[import-untyped]

    spec = setting.model
    model = GPT(
        Config(
            name="comparison",
            block_size=setting.seq_len,
            padded_vocab_size=spec.vocab_size,
            vocab_size=spec.vocab_size,
            n_layer=spec.num_hidden_layers,
            n_head=spec.num_attention_heads,
            n_query_groups=spec.kv_heads,
            head_size=spec.dim_per_head,
            n_embd=spec.hidden_size,
            intermediate_size=spec.intermediate_size,
            rotary_percentage=1.0,
            rope_base=int(spec.rope.theta),
            parallel_residual=False,
            bias=False,
            norm_class_name="RMSNorm",
            norm_eps=spec.norm_eps,
            mlp_class_name="LLaMAMLP",
        )
    )
    ours = setting.decoder().state_dict()
    theirs = {
        "transformer.wte.weight": ours["embed.weight"],
        "transformer.ln_f.weight": ours["norm.weight"],
        "lm_head.weight": ours.get("head.weight", ours["embed.weight"]),
    }
    for layer in range(spec.num_hidden_layers):
        old, new = f"layers.{layer}", f"transformer.h.{layer}"
        qkv = [ours[f"{old}.attention.{part}.weight"] for part in "qkv"]
        theirs |= {
            f"{new}.norm_1.weight": ours[f"{old}.attention_norm.weight"],
            f"{new}.norm_2.weight": ours[f"{old}.mlp_norm.weight"],
            f"{new}.attn.qkv.weight": torch.cat(qkv),
            f"{new}.attn.proj.weight": ours[f"{old}.attention.o.weight"],
            f"{new}.mlp.fc_1.weight": ours[f"{old}.mlp.gate.weight"],
            f"{new}.mlp.fc_2.weight": ours[f"{old}.mlp.up.weight"],
            f"{new}.mlp.proj.weight": ours[f"{old}.mlp.down.weight"],
        }
    model.load_state_dict(theirs)
    if spec.tie_word_embeddings:
        model.lm_head.weight = model.transformer.wte.weight
    return model
