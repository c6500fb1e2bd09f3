"""`scalewright predict MODEL --cluster C --seq-len S`: what one layout costs; `--batch FILE`: a table's."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

from scalewright.cli.options import All, Json, Pairs, argument, flag, merge, option, parse_pairs, parse_value
from scalewright.cli.output import only_answer, print, print_json, working
from scalewright.cli.terminal import show
from scalewright.cli.verbs.presets import _cluster_names, _model_names
from scalewright.spec.common.numbers import number_of
from scalewright.spec.errors import UserError
from scalewright.spec.optimizers import NAMES

if TYPE_CHECKING:
    from scalewright.spec.question import Question

LAYOUT = {
    "devices", "tp", "sp", "pp", "virtual_stages", "schedule", "stage_layers", "cp", "cp_kind", "ep", "etp",
    "dp_replicate", "zero_stage", "micro_batch", "global_batch", "recompute", "precision", "offload",
}  # fmt: skip
AS_WELL = ("nodes", "global_batch_tokens")

Model = Annotated[
    str | None,
    argument("MODEL", "A preset, a config.json or its folder, hf:org/name, or a YAML file.", words=_model_names),
]
Cluster = Annotated[
    str | None, option("CLUSTER", "A preset, a device, a YAML file, or local.", "--cluster", "-c", words=_cluster_names)
]
From = Annotated[
    str | None,
    option("FILE", "Another trainer's configuration, script or command line, in place of MODEL and others.", "--from"),
]
Framework = Annotated[
    str | None, flag("Whose step time: scalewright, megatron, torchtitan, nanotron, deepspeed, nemo, ...")
]
Version = Annotated[str | None, flag("Its release, such as 25.11.", "--software-version")]
Options = Annotated[str | None, option("KEY=VALUE;...", "Its switches, such as compile=1.")]
OptimizerName = Annotated[
    str | None, option("|".join(NAMES), "Or your own, which is run to measure it: mine:Lion,lr=1e-3.", "--optimizer")
]
Diloco = Annotated[str | None, option("KEY=VALUE,...", "A run file's diloco: inner_steps=50,overlap=1.", "--diloco")]
Tokens = Annotated[float | None, flag("Tokens of the whole run: gives days and device-hours.")]
Price = Annotated[float | None, flag("Of one device for an hour; default: a dated list's, by cloud.")]
Currency = Annotated[str | None, option("CODE", "Of the price: USD, EUR, ...")]
Goodput = Annotated[
    float | None, flag("Share of the time that isn't lost to failures; default: by the number of devices.")
]

Prices = Annotated[str | None, option("FILE", "Your price list, before the one that comes along.", "--prices")]
Commitment = Annotated[
    str | None, option("on_demand|reserved_1y|reserved_3y|block|spot", "Of the price; default: on_demand.")
]
Cloud = Annotated[str | None, option("NAME", "Whose price: aws, gcp, lambda, ...; default: their range.")]
Region = Annotated[str | None, option("NAME", "Whose grid's CO2: us-east4, europe-west4, fr, world, ...")]


def predict(
    model: Model = None,
    cluster: Cluster = None,
    from_: From = None,
    seq_len: Annotated[int | None, flag("Tokens of a sequence.")] = None,
    devices: Annotated[int | None, flag("All devices.")] = None,
    nodes: Annotated[int | None, flag("The same, in the cluster's nodes.")] = None,
    tp: Annotated[int | None, flag("Tensor parallel size.")] = None,
    sp: Annotated[bool | None, flag("Sequence parallel; on with tp > 1.", "--sp/--no-sp")] = None,
    pp: Annotated[int | None, flag("Pipeline parallel size.")] = None,
    virtual_stages: Annotated[int | None, flag("Model chunks of a pipeline rank.")] = None,
    schedule: Annotated[str | None, flag("gpipe, 1f1b, interleaved, zb-h1, zbv, ...")] = None,
    stage_layers: Annotated[str | None, flag("Layers of each stage: 10,11,11,10, or 0,1x126,0.")] = None,
    cp: Annotated[int | None, flag("Context parallel size.")] = None,
    cp_kind: Annotated[str | None, flag("ring, ulysses or allgather.")] = None,
    ep: Annotated[int | None, flag("Expert parallel size.")] = None,
    etp: Annotated[int | None, flag("Tensor parallel size inside an expert.")] = None,
    dp_replicate: Annotated[int | None, flag("Replicas of the sharded group (HSDP).")] = None,
    zero_stage: Annotated[int | None, flag("0 = DDP, 3 = FSDP.")] = None,
    micro_batch: Annotated[int | None, flag("Sequences of a rank's forward.")] = None,
    global_batch: Annotated[int | None, flag("Sequences of a step.")] = None,
    global_batch_tokens: Annotated[int | None, flag("The same, in tokens.")] = None,
    recompute: Annotated[str | None, flag("none, selective, full, every=2 or budget=0.5.")] = None,
    precision: Annotated[str | None, flag("auto, fp32, tf32, bf16, fp16, fp8, ...")] = None,
    offload: Annotated[str | None, flag("none, optimizer, parameters, activations or all.")] = None,
    layout: Annotated[str | None, option("KEY=VALUE,...", "The same keys in one flag: tp=8,pp=4.")] = None,
    framework: Framework = None,
    software_version: Version = None,
    options: Options = None,
    optimizer: OptimizerName = None,
    diloco: Diloco = None,
    tokens: Tokens = None,
    price: Price = None,
    currency: Currency = None,
    goodput: Goodput = None,
    prices: Prices = None,
    commitment: Commitment = None,
    cloud: Cloud = None,
    region: Region = None,
    batch: Annotated[str | None, option("FILE", "Predict a table, CSV or JSON lines; - is stdin.")] = None,
    everything: All = False,
    json: Json = False,
) -> None:
    """Predict the step time and memory of one layout, or of a table of runs.

    \b
    scalewright predict llama-3.1-70b --cluster dgx-h100 --seq-len 8192 --nodes 64 --tp 8 --zero-stage 1
    scalewright predict llama-3.1-8b --cluster a100-pcie --seq-len 4096 --layout devices=8,recompute=full
    scalewright predict --batch runs.csv > predicted.jsonl
    """
    flags = dict(locals())
    if batch is not None:
        flags["all"] = flags.pop("everything") or None
        _batch(batch, {key: value for key, value in flags.items() if key not in ("batch", "json")})
        return
    how = "write `scalewright predict MODEL --cluster CLUSTER --seq-len 4096`, --from FILE, or --batch FILE"
    asked = read_question(from_, model) if from_ is not None else model
    asked, place = check_given(asked, cluster, "scalewright predict", how)
    keys = layout_keys({key: flags[key] for key in flags if key in {*LAYOUT, *AS_WELL}}, layout)
    from scalewright.api import predict as ask

    with only_answer(json), working("predicting"):
        answer = ask(
            asked, place, keys, seq_len, framework=framework, software_version=software_version,
            options=option_words(options), optimizer=optimizer, diloco=read_diloco(diloco), tokens=tokens,
            price=price, currency=currency, goodput=goodput, prices=prices, commitment=commitment, cloud=cloud,
            region=region,
        )  # fmt: skip
    if json:
        print_json(answer)
        return
    from scalewright.report.present import show_answer

    sizes = answer["layout"]
    named = f"--from {shlex.quote(from_)}" if from_ is not None else shlex.quote(str(model))
    given = ("--framework", framework) if framework is not None else ()
    command = (
        f"scalewright plan {named} -c {shlex.quote(place)} --devices {sizes['devices']} "
        f"--seq-len {answer['seq_len']} --global-batch {sizes['global_batch']} {' '.join(given)}"
    )
    show(show_answer(answer, command.strip()), everything)


def check_given(
    model: str | Question | None, cluster: str | None, command: str, how: str
) -> tuple[str | Question, str]:
    """The model (or a whole run) and the cluster, which a run file of ours may name; raises UserError with the command
    where one is missing."""
    if model is None:
        raise UserError("MODEL is missing", command, how)
    if cluster is None and not isinstance(model, str) and model.form is None:
        stated = model.run.cluster
        cluster = stated if isinstance(stated, str) and stated != "local" else None
    if cluster is None:
        raise UserError("--cluster is missing", command, how)
    return model, cluster


def read_question(source: str, model: str | None = None) -> Question:
    """A run of another trainer's (or ours), and on stderr what wasn't understood. Raises UserError.

    `model`: in the place of the file's.
    """
    from scalewright.api import read
    from scalewright.spec.question import unread_lines

    question = read(source, model)
    for line in unread_lines(question.unread):
        print(line, file=sys.stderr)
    return question


def _batch(path: str, rest: Pairs) -> None:
    """Predicts a table; nothing else may be given, as its rows contain all of it."""
    from scalewright.cli.batch import run_batch

    for key, value in rest.items():
        if value is not None:
            name = "MODEL" if key == "model" else "--" + key.replace("_", "-")
            raise UserError(f"{name} and --batch are both given", "--batch", "put it in the table's columns")
    run_batch(path, sys.stdout, lambda text: print(text, file=sys.stderr))


def layout_keys(flags: Pairs, pairs: str | None, flag: str = "--layout") -> Pairs:
    """The layout's keys from its flags and from `--layout key=value,...`."""
    from_flags = dict(flags)
    if from_flags.get("recompute"):
        from_flags["recompute"] = read_recompute(from_flags["recompute"])
    return merge(from_flags, read_pairs(pairs, flag, LAYOUT | set(AS_WELL)), flag)


