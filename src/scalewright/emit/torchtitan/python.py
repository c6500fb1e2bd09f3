"""torchtitan 0.3's configuration, a Python function that returns Trainer.Config: written, and read as text.

def config() -> Trainer.Config:
    return Trainer.Config(model_spec=..., parallelism=ParallelismConfig(tensor_parallel_degree=8), ...)

torchrun ... -m torchtitan.train --module titan --config config
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from scalewright.emit.command_lines import nodes_of, ranks_beside, torchrun_by_variables
from scalewright.emit.emitted import Emitted, Reading
from scalewright.emit.python_code import Call, Module, Name, Unknown, spelled
from scalewright.emit.rules import inverse
from scalewright.emit.settings import Settings
from scalewright.emit.tables import text_of
from scalewright.emit.torchtitan.layout import Keys, write_layout
from scalewright.emit.torchtitan.model import Network, write_model
from scalewright.emit.torchtitan.training import read_values, write_training
from scalewright.spec.errors import UserError
from scalewright.spec.question import Unread

TITLE, VERSION = "torchtitan", "0.3"
FILE = "titan.py"
SECTIONS = {
    "parallelism": "ParallelismConfig", "training": "TrainingConfig", "lr_scheduler": "LRSchedulersContainer.Config",
    "compile": "CompileConfig", "debug": "DebugConfig", "checkpoint": "CheckpointManager.Config",
    "metrics": "MetricsProcessor.Config",
}  # fmt: skip
POLICIES = {"full": "FullAC.Config", "selective": "SelectiveAC.Config", "memory_budget": "MemoryBudgetAC.Config"}
QUANTIZED = {"float8": "Float8LinearConverter", "mx": "MXFP8LinearConverter", "nvfp4": "NVFP4LinearConverter"}
COMMAND = re.compile(r"--config[ =](\w+)")
CLASSES = {"Llama3Model": "llama3", "Qwen3Model": "qwen3", "DeepSeekV3Model": "deepseek_v3", "GptOssModel": "gpt_oss"}


def write(s: Settings) -> Emitted:
    """The module; raises UserError where it would be another layout."""
    network = write_model(s, VERSION)
    keys = {**write_layout(s, VERSION), **write_training(s, VERSION)}
    if s.layout.pp > 1 or s.layout.ep > 1:
        keys["training.disable_cuda_graphs"] = True  # theirs support neither
    config = _config(s, network, keys)
    nodes, _ = nodes_of(s.layout.devices)
    program = f"-m torchtitan.train --module {FILE.removesuffix('.py')} --config config"
    command = "PYTHONPATH=. " + torchrun_by_variables(s.layout.devices, program)
    body = f"def config() -> Trainer.Config:\n    return {spelled(config, 4)}\n"
    helper = text_of(f"torchtitan/{'latent' if s.model.mla else 'decoder'}.txt") if network.call is not None else ""
    lines = imports(body + helper)
    if network.call is None:
        lines.append(f"from torchtitan.models.{network.name} import model_registry")
    imported = "\n".join(sorted(lines))
    text = f'''"""Written by `scalewright emit torchtitan`: a configuration of torchtitan {VERSION}.

On each of {nodes} nodes, with NODE_RANK=<0..{nodes - 1}> and MASTER_ADDR=<the first node>:
  {command}
