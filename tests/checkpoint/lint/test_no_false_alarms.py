"""What public folders have and no engine minds: nothing is found in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tests.checkpoint.lint.folders import Change, edited, export, indexed, tensors, written

from model.tiny_families import save
from scalewright.checkpoint.lint import config, lint
from scalewright.checkpoint.lint.folder import CONFIG, Export
from scalewright.spec.huggingface import read_huggingface
from scalewright.spec.presets import _entries

EOS, BUFFER = "<|im_end|>", "model.layers.0.self_attn.rotary_emb.inv_freq"
T, G, J = "tokenizer_config.json", "generation_config.json", "chat_template.jinja"
# Each in the manner of a public family, with this tokenizer's tokens in the place of its own.
TEMPLATES = {
    "a header a turn, dates": (
        "{%- set now = strftime_now('%d %b %Y') %}{{- bos_token }}{% for m in messages %}"
        "<|im_start|>{{ m['role'] }}<|im_start|>\n\n{{ m['content'] | trim }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant<|im_start|>\n\n{% endif %}"
    ),
    "the user's end begins the answer": (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}"
        "{% endif %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}{{ eos_token }}"
        "{% endif %}{% endfor %}"
    ),
    "the user's beginning ends the answer": (
        "{% for m in messages %}{{ '<|im_end|>' if m.role == 'user' else '<|im_start|>' }}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>{% endif %}"
    ),
    "the last turn ends otherwise": (
        "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}"
        "{% if loop.last and not add_generation_prompt %}<|im_end|>{% else %}<|endoftext|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
    ),
    "thoughts before the answer, a mask, tools": (
        "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' %}{% generation %}<think>\n</think>\n{{ m.content }}<|im_end|>{% endgeneration %}"
        "{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% if loop.index > 99 %}{% break %}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    ),
}
KEPT: dict[str, Change] = {
    "keys of a newer release": edited(CONFIG, use_cache=True, layer_types=["full_attention"] * 2, new_key={"a": 1}),
    "no window": edited(CONFIG, use_sliding_window=False, sliding_window=0, max_window_layers=28),
    "no pad": edited(CONFIG, pad_token_id=-1),
    "both keys of RoPE": edited(
        CONFIG, rope_theta=10000.0, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}
    ),
    "more ends": edited(G, eos_token_id=[2, 0], do_sample=True, temperature=0.6, top_k=20, top_p=0.95),
    "tokens as objects": edited(
        T, eos_token={"content": EOS, "lstrip": False}, added_tokens_decoder={"2": {"content": EOS, "special": True}}
    ),
    "templates by name": edited(T, chat_template=[{"name": "tool_use", "template": "{{ tools[0] }}"}]),
    "rotary buffers": tensors(lambda held: held.update({BUFFER: torch.ones(4)})),
    "Mistral's own file": written("consolidated.safetensors", b"\x00"),
    "papers": written("README.md", "# A model\n"),
}


def buffered(content: dict[str, dict[str, object]]) -> None:
    """The index of a file with rotary buffers."""
    weight_map = content["weight_map"]
    weight_map[BUFFER] = min(map(str, weight_map.values()))
    content["metadata"]["total_size"] = int(str(content["metadata"]["total_size"])) + 16


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("clean"), chat=False)


@pytest.mark.parametrize("name", KEPT)
def test_what_public_folders_have(name: str, clean: Path, tmp_path: Path) -> None:
    shutil.copytree(clean, tmp_path / "export")
    KEPT[name](tmp_path / "export")
    if name == "rotary buffers":
        indexed(buffered)(tmp_path / "export")
    if name == "templates by name":
        written(J, TEMPLATES["the last turn ends otherwise"])(tmp_path / "export")
        assert {f.rule for f in lint(tmp_path / "export")} == {"two templates"}
        return
    assert [f.line for f in lint(tmp_path / "export")] == []


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_of_public_families(name: str, clean: Path, tmp_path: Path) -> None:
    shutil.copytree(clean, tmp_path / "export")
    written(J, TEMPLATES[name])(tmp_path / "export")
    assert [f.line for f in lint(tmp_path / "export")] == []


def test_configs_of_public_models() -> None:
    """As their repositories have them, but for the class, which the presets leave out."""
    asked = 0
    for name, entry in _entries().items():
        if "config" not in entry:
            continue
        held = {CONFIG: dict(entry["config"])}
        made = Export(Path(), frozenset(held), held, spec=read_huggingface(held[CONFIG]))
        assert {f.rule for f in config.check(made)} <= {"architectures", "family"}, name
        asked += 1
    assert asked > 100


def test_a_family_that_is_not_known_is_looked_at_all_the_same(clean: Path, tmp_path: Path) -> None:
    shutil.copytree(clean, tmp_path / "export")
    edited(CONFIG, model_type="zebra", architectures=["ZebraForCausalLM"])(tmp_path / "export")
    assert [(f.rule, f.severity) for f in lint(tmp_path / "export")] == [("family", "note")]
    tensors(lambda held: held.popitem())(tmp_path / "export")
    assert {f.rule for f in lint(tmp_path / "export")} == {"family", "index", "total_size"}


def test_weights_in_a_format_of_their_own(tmp_path: Path) -> None:
    """Names and shapes are the format's."""
    save("llama-gqa", tmp_path)
    tensors(lambda held: held.update({name + "_scale": held.pop(name)[:1] for name in [*held][:3]}))(tmp_path)
    edited(CONFIG, quantization_config={"quant_method": "fp8"})(tmp_path)
    assert {f.subject for f in lint(tmp_path)} == {"tokenizer"}


def test_a_language_model_inside_another(tmp_path: Path) -> None:
    save("gemma3", tmp_path)
    tensors(lambda held: held.update({f"language_model.{name}": held.pop(name) for name in [*held]}))(tmp_path)
    tensors(lambda held: held.update({"vision_tower.patch.weight": torch.ones(2, 2)}))(tmp_path)
    text = (tmp_path / CONFIG).read_text()
    (tmp_path / CONFIG).write_text(
        '{"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "dtype": "float32",'
        f' "text_config": {text}}}'
    )
    assert {f.subject for f in lint(tmp_path)} == {"tokenizer"}