def read_pairs(text: str | None, flag: str, known: set[str]) -> Pairs:
    """`tp=8,pp=4` as keys of a layout, of the `known` ones; raises UserError."""
    keys = parse_pairs(text, flag, sorted(known))
    if isinstance(keys.get("recompute"), str):
        keys["recompute"] = read_recompute(keys["recompute"])
    numbers = {key: number_of(value, key) for key, value in keys.items() if isinstance(value, str)}
    plain = {key: number for key, number in numbers.items() if number is not None}
    return keys | {key: int(number) if number == int(number) else number for key, number in plain.items()}


def read_diloco(text: str | None) -> Pairs | None:
    """`inner_steps=50,outer_dtype=int8` as the keys of a run file's `diloco`; raises UserError."""
    if text is None:
        return None
    from scalewright.spec.diloco import DilocoSpec

    return parse_pairs(text, "--diloco", sorted(DilocoSpec.model_fields))


def read_recompute(text: str) -> Any:
    """`full`, `every=2`, `budget=0.5`, or the two as YAML has them."""
    kind, equals, value = text.partition("=")
    where = "--recompute"
    return {kind.strip(): parse_value(value, where)} if equals else parse_value(text, where)


def option_words(text: str | None) -> dict[str, str]:
    """`key=value;key=value` (commas do as well) of a trainer."""
    from scalewright.plan.rows.cells import read_options

    return read_options((text or "").replace(",", ";"))
