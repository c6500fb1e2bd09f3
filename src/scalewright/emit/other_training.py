"""Training that isn't of all weights of one decoder on next tokens: named, so that it is never priced as that.

    adapter: qlora           keys and values    ──► "QLoRA adapters (adapter: qlora)"
    pretrain_bert.py, dpo.py words of a program ──► "BERT (pretrain_bert.py)"

What is priced here has a forward and a backward of one decoder, and gradients and states of every weight. Adapters have
states of few weights, preferences a second model or pairs of texts, encoders no causal mask, rollouts a generation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

from scalewright.emit.tables import table

TABLE = table("other_training.yaml")
ADAPTERS, NETWORKS, NAMES = (TABLE[name] for name in ("adapters", "networks", "names"))
RANKS = ("lora_rank", "lora_r")  # of adapters, where no key of the above is there to turn them off
OFF = {"", "0", "none", "null", "false", "full", "no", "~"}
PREFERENCES = {"dpo", "kto", "orpo", "simpo", "ipo", "cpo", "rm", "ppo", "grpo", "rloo", "gkd", "xpo", "nca", "bco"}
AIMS = ("stage", "rl", "rlhf_type")  # whole keys, whose value may be one of these
HEADS = re.compile(r"For(\w+Classification|QuestionAnswering|MaskedLM|ConditionalGeneration)$|Seq2SeqLM$")
TRAINED = {word: trained for trained, words in TABLE["programs"].items() for word in words.split()}
TRAINED |= dict.fromkeys(PREFERENCES, "preferences or rewards")


def other_training(values: Mapping[str, object]) -> str:
    """What a configuration's keys (dotted) train, if not all weights of a decoder; empty where it is that."""
    keys = {key.rpartition(".")[2].replace("-", "_"): key for key in values}
    word = {name: str(values[key]).strip().lower() if values[key] is not None else "" for name, key in keys.items()}
    adapters = [name for name in ADAPTERS if name in keys]
    for name in (*(adapters or RANKS), *NETWORKS):
        if word.get(name, "") not in OFF:
            template = {**ADAPTERS, **NETWORKS}.get(name, "LoRA adapters")
            means = template.format(NAMES.get(word[name], f"{word[name]} adapters"))
            return f"{means} ({keys[name]}: {word[name]})"
    name = str(values.get("model.name", values.get("name", "")))  # torchtitan's flux, NeMo's megatron_t5
    if ("model.name" in values or name.startswith("megatron_")) and (trained := other_program(name)):
        return trained
    for name in AIMS:
        if keys.get(name) == name and word[name] in PREFERENCES:
            return f"preferences or rewards ({name}: {word[name]})"
    for name in ("model_type", "reward_model", "process_reward_model"):
        if name in keys and (HEADS.search(str(values[keys[name]])) or (name != "model_type" and word[name] not in OFF)):
            return f"another head than the next token's ({keys[name]}: {values[keys[name]]})"
    return ""


def other_program(program: str) -> str:
    """The same of a program's name: `pretrain_bert.py`, `-m openrlhf.cli.train_dpo`; empty for the others."""
    name = PurePath(program.removesuffix(".py")).name.rpartition(".")[2]
    trained = (TRAINED.get(word) for word in re.split(r"[_\-]", name.lower()))
    return next((f"{what} ({PurePath(program).name})" for what in trained if what), "")
