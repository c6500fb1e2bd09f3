"""Every family that runs gives transformers' logits, and its folder survives the way there and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers.modeling_layers import MtpModel

from devices import DEVICES
from model.tiny_families import CASES, save, tokens
from scalewright.checkpoint.lint import lint
from scalewright.model.decoder import Decoder
from scalewright.model.huggingface import HuggingFaceFolder, write_huggingface
from scalewright.model.load import load_model, open_huggingface
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import tensors

# fp32: about 1e-7 relative a matmul, three layers, logits of order 1; the issue asks for 1e-5.
TOLERANCE = 1e-5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, device: str, tmp_path: Path) -> None:
    theirs = save(case, tmp_path).to(device)
    ours = load_model(str(tmp_path), device=device)
    ids = tokens().to(device)
    with torch.no_grad():
        expected = theirs(ids).logits
        found = ours(ids)
    assert expected.std() > 0.05  # a comparison of zeros would prove nothing
    assert (found - expected).abs().max() < TOLERANCE


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tokenizer of few words."""
    folder = tmp_path_factory.mktemp("words")
    tokenizer = Tokenizer(models.WordLevel({f"w{n}": n for n in range(90)}, unk_token="w0"))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("case", CASES)
def test_round_trip_gives_equal_tensors_and_nothing_to_mend(case: str, words: Path, tmp_path: Path) -> None:
    theirs = save(case, tmp_path / "theirs")
    assert {finding.rule for finding in lint(tmp_path / "theirs") if finding.subject != "tokenizer"} == set()
    reader = open_huggingface(tmp_path / "theirs")
    files = write_huggingface(tmp_path / "ours", reader.spec, reader.read, max_shard_bytes=8_000, tokenizer_dir=words)
    assert len(files) > 1
    left = [finding.line for finding in lint(tmp_path / "ours") if finding.rule != "rebuilt"]  # of qwen2: words are few
    assert left == []
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    expected = theirs.state_dict()
    assert back.state_dict().keys() == expected.keys()
    for name, value in back.state_dict().items():
        assert torch.equal(value, expected[name]), name
    again = open_huggingface(tmp_path / "ours")
    assert again.spec.dump() | {"name": ""} == reader.spec.dump() | {"name": ""}
    for t in tensors(reader.spec):
        assert torch.equal(again.read(t.name), reader.read(t.name)), t.name


@pytest.mark.parametrize("case", ["gpt2", "neox-partial", "bloom", "llama-mqa-biases", "mixtral", "gpt-oss", "llama4"])
def test_any_slice_is_the_slice_of_the_whole(case: str, tmp_path: Path) -> None:
    save(case, tmp_path)
    reader = open_huggingface(tmp_path)
    for t in tensors(reader.spec):
        whole = reader.read(t.name)
        assert whole.shape == t.shape
        offsets = [size // 3 for size in t.shape]
        sizes = [size // 2 for size in t.shape]
        box = tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))
        assert torch.equal(reader.read_slice(t.name, offsets, sizes), whole[box]), t.name
        empty = reader.read_slice(t.name, offsets, [0, *sizes[1:]])
        assert empty.shape == (0, *sizes[1:])
        assert empty.dtype == whole.dtype


