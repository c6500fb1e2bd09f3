"""Tensors: names are unique and counts are exact for shapes that can be added up by hand."""

from __future__ import annotations

from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import count, tensors

DENSE = ModelSpec.parse(
    {
        "vocab_size": 10,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
)


def test_a_small_model_adds_up_by_hand() -> None:
    attention = 8 * 8 + 2 * (4 * 8) + 8 * 8  # q, k and v, o
    block = attention + 3 * 8 * 16 + 2 * 8  # with the MLP's three matrices and two norms
    assert count(DENSE).total == 2 * block + 2 * 10 * 8 + 8
    assert count(DENSE.replace(tie_word_embeddings=True)).total == 2 * block + 10 * 8 + 8


def test_active_parameters_take_top_k_of_the_experts() -> None:
    moe = {"num_experts": 4, "top_k": 1, "moe_intermediate_size": 16, "num_shared_experts": 1}
    sparse = count(DENSE.replace(moe=moe))
    expert = 3 * 8 * 16
    assert sparse.total - sparse.active == 2 * 3 * expert
    assert sparse.active_without_input == sparse.active - 80
    assert sparse.active_without_any_embedding == sparse.active - 160


def test_names_are_unique_and_carry_their_layer() -> None:
    specs = tensors(DENSE)
    assert len({tensor.name for tensor in specs}) == len(specs)
    for tensor in specs:
        if tensor.name.startswith("layers."):
            assert int(tensor.name.split(".")[1]) == tensor.layer
    assert specs[0].layer == -1
    assert specs[-1].layer == DENSE.num_hidden_layers


def test_prediction_layers_are_counted_apart() -> None:
    with_mtp = DENSE.replace(mtp_layers=1)
    extra = sum(t.size for t in tensors(with_mtp, mtp=True)) - sum(t.size for t in tensors(with_mtp))
    assert count(with_mtp).total == count(DENSE).total
    assert count(with_mtp).mtp == extra > 0


def test_a_tied_head_is_one_tensor_with_two_homes() -> None:
    embed = tensors(DENSE.replace(tie_word_embeddings=True))[0]
    assert embed.tied_to == "head.weight"
    assert not any(t.name == "head.weight" for t in tensors(DENSE.replace(tie_word_embeddings=True)))
