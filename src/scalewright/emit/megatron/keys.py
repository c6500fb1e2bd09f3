"""Arguments of Megatron-LM that mean the same as a key of ours; names without their dashes."""

from __future__ import annotations

from scalewright.emit.foreign import real
from scalewright.emit.rules import Word, words_for
from scalewright.emit.tables import keys_for

MODEL = words_for("megatron, model")
PREDICTION = words_for("megatron, prediction")
MIXTURE = words_for("megatron, mixture")
LATENT = words_for("megatron, latent")
LAYOUT = words_for("megatron, layout")
EXPERTS = words_for("megatron, experts")
TRAINING = words_for("megatron, training")
ADAM = (Word("optimizer.eps", "adam-eps", back=real),)

# What it prints, profiles, caches, fuses or checks: neither the model, nor its layout, nor what it learns.
ASIDE = keys_for("megatron")