def test_shards_keep_to_their_limit_and_the_index_names_them(tmp_path: Path) -> None:
    save("llama-gqa", tmp_path / "theirs")
    reader = open_huggingface(tmp_path / "theirs")
    files = write_huggingface(tmp_path / "ours", reader.spec, reader.read, max_shard_bytes=20_000)
    index = json.loads((tmp_path / "ours" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {f.name for f in files}
    held = [sum(t.numel() * 4 for t in load_file(f).values()) for f in files]
    assert max(held) <= 20_000
    assert sum(held) == index["metadata"]["total_size"]
    assert not list((tmp_path / "ours").glob("*.partial"))


def test_one_shard_needs_no_index_and_bf16_is_half(tmp_path: Path) -> None:
    save("llama-gqa", tmp_path / "theirs")
    reader = open_huggingface(tmp_path / "theirs")
    (file,) = write_huggingface(tmp_path / "ours", reader.spec, reader.read, dtype="bfloat16")
    assert file.name == "model.safetensors"
    assert {t.dtype for t in load_file(file).values()} == {torch.bfloat16}
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype="auto")
    assert back.dtype == torch.bfloat16


def test_sharded_files_of_theirs_are_read(tmp_path: Path) -> None:
    theirs = save("qwen3", tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    with torch.no_grad():
        assert (load_model(tmp_path)(tokens()) - theirs(tokens()).logits).abs().max() < TOLERANCE


def test_names_without_the_outer_prefix_are_read(tmp_path: Path) -> None:
    """gpt2's own files on the Hub call it wte.weight, not transformer.wte.weight."""
    theirs = save("gpt2", tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({k.removeprefix("transformer."): v for k, v in load_file(file).items()}, file)
    with torch.no_grad():
        assert (load_model(tmp_path)(tokens()) - theirs(tokens()).logits).abs().max() < TOLERANCE


def test_a_language_model_inside_a_vision_model_is_read(tmp_path: Path) -> None:
    """Gemma 3's own files hold the text model under `language_model.`, and its config under `text_config`."""
    theirs = save("gemma3", tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({f"language_model.{k}": v for k, v in load_file(file).items()}, file)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": config}))
    with torch.no_grad():
        assert (load_model(tmp_path)(tokens()) - theirs(tokens()).logits).abs().max() < TOLERANCE


def test_llama_4_inside_its_vision_model_is_read(tmp_path: Path) -> None:
    """Its own files have the head under `language_model.`, too."""
    theirs = save("llama4", tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({f"language_model.{k}": v for k, v in load_file(file).items()}, file)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama4", "text_config": config}))
    with torch.no_grad():
        assert (load_model(tmp_path)(tokens()) - theirs(tokens()).logits).abs().max() < TOLERANCE


def pack(folder: Path) -> dict[str, torch.Tensor]:
    """Packs the experts of a folder in MXFP4, as in the published files of gpt-oss; returns their numbers."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    random = torch.Generator().manual_seed(0)
    file, numbers = folder / "model.safetensors", {}
    held = load_file(file)
    for key in [key for key in held if key.endswith(("gate_up_proj", "down_proj"))]:
        experts, width, rows = held.pop(key).shape
        blocks = torch.randint(0, 256, (experts, rows, width // 32, 16), generator=random, dtype=torch.uint8)
        scales = torch.randint(122, 126, blocks.shape[:-1], generator=random, dtype=torch.uint8)
        held[f"{key}_blocks"], held[f"{key}_scales"] = blocks, scales
        numbers[key] = convert_moe_packed_tensors(blocks, scales)  # [E, in, rows]
    save_file(held, file)
    return numbers


def test_experts_in_mxfp4_are_read(tmp_path: Path) -> None:
    kind, keys = CASES["gpt-oss"]
    CASES["gpt-oss-64"] = (kind, {**keys, "intermediate_size": 64})
    save("gpt-oss-64", tmp_path)
    del CASES["gpt-oss-64"]
    numbers = pack(tmp_path)
    reader = open_huggingface(tmp_path)
    stacks = "model.layers.1.mlp.experts."
    both = numbers[stacks + "gate_up_proj"].transpose(1, 2)
    for part, expected in (
        ("gate", both[:, 0::2]),
        ("up", both[:, 1::2]),
        ("down", numbers[stacks + "down_proj"].transpose(1, 2)),
    ):
        name = f"layers.1.mlp.experts.{part}.weight"
        assert torch.equal(reader.read(name), expected)
        box = reader.read_slice(name, [1, 3, 5], [2, 9, 25])
        assert torch.equal(box, expected[1:3, 3:12, 5:30])
        assert reader.read_slice(name, [6, 0, 0], [0, 9, 25]).shape == (0, 9, 25)
    write_huggingface(tmp_path / "plain", reader.spec, reader.read, dtype="bfloat16")
    plain = load_file(tmp_path / "plain" / "model.safetensors")
    assert all(torch.equal(plain[key], value) for key, value in numbers.items())


def test_blocks_of_another_model_are_refused(tmp_path: Path) -> None:
    kind, keys = CASES["gpt-oss"]
    CASES["gpt-oss-64"] = (kind, {**keys, "intermediate_size": 64})
    save("gpt-oss-64", tmp_path)
    del CASES["gpt-oss-64"]
    pack(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 96}))
    with pytest.raises(UserError, match=r"gate_up_proj_(blocks|bias)' has shape"):
        load_model(tmp_path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    save("llama-gqa", tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"damaged or truncated.*model\.safetensors"):
        load_model(tmp_path)


def test_a_damaged_header_is_named(tmp_path: Path) -> None:
    save("llama-gqa", tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"\xff" * 16 + file.read_bytes()[16:])
    with pytest.raises(UserError, match=r"damaged or truncated.*model\.safetensors"):
        load_model(tmp_path)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    save("llama-gqa", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="convert it to safetensors first"):
        load_model(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save("llama-gqa", tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({k: v for k, v in load_file(file).items() if "layers.1.mlp.up_proj" not in k}, file)
    with pytest.raises(UserError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight' is missing"):
        load_model(tmp_path)


def test_both_shapes_are_named_when_they_differ(tmp_path: Path) -> None:
    save("llama-gqa", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    with pytest.raises(UserError, match=r"\(96, 32\).*\(100, 32\)"):
        load_model(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save("llama-gqa", tmp_path, max_shard_size="20KB")
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(UserError, match=gone.name):
        load_model(tmp_path)


def test_the_tokenizer_goes_along_and_says_what_ends_a_text(tmp_path: Path) -> None:
    save("llama-gqa", tmp_path / "theirs")
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    words.add_special_tokens(["<|endoftext|>"])
    words.save(str(tmp_path / "run-tokenizer.json"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run-tokenizer.json").rename(tmp_path / "run" / "tokenizer.json")
    reader = open_huggingface(tmp_path / "theirs")
    write_huggingface(tmp_path / "ours", reader.spec, reader.read, tokenizer_dir=tmp_path / "run")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer.eos_token_id == 2
    assert tokenizer.encode("b") == [1]
    assert transformers.AutoConfig.from_pretrained(tmp_path / "ours").eos_token_id == 2
    assert transformers.GenerationConfig.from_pretrained(tmp_path / "ours").eos_token_id == 2


PREDICTING = {"deepseek-v3": ("deepseek-v3", 1), "glm4-moe": ("glm4-moe", 2)}


def save_predicting(case: str, folder: Path) -> tuple[ModelSpec, dict[str, torch.Tensor]]:
    """A folder of a case with prediction modules, which transformers doesn't save: written by us, of random
    numbers; its spec, and those numbers by our names."""
    name, modules = PREDICTING[case]
    save(name, folder / "theirs")
    reader = open_huggingface(folder / "theirs")
    spec = reader.spec.replace(mtp_layers=modules)
    generator = torch.Generator().manual_seed(3)
    numbers = {t.name: reader.read(t.name) for t in tensors(reader.spec)}
    for t in tensors(spec, mtp=True)[len(numbers) :]:
        noise = torch.randn(t.shape, generator=generator)
        numbers[t.name] = 1 + 0.1 * noise if len(t.shape) == 1 else noise * t.shape[-1] ** -0.5
    write_huggingface(folder / "ours", spec, numbers.__getitem__)
    return spec, numbers


@pytest.mark.parametrize("case", PREDICTING)
def test_prediction_modules_go_out_and_come_back(case: str, tmp_path: Path) -> None:
    spec, numbers = save_predicting(case, tmp_path)
    stored = load_file(tmp_path / "ours" / "model.safetensors")
    for index in range(spec.mtp_layers):
        layer = f"model.layers.{spec.num_hidden_layers + index}"
        for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm", "mlp.experts.7.down_proj"):
            assert f"{layer}.{name}.weight" in stored, name
        assert torch.equal(stored[f"{layer}.embed_tokens.weight"], numbers["embed.weight"])
        assert torch.equal(stored[f"{layer}.shared_head.head.weight"], numbers["head.weight"])
    again = open_huggingface(tmp_path / "ours")
    assert again.spec.dump() | {"name": ""} == spec.dump() | {"name": ""}
    for t in tensors(spec, mtp=True):
        assert torch.equal(again.read(t.name), numbers[t.name]), t.name
    main = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    with torch.no_grad():
        assert (load_model(tmp_path / "ours")(tokens()) - main(tokens()).logits).abs().max() < TOLERANCE


@pytest.mark.parametrize("case", PREDICTING)
def test_drafts_equal_transformers(case: str, tmp_path: Path) -> None:
    """Its prediction model takes the token at its own position, ours at that of the hidden state: RoPE counts
    distances alone."""
    spec, _ = save_predicting(case, tmp_path)
    main = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    behind = [rf"model\.layers\.{spec.num_hidden_layers + k}.*" for k in range(spec.mtp_layers)]
    main._keys_to_ignore_on_load_unexpected = behind  # where transformers finds the modules' names
    theirs = MtpModel.from_pretrained(main).eval()
    ours = load_model(tmp_path / "ours")
    assert isinstance(ours, Decoder)
    ids = tokens()[:1]
    length = ids.shape[1] - spec.mtp_layers
    with torch.no_grad():
        expected = main(ids[:, :length], output_hidden_states=True).hidden_states[-1]
        hidden = ours.features(ids[:, :length])
        assert (hidden - expected).abs().max() < TOLERANCE
        for depth in range(1, spec.mtp_layers + 1):
            following = ids[:, depth : depth + length]
            positions = torch.arange(depth, depth + length)[None]
            expected = theirs.forward_layer(depth - 1, expected, positions, None, input_ids=following)
            hidden, logits = ours.draft(hidden, following, depth)
            assert (hidden - expected).abs().max() < TOLERANCE
            assert logits.std() > 0.05
            assert (logits - main.lm_head(expected)).abs().max() < TOLERANCE


def test_a_module_with_another_embedding_is_refused(tmp_path: Path) -> None:
    save_predicting("deepseek-v3", tmp_path)
    file = tmp_path / "ours" / "model.safetensors"
    stored = load_file(file)
    stored["model.layers.3.embed_tokens.weight"] += 1
    save_file(stored, file)
    with pytest.raises(UserError, match=r"layers\.3\.embed_tokens\.weight' differs from"):
        load_model(tmp_path / "ours")


def test_a_folder_without_its_modules_loads_without_them(tmp_path: Path) -> None:
    save_predicting("deepseek-v3", tmp_path)
    main = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    main.save_pretrained(tmp_path / "again")
    reader = open_huggingface(tmp_path / "again")
    assert reader.spec.mtp_layers == 0
    with pytest.raises(UserError, match=r"enorm\.weight' is missing.*train\.mtp_weight"):
        HuggingFaceFolder(tmp_path / "again", reader.spec.replace(mtp_layers=1))
