"""The chat template as an engine uses it: a turn that the model can end, and a prompt that begins its own.

    user: hi │ <|im_start|>assistant\n │ hello │ <|im_end|>
             └ generation prompt       └ turn  └ must be an eos id, or a server writes the user's next turn, too

A stranger's template is rendered in a process of its own, with limits on time and memory (spec/chat.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from scalewright.checkpoint.lint.ends import ending
from scalewright.checkpoint.lint.folder import GENERATION, TOKENIZER_CONFIG, Export, problem, warn
from scalewright.spec.chat import FILE, render_apart, special_tokens, templates
from scalewright.spec.errors import Finding, UserError

ASKED, ANSWER = "Where is north?", "Qwxyz north."  # an answer that no template writes by itself
USER, ASSISTANT = {"role": "user", "content": ASKED}, {"role": "assistant", "content": ANSWER}
CHATS = [([USER, ASSISTANT], False), ([USER, ASSISTANT, USER], False), ([USER], True), ([USER], False)]


def check(export: Export) -> Iterator[Finding]:
    """Findings about the chat template; none where there is none."""
    try:
        held = templates(export.folder)
    except UserError as error:
        yield problem(FILE, "unread", error.what, error.how)
        return
    if not held:
        return
    where, template = next(iter(held.items()))
    if len({text.strip() for text in held.values()}) > 1:
        what = f"another template than in {list(held)[1]}: engines of different age take different ones"
        yield warn(where, "two templates", what, "keep one of them")
    try:
        tokens = special_tokens(export.json.get(TOKENIZER_CONFIG, {}))
        turn, on, asked, bare = render_apart(template, CHATS, tokens)
    except UserError as error:
        yield problem(where, "renders", error.what, error.how)
        return
    if ANSWER not in turn:
        yield problem(where, "turn", "it leaves out what the assistant wrote", "take the one of training")
        return
    before, _, after = turn.rpartition(ANSWER)
    # the last turn may end otherwise than one before (gpt-oss), or the user's beginning may be what ends it (GLM)
    following = on.rpartition(ANSWER)[2].partition(ASKED)[0]
    yield from _ended(export, where, after or following, following)
    if asked == bare and turn.startswith(bare) and before[len(bare) :].strip():
        what = f"no generation prompt: a model would have to write {before[len(bare) :]!r} itself"
        yield problem(where, "generation prompt", what, "render it under `if add_generation_prompt`")


def _ended(export: Export, where: str, after: str, further: str) -> Iterator[Finding]:
    """Whether what follows an answer has a token that ends generation, at the end of a chat or `further` in it."""
    by_id = {number: name for name, number in export.words.items()}
    ends = {name for number in ending(export) if (name := by_id.get(number))}
    if not export.words or any(name in after or name in further for name in ends):
        return
    shown = sorted(ends) or "unknown"
    marks = (name for name in export.words if name[:1] in ("<", "[") and len(name) > 2)
    closing = max((name for name in marks if after.strip().startswith(name)), key=len, default=None)
    if closing is None:
        what = f"nothing ends an assistant's turn: {after!r} follows it, and eos is {shown}"
        yield problem(where, "turn", what, "write eos_token behind what the assistant wrote")
        return
    # a base model that came with a template is no error: nobody chats with it
    what = f"{closing} (id {export.words[closing]}) ends a turn, and eos is {shown}: a chat never stops"
    how = f"add {export.words[closing]} to eos_token_id in {GENERATION}, if turns ended with it in training"
    yield warn(where, "turn", what, how)