"""

{imported}


'''
    text += f"{helper}\n\n{body}" if helper else body
    return s.emitted(TITLE, "torchtitan", VERSION, {FILE: text}, command)


def imports(text: str) -> list[str]:
    """The import lines for all names that an emitted text uses."""
    lines = []
    for module, names in re.findall(r"(\S+): (.+)", text_of("torchtitan/imports.txt")):
        used = [name for name in names.split(", ") if re.search(rf"\b{name}\b", text)]
        line = f"from {module} import {', '.join(used)}"
        if len(line) > 100:
            line = f"from {module} import (\n" + "".join(f"    {name},\n" for name in used) + ")"
        lines += [line] if used else []
    return lines


def _config(s: Settings, network: Network, keys: Keys) -> Call:
    keys = {key.replace("training.dataset", "dataloader.dataset"): value for key, value in keys.items()}
    loss = Call("CrossEntropyLoss.Config", {"global_vocab_size": s.model.vocab_size})
    sections: dict[str, object] = {
        "model_spec": _spec(network, keys), "hf_assets_path": "./assets/hf/tokenizer",
        "dump_folder": keys["job.dump_folder"], "loss": Call("ChunkedLossWrapper.Config", {"loss_fn": loss}),
        "optimizer": _optimizer(keys), "activation_checkpoint": _policy(keys),
        "dataloader": _section(keys, "dataloader", "HuggingFaceTextDataLoader.Config"),
    }  # fmt: skip
    for section, cls in SECTIONS.items():
        if (call := _section(keys, section, cls)).values:
            sections[section] = call
    if keys.get("validation.enable"):
        checks = {"enable": True, "freq": keys["validation.freq"], "steps": keys["validation.steps"]}
        sections["validator"] = Call("Validator.Config", checks)
    return Call("Trainer.Config", sections)


def _spec(network: Network, keys: Keys) -> Call:
    arguments, names = {"model_compile_enabled": bool(keys.get("compile.enable"))}, keys.get("model.converters", ())
    converters = [Call(f"{QUANTIZED[name]}.Config", dict(arguments)) for name in names]
    more = {"converters": converters} if converters else {}
    if network.call is not None:
        return Call(network.call.name, {**network.call.values, **more})
    return Call("model_registry", {"flavor": network.flavor, **more})


def _optimizer(keys: Keys) -> Call:
    given = {"lr": keys["optimizer.lr"], "betas": (keys["optimizer.beta1"], keys["optimizer.beta2"]),
             "eps": keys.get("optimizer.eps", 1e-8), "weight_decay": keys["optimizer.weight_decay"]}  # fmt: skip
    if (implementation := keys.get("optimizer.implementation")) is None:
        return Call("default_adamw", given)
    group = Call("ParamGroupConfig", {"pattern": ".*", "optimizer_name": "AdamW", "optimizer_kwargs": given})
    return Call("OptimizersContainer.Config", {"param_groups": [group], "implementation": implementation})


def _policy(keys: Keys) -> Call | None:
    """None is no recomputation; without the key it would be a selective one."""
    mode = keys["activation_checkpoint.mode"]
    if mode == "none":
        return None
    budget = keys.get("activation_checkpoint.memory_budget")
    return Call(POLICIES[mode], {"memory_budget": budget} if budget is not None else {})


def _section(keys: Keys, section: str, cls: str) -> Call:
    prefix = f"{section}."
    return Call(cls, {key.removeprefix(prefix): value for key, value in keys.items() if key.startswith(prefix)})


def read(text: str, where: str) -> Reading:
    """A file of such functions as a run: one that a command names, else the first; raises UserError."""
    module = Module(text, where)
    results = module.returning(lambda call: call.name.endswith("Trainer.Config") or _starts_elsewhere(call, module))
    if not results:
        how = "give a file with a function that returns Trainer.Config(...)"
        raise UserError("no configuration of torchtitan 0.3 in this file", where, how)
    named = COMMAND.search(text)
    first = next((name for name in results if "debug" not in name), next(iter(results)))
    chosen = named[1] if named and named[1] in results else first
    call, statements = results[chosen]
    notes = []
    if len(results) > 1:
        notes = [f"function {chosen} of {', '.join(results)} (a comment `--config NAME` chooses another)"]
    values = _values(call, module, where, notes)
    computed = {key: value for key, value in values.items() if isinstance(value, (Name, Unknown))}
    world = ranks_beside(text, "torchrun ")
    reading = read_values({k: v for k, v in values.items() if k not in computed}, world, VERSION, notes)
    skipped = [Unread(key, value[0], "computed: its default stands for it") for key, value in computed.items()]
    skipped += [Unread(f"{chosen}()", line, "neither a literal nor a call") for line in statements]
    return replace(reading, unread=(*reading.unread, *skipped))


def _starts_elsewhere(call: Call, module: Module) -> bool:
    """A configuration of another file that is changed here: `config = llama3_8b()`."""
    return "config_registry" in module.imports.get(call.name, "")


def _values(call: Call, module: Module, where: str, notes: list[str]) -> dict[str, object]:
    parts = dict(call.values)
    spec, policy, optimizer = (parts.pop(key, None) for key in ("model_spec", "activation_checkpoint", "optimizer"))
    values = Call("", parts).flat()
    values |= _read_optimizer(optimizer) | _read_policy(policy, "activation_checkpoint" in call.values)
    if _starts_elsewhere(call, module) and spec is None:
        values |= _of_function(call.name, module.imports[call.name])
        notes.append(f"what {call.name}() sets, and this file doesn't, is in another file: defaults stand for it")
    elif isinstance(spec, Call) and spec.name.endswith("model_registry"):
        values["model.name"] = _family(module, where)
        values["model.flavor"] = spec.values.get("flavor", spec.values.get("0", "debugmodel"))
    elif spec is not None:
        values["model_spec"] = spec
    converters = spec.values.get("converters") if isinstance(spec, Call) else None
    if isinstance(converters, (list, tuple)):
        names = inverse(QUANTIZED)
        classes = [item.name.partition(".")[0] for item in converters if isinstance(item, Call)]
        values["model.converters"] = [names.get(cls, cls) for cls in classes]
    return values


def _read_optimizer(optimizer: Any) -> dict[str, object]:
    """The numbers of `default_adamw(...)`, or of the group that has all other tensors."""
    if not isinstance(optimizer, Call):
        return {}
    given, values = dict(optimizer.values), {}
    groups = given.get("param_groups")
    if isinstance(groups, list) and groups and isinstance(groups[-1], Call):
        values["optimizer.name"] = groups[-1].values.get("optimizer_name", "AdamW")
        if "implementation" in given:
            values["optimizer.implementation"] = given["implementation"]
        for index, group in enumerate(groups[:-1]):
            pattern = group.values.get("pattern") if isinstance(group, Call) else group
            values[f"optimizer.param_groups.{index}"] = pattern
        given = dict(groups[-1].values.get("optimizer_kwargs") or {})
    if isinstance(betas := given.pop("betas", None), (tuple, list)) and len(betas) == 2:
        values |= {"optimizer.beta1": betas[0], "optimizer.beta2": betas[1]}
    if "0" in given:
        given["lr"] = given.pop("0")
    return values | {f"optimizer.{key}": value for key, value in given.items()}


def _read_policy(policy: Any, stated: bool) -> dict[str, object]:
    if not stated:
        return {}
    if policy is None:
        return {"activation_checkpoint.mode": "none"}
    name = policy.name if isinstance(policy, Call) else str(policy)
    rest = policy.flat("activation_checkpoint.") if isinstance(policy, Call) else {}
    return {**rest, "activation_checkpoint.mode": inverse(POLICIES).get(name, name)}


def _family(module: Module, where: str) -> str:
    """The model that `model_registry` is of: by its import, by its classes, or by the file's folder."""
    source = module.imports.get("model_registry", "")
    if match := re.search(r"torchtitan\.models\.(\w+)", source):
        return match[1]
    for name in module.imports:
        if name in CLASSES:
            return CLASSES[name]
    folders = [part for part in re.split(r"[/\\]", where) if part in CLASSES.values()]
    prefixes = [family for family in CLASSES.values() if any(name.startswith(family) for name in module.functions)]
    return (folders or prefixes or ["llama3"])[-1]


def _of_function(function: str, source: str) -> dict[str, object]:
    """The flavor in the name of one of their functions: llama3_8b, deepseek_v3_671b."""
    match = re.search(r"torchtitan\.models\.(\w+)\.", source)
    family = match[1] if match else function.partition("_")[0]
    return {"model.name": family, "model.flavor": function.removeprefix(f"{family}_").replace("_", "-")}
