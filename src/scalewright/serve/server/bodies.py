"""What the bodies of requests may contain: OpenAI's keys, a few of vLLM's, and an error for any other.

A key that would be ignored is refused instead: the answer would not be the one that was asked for.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator
from pydantic_core import ErrorDetails

from scalewright.serve.sampling import Sampling, seed_at

LONGEST = 1 << 20  # tokens to write
Token = Annotated[StrictInt, Field(ge=0, lt=1 << 31)]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]
Choices = Annotated[StrictInt, Field(ge=1, le=128)]


class Body(BaseModel):
    """Any body."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str | None = None


class StreamOptions(BaseModel):
    """Of a streamed answer."""

    model_config = ConfigDict(extra="forbid")

    include_usage: StrictBool = False


class JsonSchema(BaseModel):
    """A schema and its name, which nothing is done with."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """Text, any JSON, or JSON by a schema."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Written(Body):
    """What completions and chats have in common."""

    n: Choices | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    seed: Annotated[StrictInt, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    temperature: StrictFloat | None = None
    top_p: StrictFloat | None = None
    presence_penalty: StrictFloat | None = None
    frequency_penalty: StrictFloat | None = None
    logit_bias: dict[int, StrictFloat] | None = None
    top_k: Annotated[StrictInt, Field(ge=-1)] | None = None  # -1 as 0: all tokens
    min_p: StrictFloat | None = None
    repetition_penalty: StrictFloat | None = None
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | None = None
    guided_regex: str | None = None
    user: str | None = None  # and those below: nothing depends on them
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _check_grammar(self) -> Written:
        schema = self.response_format.json_schema if self.response_format else None
        if self.response_format and self.response_format.type == "json_schema" and not (schema and schema.schema_):
            raise ValueError("response_format json_schema needs json_schema.schema")
        if sum(given is not None for given in (self.grammar, self.guided_regex)) > 1:
            raise ValueError("give one of response_format, guided_json and guided_regex")
        return self

    @property
    def grammar(self) -> dict[str, Any] | None:
        """The JSON schema that the text must follow; {} for any JSON."""
        if self.guided_json is not None:
            return self.guided_json
        if self.response_format is None or self.response_format.type == "text":
            return None
        schema = self.response_format.json_schema
        return {"type": "object"} if schema is None or schema.schema_ is None else schema.schema_

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def sampling(self, drawn: int, prompt: int, choice: int) -> Sampling:
        """That of one choice of one prompt; `drawn` is the seed of a body without one. Raises UserError."""
        keys = (
            "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
            "logit_bias",
        )  # fmt: skip
        given = {key: value for key in keys if (value := getattr(self, key)) is not None}
        seed = drawn if self.seed is None else self.seed % (1 << 63)
        return Sampling(seed=seed_at(seed, prompt, choice), top_k=max(0, self.top_k or 0), **given)


class Completion(Written):
    """/v1/completions."""

    prompt: str | list[Token] | list[str] | list[list[Token]] = ""
    suffix: str | None = None
    max_tokens: Annotated[StrictInt, Field(ge=0, le=LONGEST)] | None = 16
    logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    echo: StrictBool | None = None
    best_of: StrictInt | None = None

    @model_validator(mode="after")
    def _check(self) -> Completion:
        self.suffix = self.suffix or None  # an empty one fills no gap
        if self.best_of not in (None, self.n or 1):
            raise ValueError("best_of must be n: all that is written is returned")
        if self.suffix is not None and self.echo:
            raise ValueError("echo and suffix can't be given together")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens 0 writes nothing: it is for echo")
        return self


class Message(BaseModel):
    """One turn of a chat; keys beside these are the template's."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[dict[str, Any]] | None = None


class Chat(Written):
    """/v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[StrictInt, Field(ge=1, le=LONGEST)] | None = None
    max_completion_tokens: Annotated[StrictInt, Field(ge=1, le=LONGEST)] | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None  # and those below: as clients say "none"
    tool_choice: Literal["none"] | None = None
    parallel_tool_calls: Literal[False] | None = None

    @model_validator(mode="after")
    def _check(self) -> Chat:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self


class Tokenize(Body):
    """/tokenize: a text, or a chat."""

    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: StrictBool = True

    @model_validator(mode="after")
    def _check(self) -> Tokenize:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give prompt or messages")
        return self


class Detokenize(Body):
    """/detokenize."""

    tokens: list[Token]


KINDS = {
    "string_type": "a string", "int_type": "an integer", "int_from_float": "an integer",
    "float_type": "a number", "bool_type": "true or false", "list_type": "a list", "dict_type": "an object",
    "model_type": "an object", "model_attributes_type": "an object",
}  # fmt: skip
EXPECTED = {"prompt": "a string, a list of strings, a list of token ids, or a list of such lists"}
NO_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")


def mistake(errors: Sequence[ErrorDetails]) -> tuple[str | None, str]:
    """The first key that is wrong, None for the body as a whole, and what is wrong with it, as OpenAI words it."""
    param = str(errors[0]["loc"][0]) if errors[0]["loc"] else None
    mine = [each for each in errors if (str(each["loc"][0]) if each["loc"] else None) == param]
    if param in NO_TOOLS:
        return param, f"{param}: this key isn't taken here: there are no tools"
    other = [each["msg"].removeprefix("Value error, ") for each in mine if each["type"] not in KINDS]
    if other:
        message = " or ".join([*dict.fromkeys(other)][:3]).replace("Input should be", "it should be")
        return param, f"{param}: {message}" if param else message
    expected = EXPECTED.get(param or "") or " or ".join(dict.fromkeys(KINDS[each["type"]] for each in mine))
    return param, f"Invalid type for '{_place(mine[0])}': expected {expected}"


def _place(error: ErrorDetails) -> str:
    """`messages[0].role`, `n`; without pydantic's names of a union's kinds."""
    first, *rest = error["loc"] or ("the body",)
    if first == "messages" and rest:
        return f"messages[{rest[0]}]" + "".join(f".{part}" for part in rest[1:2])
    return str(first)


def drawn_seed() -> int:
    """The seed of a body that has none."""
    return secrets.randbits(48)
