"""/v1/completions by OpenAI's own client, over a socket."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from scalewright.serve.sampling import seed_at
from serve.server.fake import serving


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("served") / "tiny") as (url, _):
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)


def test_a_text_goes_on(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="To be", max_tokens=7, temperature=0)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason, choice.index) == ("To beTo", "length", 0)
    assert answer.object == "text_completion"
    assert answer.model == "tiny"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 7, 12)


def test_the_end_of_text_ends_it(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="ab", max_tokens=50, temperature=0)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("ababab", "stop")
    assert answer.usage.completion_tokens == 7  # the token that ended it, too


def test_a_stream_has_the_same_text_and_its_usage(client: openai.OpenAI) -> None:
    keys = {"model": "tiny", "prompt": "To be é", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**keys)
    chunks = list(client.completions.create(**keys, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "length"
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
    assert len({chunk.id for chunk in chunks}) == 1


def test_characters_across_tokens_arrive_whole(client: openai.OpenAI) -> None:
    stream = client.completions.create(model="tiny", prompt="é€😀", max_tokens=18, temperature=0, stream=True)
    texts = [chunk.choices[0].text for chunk in stream]
    assert "�" not in "".join(texts)
    assert [text for text in texts if text] == ["é", "€", "😀"] * 2


def test_a_stop_string_across_tokens(client: openai.OpenAI) -> None:
    for stream in (False, True):
        answer = client.completions.create(
            model="tiny", prompt="one two ", max_tokens=30, temperature=0, stop=["two o"], stream=stream
        )
        chunks = list(answer) if stream else [answer]
        assert "".join(chunk.choices[0].text for chunk in chunks) == "one "
        assert chunks[-1].choices[0].finish_reason == "stop"


def test_prompts_of_four_forms(client: openai.OpenAI) -> None:
    def texts(prompt: object) -> list[str]:
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=2, temperature=0)  # type: ignore[call-overload]
        return [choice.text for choice in answer.choices]

    assert texts("hi") == texts([104, 105]) == ["hi"]
    assert texts(["hi", "yo"]) == texts([[104, 105], [121, 111]]) == ["hi", "yo"]


def test_choices_differ_by_their_seeds(client: openai.OpenAI) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    answer = client.completions.create(model="tiny", prompt=[letters, letters], n=2, max_tokens=3, seed=3)
    texts = [each.text for each in answer.choices]
    assert [each.index for each in answer.choices] == [0, 1, 2, 3]
    assert texts == [(letters * 2)[n : n + 3] for n in (seed_at(3, j, i) % 26 for j in (0, 1) for i in (0, 1))]
    assert (texts[0], len(set(texts))) == ("def", 4)
    assert answer.usage.prompt_tokens == 52


def test_prompts_without_a_seed_do_not_copy_each_other(client: openai.OpenAI) -> None:
    prompt = [[*range(256)]] * 8
    answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=1, logprobs=0)
    assert len({tuple(each.logprobs.tokens) for each in answer.choices}) > 3  # by chance: below 256^-4


def test_logprobs_and_echo(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="hé", max_tokens=2, temperature=0, logprobs=2, echo=True)
    (choice,) = answer.choices
    assert choice.text == "héh\ufffd"  # the last token is half a character
    assert choice.logprobs.tokens == ["h", "bytes:\\xc3", "bytes:\\xa9", "h", "bytes:\\xc3"]
    assert choice.logprobs.token_logprobs == [None, *2 * [math.log(0.25)], *2 * [math.log(0.5)]]
    assert choice.logprobs.top_logprobs[0] is None
    assert choice.logprobs.top_logprobs[3] == {"h": math.log(0.5), "g": math.log(0.25)}
    assert choice.logprobs.text_offset == [0, 1, 1, 2, 3]


@pytest.mark.parametrize("prompt", ["é😀a", list("é😀a".encode())], ids=["text", "tokens"])
@pytest.mark.parametrize("stream", [False, True])
def test_offsets_point_into_the_text(client: openai.OpenAI, prompt: object, stream: bool) -> None:
    """Of tokens within a character to its beginning; also in what is written, and behind a special token."""
    keys = {"prompt": prompt, "max_tokens": 7, "temperature": 0, "logprobs": 0, "echo": True, "stream": stream}
    answer = client.completions.create(model="tiny", **keys)  # type: ignore[call-overload]
    choices = [part.choices[0] for part in answer] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == "é😀aé😀a"
    offsets = [offset for choice in choices if choice.logprobs for offset in choice.logprobs.text_offset]
    assert offsets == [0, 0, 1, 1, 1, 1, 2, 3, 3, 4, 4, 4, 4, 5]


def test_offsets_count_special_tokens_where_the_text_has_them(client: openai.OpenAI) -> None:
    keys = {"max_tokens": 0, "logprobs": 0, "echo": True}
    for prompt, text, offsets in (("<|user|>ab", "<|user|>ab", [0, 8, 9]), ([257, 97, 98], "ab", [0, 0, 1])):
        (choice,) = client.completions.create(model="tiny", prompt=prompt, **keys).choices  # type: ignore[call-overload]
        assert (choice.text, choice.logprobs.text_offset) == (text, offsets)


def test_an_echo_of_nothing_has_no_tokens(client: openai.OpenAI) -> None:
    (choice,) = client.completions.create(model="tiny", prompt="", max_tokens=0, logprobs=0, echo=True).choices
    assert (choice.text, choice.logprobs.tokens, choice.logprobs.text_offset) == ("", [], [])


def test_an_echo_alone_scores_a_text(client: openai.OpenAI) -> None:
    for prompt in ("abc", [97, 98, 99]):
        answer = client.completions.create(
            model="tiny", prompt=prompt, max_tokens=0, temperature=0, logprobs=0, echo=True
        )
        (choice,) = answer.choices
        assert (choice.text, choice.logprobs.tokens) == ("abc", ["a", "b", "c"])
        assert choice.logprobs.token_logprobs == [None, *2 * [math.log(0.25)]]
        assert (choice.finish_reason, answer.usage.completion_tokens) == ("length", 0)


def test_a_gap_is_filled_by_the_tokenizer_s_format(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="ab", suffix="cd", max_tokens=50, temperature=0)
    assert answer.usage.prompt_tokens == 7
    assert answer.choices[0].text == "abcd" * 3
    with pytest.raises(openai.BadRequestError, match="suffix needs a prompt that is one string"):
        client.completions.create(model="tiny", prompt=["ab"], suffix="cd")


def test_more_than_openai_s_keys(client: openai.OpenAI) -> None:
    extra = {"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1}
    answer = client.completions.create(
        model="tiny", prompt="abc", max_tokens=3, seed=0, top_p=0.9, presence_penalty=0.5, frequency_penalty=-0.5,
        logit_bias={"97": -100}, best_of=1, user="me", extra_body=extra,
    )  # fmt: skip
    assert answer.choices[0].text == "abc"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"top_p": 0}, "top_p is 0"),
        ({"prompt": []}, "the prompt has no tokens"),
        ({"prompt": [9999]}, "token 9999 is outside"),
        ({"max_tokens": -1}, "greater than or equal to 0"),
        ({"max_tokens": 100_000}, "too long"),
        ({"n": 2, "best_of": 3}, "best_of must be n"),
        ({"stop": ""}, "at least 1 character"),
        ({"logit_bias": {"262": 1}}, "logit_bias: token 262 is outside the model's vocabulary of 262"),
        ({"max_tokens": True}, "Invalid type for 'max_tokens': expected an integer"),
        ({"prompt": [1.5]}, "Invalid type for 'prompt': expected a string, a list of strings, a list of token ids"),
        ({"stop": 5}, "Invalid type for 'stop': expected a string or a list"),
        ({"n": 0}, "n: it should be greater than or equal to 1"),
        ({"logprobs": True}, "logprobs.*integer"),
        ({"temperature": True}, "temperature.*number"),
        ({"seed": 1 << 63}, "seed.*less than 9223372036854775808"),
        ({"seed": -(1 << 63) - 1}, "seed.*greater than or equal to -9223372036854775808"),
        ({"logit_bias": {"x": 1}}, "valid integer"),
        ({"extra_body": {"beam_width": 4}}, "beam_width: this key isn't taken here"),
        ({"extra_body": {"max_token": 4}}, "did you mean max_tokens"),
    ],
    ids=str,
)
def test_a_mistake_is_named(client: openai.OpenAI, keys: dict[str, object], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        client.completions.create(**{"model": "tiny", "prompt": "a", **keys})  # type: ignore[call-overload]
    assert caught.value.status_code == 400
    assert caught.value.body["type"] == "invalid_request_error"  # type: ignore[index]


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "scalewright"
    with pytest.raises(openai.NotFoundError, match="this server has 'tiny'") as caught:
        client.completions.create(model="gpt-4", prompt="a")
    assert caught.value.code == "model_not_found"


def test_a_name_with_slashes_is_a_model_s(tmp_path: Path, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/other")


def test_json_by_a_schema_and_a_pattern(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"const": True}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}
    for extra in ({"response_format": wanted}, {"guided_json": schema}):
        answer = client.completions.create(model="tiny", prompt="a", max_tokens=20, n=2, extra_body=extra)
        for choice in answer.choices:
            assert json.loads(choice.text) == {"ok": True}
    answer = client.completions.create(model="tiny", prompt="a", max_tokens=20, extra_body={"guided_regex": "xy{2}"})
    assert answer.choices[0].text == "xyy"
    with pytest.raises(openai.BadRequestError, match="no grammar can be made of it"):
        client.completions.create(model="tiny", prompt="a", extra_body={"guided_regex": "("})


@pytest.mark.parametrize(
    ("param", "value"),
    [("guided_regex", "("), ("guided_json", {"type": "nothing"}), ("top_p", 0), ("temperature", -1), ("min_p", 2),
     ("frequency_penalty", 3), ("logit_bias", {"5": 300}), ("prompt", 5), ("top_k", -2)],
)  # fmt: skip
def test_the_param_of_a_mistake(client: openai.OpenAI, param: str, value: object) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="a", extra_body={param: value})
    assert caught.value.param == param


def test_keys_that_say_nothing_are_taken(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="abc", suffix="", max_tokens=3, temperature=0, extra_body={"top_k": -1}
    )
    assert (answer.choices[0].text, answer.usage.prompt_tokens) == ("abc", 3)
