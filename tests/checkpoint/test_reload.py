"""A chat with an export in transformers, for each class that is written: the text, its end and the logits are ours.

our folder ──AutoTokenizer, AutoModelForCausalLM, generation_config.json──► chat template, greedy text, stop
     └──────our template, tokenizer file, whole sequences without a cache──► the same
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from model.tiny_families import CASES, save
from scalewright.checkpoint.lint import lint
from scalewright.model.companions import Training
from scalewright.model.huggingface import write_huggingface
from scalewright.model.load import load_model, open_huggingface
from scalewright.spec.chat import render, special_tokens, templates
from scalewright.spec.ends import CONFIG, Ends, json_object

EACH = list({kind: case for case, (kind, _) in reversed(CASES.items())}.values())
QUICK = ("llama-gqa", "gpt2", "bloom", "qwen2", "gemma3", "gpt-oss", "deepseek-v3")
ONE_EACH = [pytest.param(case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in EACH]
TOLERANCE = 1e-5  # fp32: about 1e-7 relative a product, three layers, logits of order 1
NEW = 10
CHAT = [
    {"role": "user", "content": "w05 w17 w80"}, {"role": "assistant", "content": "w44"},
    {"role": "user", "content": "w09 w61"},
]  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}{{ 'w01' if m.role == 'user' else 'w02' }} {{ m.content }}"
    "{{ ' ' + eos_token if m.role == 'assistant' else '' }} {% endfor %}{% if add_generation_prompt %}w02{% endif %}"
)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tokenizer of a word an id, with a chat template."""
    folder = tmp_path_factory.mktemp("words")
    tokenizer = Tokenizer(models.WordLevel({f"w{n:02}": n for n in range(96)}, unk_token="w00"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def greedy(model: torch.nn.Module, ids: list[int], ends: tuple[int, ...]) -> list[int]:
    """New ids until one of `ends`, each from the whole sequence."""
    made: list[int] = []
    while len(made) < NEW and (not made or made[-1] not in ends):
        made.append(int(model(torch.tensor([ids + made]))[0, -1].argmax()))
    return made


def asked(folder: Path, end: int) -> list[int]:
    """The chat's ids by our reading of a folder's template."""
    tokens = special_tokens(json_object(folder / CONFIG)) or {"eos_token": f"w{end:02}"}
    text = render(next(iter(templates(folder).values())), CHAT, tokens=tokens)
    return list(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids)


@pytest.mark.parametrize("case", ONE_EACH)
@torch.no_grad()
def test_a_chat_is_ours(case: str, words: Path, tmp_path: Path) -> None:
    save(case, tmp_path / "theirs")
    ours, reader = load_model(tmp_path / "theirs"), open_huggingface(tmp_path / "theirs")
    # the end of texts is a token that this model says within a few
    end = next(token for token in range(3, 96) if NEW > len(greedy(ours, asked(words, token), (token,))) > 1)
    training = Training(words, ends=Ends((end,), bos=()))
    write_huggingface(tmp_path / "out", reader.spec, reader.read, training=training)
    rebuilt = ["rebuilt"] if case == "qwen2" else []  # whose tokenizer transformers makes anew
    assert [finding.rule for finding in lint(tmp_path / "out")] == rebuilt
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    chat = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = asked(tmp_path / "out", end)
    assert (chat["input_ids"][0].tolist() != ids) == bool(rebuilt)
    chat = transformers.BatchEncoding({"input_ids": torch.tensor([ids])})
    text = greedy(ours, ids, (end,))
    assert theirs.generate(**chat, max_new_tokens=NEW)[0].tolist() == ids + text
    assert text[-1] == end
    assert (ours(torch.tensor([ids])) - theirs(**chat).logits).abs().max() < TOLERANCE
