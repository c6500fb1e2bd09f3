"""`predict`: the promised keys, one line for each kind of mistake, and a table row by row."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from tests.cli.blocked import run_without_torch

import scalewright as sw
from scalewright.plan.fitting.runs import MEASURED, read_table

ASKED = ["llama-3.1-8b", "--cluster", "dgx-h100", "--seq-len", "4096"]
LAYOUT = ["--devices", "64", "--tp", "4", "--pp", "2", "--zero-stage", "1", "--global-batch", "128"]


def predicted(call_cli, *arguments):
    """The answer to a question that has one."""
    answer = call_cli("predict", *arguments, "--json")
    assert answer.code == 0, answer.err
    return answer.json()


# -- keys -----------------------------------------------------------------------------------------


def test_every_promised_key(call_cli):
    found = predicted(call_cli, *ASKED, *LAYOUT, "--tokens", "1e12", "--price", "2")
    assert {
        "model", "layout", "fits", "step_time_s", "tokens_per_s", "tokens_per_s_per_device",
        "tflops_per_device", "flops_convention", "mfu", "hfu", "memory_gib", "time_breakdown_s",
        "comm_bytes", "bottleneck", "what_if", "assumed", "smallest_fix", "evidence", "total",
    } <= set(found)  # fmt: skip
    assert {"params", "active_params", "flops_per_token"} <= set(found["model"])
    assert list(found["step_time_s"]) == ["p10", "p50", "p90"]
    kinds = ["peak", "parameters", "gradients", "optimizer", "activations", "buffers", "other"]
    assert list(found["memory_gib"]) == kinds
    assert list(found["time_breakdown_s"]) == [
        "compute", "tp_exposed", "dp_exposed", "cp_exposed", "ep_exposed", "pp_bubble", "pp_exposed",
        "optimizer", "recompute", "other",
    ]  # fmt: skip
    assert list(found["comm_bytes"]) == ["tp", "dp", "cp", "ep", "pp"]
    assert set(found["evidence"]) == {"nearest", "extrapolates", "never_measured", "framework", "band_wider"}
    assert set(found["evidence"]["nearest"][0]) == {
        "source", "trainer", "date", "model", "device", "n_devices", "layout", "seq_len", "measured",
        "predicted",
    }  # fmt: skip
    keys = {"days", "device_hours", "cost", "currency", "goodput", "band", "failures_device_hours", "left_out"}
    keys |= {"energy_kwh", "co2_kg"}
    assert set(found["total"]) == keys
    assert set(found["what_if"][0]) == {"change", "kind", "step_time_s", "gain_pct"}


def test_the_numbers_agree_with_each_other(call_cli):
    found = predicted(call_cli, *ASKED, *LAYOUT, "--tokens", "1e12", "--price", "2")
    seconds, layout = found["step_time_s"]["p50"], found["layout"]
    assert sum(found["time_breakdown_s"].values()) == pytest.approx(seconds, rel=1e-9)
    assert found["step_time_s"]["p10"] < seconds < found["step_time_s"]["p90"]
    assert found["tokens_per_s"] == pytest.approx(128 * 4096 / seconds)
    assert found["tokens_per_s_per_device"] == pytest.approx(found["tokens_per_s"] / 64)
    assert layout["dp"] == 8
    gains = [change["gain_pct"] for change in found["what_if"]]
    assert gains == sorted(gains, reverse=True)
    total = found["total"]
    assert total["days"] == pytest.approx(1e12 / found["tokens_per_s"] / 86400 / total["goodput"])
    assert total["device_hours"] == pytest.approx(total["days"] * 24 * 64)
    assert total["cost"] == pytest.approx(2 * total["device_hours"])


def test_a_cluster_files_price_is_the_runs(call_cli, tmp_path):
    (tmp_path / "mine.yaml").write_text("like: dgx-h100\nnodes: 8\nprice_per_device_hour: 3.0\n")
    asked = ["llama-3.1-8b", "--cluster", tmp_path / "mine.yaml", "--seq-len", "4096", *LAYOUT]
    total = predicted(call_cli, *asked, "--tokens", "1e12")["total"]
    assert total["cost"] == pytest.approx(3 * total["device_hours"])
    total = predicted(call_cli, *asked, "--tokens", "1e12", "--price", "2")["total"]
    assert total["cost"] == pytest.approx(2 * total["device_hours"])


def test_a_whole_runs_cost_has_a_currency_and_a_goodput(call_cli):
    asked = (*ASKED, "--devices", "1024", "--tokens", "1e12", "--price", "2")
    usual, said = (predicted(call_cli, *asked), predicted(call_cli, *asked, "--currency", "eur", "--goodput", "0.5"))
    assert usual["total"]["currency"] == "USD"
    assert 0.99 < usual["total"]["goodput"] < 1  # 0.02 stops an hour, 10 minutes each; saves of 96 GB
    share = f"{100 * usual['total']['goodput']:.4g}%"
    spare = "24 spare devices paid for as the others"
    words = f"goodput {share} (failures as in Llama 3's run, saves at their best interval, {spare})"
    assert {"currency USD", words} <= set(usual["assumed"])
    assert (said["total"]["currency"], said["total"]["goodput"]) == ("EUR", 0.5)
    assert not any("goodput" in line or "currency" in line for line in said["assumed"])
    for found, spares in ((usual, 24), (said, 0)):
        total = found["total"]
        assert total["days"] == pytest.approx(1e12 / found["tokens_per_s"] / 86400 / total["goodput"])
        assert total["device_hours"] == pytest.approx(total["days"] * 24 * (1024 + spares))
        assert total["cost"] == pytest.approx(2 * total["device_hours"])
        assert total["failures_device_hours"] == pytest.approx(total["device_hours"] * (1 - total["goodput"]))
        assert "evaluation" in total["left_out"]
    shown = call_cli("predict", *asked, "--goodput", "0.5").out
    half = f"{said['total']['device_hours'] / 2:,.0f}"
    assert re.search(rf"in it +saves, stops and restarts, {half} device-hours; not in it: evaluation", shown)
    text = call_cli("predict", *asked, "--currency", "EUR", "--goodput", "0.5").out
    assert re.search(r"device-hours, which cost [\d,]+ EUR, at a goodput of 0.5", text)
    unpriced = predicted(call_cli, *ASKED, "--devices", "1024", "--tokens", "1e12")["total"]
    assert unpriced["cost"] > 2.4 * unpriced["device_hours"]  # by the list
    assert unpriced["currency"] == "USD"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--goodput", "0.9"], "goodput is given without tokens (--goodput): add --tokens 1e12"),
        (["--currency", "EUR"], "currency is given without tokens"),
        (["--tokens", "1e12", "--currency", "EUR"], "currency is given without a price"),
        (
            ["--tokens", "1e12", "--price", "2", "--currency", "euro"],
            "currency is 'euro' (--currency): give a code of ISO 4217",
        ),
        (["--tokens", "1e12", "--goodput", "1.5"], "goodput is 1.5 (--goodput): give the share of the time"),
        (["--tokens", "1e12", "--goodput", "0"], "goodput is 0"),
    ],
)
def test_currencies_and_goodputs_that_are_none(call_cli, flags, words):
    answer = call_cli("predict", *ASKED, "--devices", "8", *flags)
    assert answer.code == 2
    assert words in answer.err


def test_the_same_layout_said_in_other_ways(call_cli):
    one = predicted(call_cli, *ASKED, *LAYOUT)
    pairs = "devices=64,tp=4,pp=2,zero_stage=1,global_batch=128"
    tokens = ["--nodes", "8", "--tp", "4", "--global-batch-tokens", str(128 * 4096)]
    assert predicted(call_cli, *ASKED, "--layout", pairs)["layout"] == one["layout"]
    assert predicted(call_cli, *ASKED, *tokens, "--layout", "pp=2,zero-stage=1")["layout"] == one["layout"]
    again = sw.predict("llama-3.1-8b", "dgx-h100", one["layout"], 4096)
    assert again["step_time_s"] == one["step_time_s"]


@pytest.mark.parametrize(
    ("pairs", "devices", "batch"),
    [("devices=64,global_batch=1.024k", 64, 1024), ("devices=0.064k,global_batch=1_024", 64, 1024),
     ("devices=64,global_batch=1.024e3", 64, 1024)],
)  # fmt: skip
def test_numbers_of_a_layout_take_suffixes(call_cli, pairs, devices, batch):
    layout = predicted(call_cli, *ASKED, "--layout", pairs)["layout"]
    assert (layout["devices"], layout["global_batch"]) == (devices, batch)


@pytest.mark.parametrize("value", ["1kk", "8x", "7B"])
def test_numbers_of_a_layout_are_echoed(call_cli, value):
    answer = call_cli("predict", *ASKED, "--layout", f"devices=64,micro_batch={value}")
    assert answer.code == 2
    assert f"micro_batch is {value!r}".replace("'7B'", "7000000000") in answer.err


def test_every_layout_key_has_a_flag(call_cli):
    flags = [
        "--devices=32", "--tp=2", "--no-sp", "--pp=2", "--virtual-stages=2", "--schedule=interleaved",
        "--stage-layers=10,8x2,6", "--cp=2", "--cp-kind=allgather", "--ep=1", "--etp=1", "--dp-replicate=2",
        "--zero-stage=1", "--micro-batch=2", "--global-batch=64", "--recompute=full", "--precision=fp16",
        "--offload=optimizer",
    ]  # fmt: skip
    layout = predicted(call_cli, *ASKED, *flags)["layout"]
    assert layout["stage_layers"] == [10, 8, 8, 6]
    said = {key: layout[key] for key in ("sp", "virtual_stages", "schedule", "cp_kind", "dp_replicate")}
    assert said == {"sp": False, "virtual_stages": 2, "schedule": "interleaved", "cp_kind": "allgather",
                    "dp_replicate": 2}  # fmt: skip
    assert (layout["precision"], layout["offload"], layout["recompute"]) == ("fp16", "optimizer", "full")


@pytest.mark.parametrize("words", ["every=2", "budget=0.5", "{every: 2}"])
def test_kinds_of_recomputation(call_cli, words):
    found = predicted(call_cli, *ASKED, "--devices", "8", "--recompute", words)
    assert found["time_breakdown_s"]["recompute"] > 0


def test_blanks_are_named(call_cli):
    found = predicted(call_cli, "llama-3.1-8b", "--cluster", "dgx-h100", "--tp", "4")
    lines = found["assumed"]
    for start in ("seq_len 131072", "devices 4", "sp true", "micro_batch 1", "global_batch 1 ",
                  "zero_stage 3", "recompute none", "precision bf16", "framework scalewright",
                  "optimizer adamw"):  # fmt: skip
        assert any(line.startswith(start) for line in lines), (start, lines)
    everything = predicted(
        call_cli, *ASKED, *LAYOUT, "--sp", "--schedule", "1f1b", "--micro-batch", "1", "--recompute",
        "none", "--precision", "bf16", "--framework", "megatron", "--software-version", "25.04",
    )  # fmt: skip
    assert everything["assumed"] == []


def test_islands_are_priced(call_cli):
    asked = ("llama-3.1-8b", "--cluster", "dgx-h100", "--seq-len", 4096, "--devices", 64)
    plain = predicted(call_cli, *asked, "--layout", "dp_replicate=8")
    apart = predicted(call_cli, *asked, "--layout", "dp_replicate=8", "--diloco", "inner_steps=50,overlap=1")
    assert apart["diloco"]["inner_steps"] == 50
    assert apart["comm_bytes"]["dp"] < plain["comm_bytes"]["dp"]
    assert apart["memory_gib"]["optimizer"] > plain["memory_gib"]["optimizer"]
    assert "diloco" not in plain
    assert "dp_replicate is 1" in call_cli("predict", *asked, "--diloco", "inner_steps=50").error
    assert "unknown key 'steps'" in call_cli("predict", *asked, "--diloco", "steps=50").error


def test_each_optimizer_is_planned_with_its_own_memory(call_cli):
    sizes = {}
    for name in ("adamw", "lion", "sgd"):
        found = predicted(call_cli, *ASKED, *LAYOUT, "--optimizer", name)
        assert found["optimizer"] == name
        assert not any(line.startswith("optimizer") for line in found["assumed"])
        sizes[name] = found["memory_gib"]["optimizer"]
    assert sizes["sgd"] == 0
    assert sizes["adamw"] == pytest.approx(2 * sizes["lion"], rel=1e-5)  # and a count of steps a tensor
    assert predicted(call_cli, *ASKED, *LAYOUT)["memory_gib"]["optimizer"] == sizes["adamw"]


@pytest.mark.parametrize(
    ("flags", "year"),
    [
        (["--framework", "megatron"], "megatron-core 0.19 (--software-version selects another)"),
        (["--framework", "nemo"], "megatron-core 0.19 (--software-version selects another)"),
        (["--framework", "nemo", "--software-version", "25.04"], None),
        (["--framework", "megatron-2021"], None),
        (["--framework", "scalewright"], None),
        (["--framework", "unknown"], "framework unknown: priced as the usual trainer of 2026"),
    ],
)
def test_a_trainers_assumed_date_is_named(call_cli, flags, year):
    lines = predicted(call_cli, *ASKED, *LAYOUT, *flags)["assumed"]
    dated = [line for line in lines if " of 20" in line or "selects another" in line]
    assert dated == ([] if year is None else [year])


def test_framework_and_version_change_the_answer(call_cli):
    ours = predicted(call_cli, *ASKED, *LAYOUT)
    old = predicted(call_cli, *ASKED, *LAYOUT, "--framework", "megatron-lm", "--software-version", "2021")
    assert old["evidence"]["framework"] != ours["evidence"]["framework"]
    assert old["step_time_s"]["p50"] != ours["step_time_s"]["p50"]
    strange = predicted(call_cli, *ASKED, *LAYOUT, "--framework", "unknown")
    assert any("priced as the usual trainer of 2026" in line for line in strange["assumed"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--framework", "quux"], "unknown framework 'quux' (--framework): use one of scalewright, "),
        (
            ["--days", "30"],
            "unknown option --days (scalewright predict): days, device-hours and money come out of --tokens",
        ),
        (["--framework", "megatrn"], "unknown framework 'megatrn' (--framework): did you mean 'megatron'"),
        (["--framework", "torchtitn"], "did you mean 'torchtitan'"),
        (["--framework", "mine"], "'unknown' stands for a trainer that isn't listed"),
        (["--options", "foo=1"], "unknown option 'foo' (--options): use one of async_tp"),
        (["--options", "compil=1"], "did you mean 'compile'"),
        (["--optimizer", "rprop"], "unknown optimizer 'rprop' (--optimizer): use one of adamw, sgd"),
        (["--optimizer", "lion", "--framework", "megatron"], "megatron is priced with adamw, not with lion"),
        (["--options", "fp8_recipe=mxfp9"], "did you mean 'mxfp8'"),
        (["--options", "compile"], "option compile is '' (--options): write compile=1 or compile=0"),
        (["--options", "compile=yes"], "option compile is 'yes' (--options): write compile=1 or compile=0"),
        (["--options", "dispatcher=deep"], "did you mean 'deepep'"),
        (["--options", "node_gbps=fast"], "give a number"),
    ],
)
def test_a_misspelt_trainer_or_switch_is_an_error(call_cli, flags, words):
    answer = call_cli("predict", *ASKED, *LAYOUT, *flags)
    assert answer.code == 2
    assert words in answer.err


def test_what_does_not_fit_says_what_would(call_cli):
    found = predicted(call_cli, "llama-3.1-70b", "-c", "dgx-h100", "--seq-len", "8192", "--devices", "8")
    assert found["fits"] is False
    assert found["smallest_fix"]["change"]
    shown = call_cli("predict", "llama-3.1-70b", "-c", "dgx-h100", "--seq-len", "8192", "--devices", "8").out
    assert "does not fit" in shown
    assert found["smallest_fix"]["change"] in shown


def test_the_table_tells_all_of_it(call_cli):
    shown = call_cli("predict", *ASKED, *LAYOUT, "--tokens", "1e12", "--price", "2", "--all").out
    for word in ("8 of 10 take", "MFU", "GiB", "bottleneck", "what if", "not in it", "nearest measured runs",
                 "assumed", "tensor parallel", "█", "device-hours", "zero 1", "dp 8"):  # fmt: skip
        assert word in shown, word


def test_a_layout_that_the_trainer_lacks_is_priced_and_marked(call_cli):
    zero_bubble = ["--devices", "64", "--pp", "2", "--schedule", "zb-h1", "--global-batch", "128"]
    found = predicted(call_cli, *ASKED, *zero_bubble, "--framework", "megatron")
    assert found["lacks"] == ["schedule zb-h1"]
    shown = call_cli("predict", *ASKED, *zero_bubble, "--framework", "megatron").out
    assert "megatron can't run it: it has no schedule zb-h1" in shown
    assert predicted(call_cli, *ASKED, *zero_bubble)["lacks"] == []
    shown = call_cli("predict", *ASKED, "--devices", "64", "--precision", "fp8").out
    assert "`train` can't run it: precision fp8 can be planned but not trained yet" in shown
    assert shown.splitlines()[0].endswith(" · fp8")
    assert "bf16" not in call_cli("predict", *ASKED, *LAYOUT, "--precision", "bf16").out.splitlines()[0]
    tight = (
        "--devices",
        "8",
        "--precision",
        "fp8",
        "--micro-batch",
        "16",
        "--global-batch",
        "128",
        "--zero-stage",
        "0",
    )
    lines = call_cli("predict", *ASKED, *tight).out.splitlines()
    words = ("does not fit", "makes it fit", "`train` can't run it")  # memory first
    places = [next(number for number, line in enumerate(lines) if word in line) for word in words]
    assert places == sorted(places)


def test_the_bottleneck_begins_with_what_takes_most(call_cli):
    found = predicted(call_cli, *ASKED, *LAYOUT)
    first, second = (int(part.split(": ")[1].partition("%")[0]) for part in found["bottleneck"].split("; "))
    assert found["bottleneck"].startswith("compute: ")
    assert first > second


# -- mistakes -------------------------------------------------------------------------------------

WRONG = [
    (["--devices", "12", "--tp", "8"], "devices 12 is not divisible by tp 8"),
    (["--tp", "3"], "num_attention_heads 32 is not divisible by tp 3"),
    (["--pp", "64"], "layers"),
    (["--devices", "-8"], "devices is -8"),
    (["--devices", "0"], "devices is 0"),
    (["--devices", "1000000000000000000000"], "devices is 1000000000000000000000"),
    (["--seq-len", "999999999999"], "seq_len is 999999999999"),
    (["--micro-batch", "0"], "micro_batch is 0"),
    (["--devices", "8", "--global-batch", "7"], "global_batch 7 is not divisible"),
    (["--devices", "8", "--nodes", "2"], "devices 8 and nodes 2"),
    (["--global-batch-tokens", "5000"], "global_batch_tokens 5000 is not divisible by seq_len 4096"),
    (["--global-batch", "8", "--global-batch-tokens", "4096"], "give one of them"),
    (["--schedule", "1f1c", "--pp", "2"], "schedule is '1f1c'"),
    (["--precision", "bf61"], "precision is 'bf61'"),
    (["--cp-kind", "rings"], "cp_kind is 'rings'"),
    (["--offload", "everything"], "offload is 'everything'"),
    (["--zero-stage", "4"], "zero_stage"),
    (["--recompute", "every=0"], "recompute every 0"),
    (["--recompute", "budget=nan"], "recompute"),
    (["--stage-layers", "a,b"], "stage_layers is 'a,b'"),
    (["--layout", "tpp=8"], "unknown key 'tpp' (--layout): did you mean 'tp'"),
    (["--layout", "tp"], "'tp' has no value"),
    (["--layout", "tp=2,tp=4"], "tp is given twice"),
    (["--layout", "tp=2", "--tp", "4"], "tp 4 and tp 2 are both given"),
    (["--layout", "tp="], "the value is missing"),
    (["--layout", "tp=two"], "tp is 'two'"),
    (["--layout", "tp=.nan"], "tp is nan"),
    (["--layout", "devices=1e30"], "devices is 1e+30"),
    (["--tokens", "nan"], "tokens is nan"),
    (["--tokens", "-1"], "tokens is -1"),
    (["--tokens", "1e12", "--price", "inf"], "price is inf"),
    (["--price", "2"], "price is given without tokens (--price): add --tokens"),
    (["--framework", "megatron", "--software-version", "banana"], "software-version is 'banana'"),
    (["--options", "etp=x"], "etp is 'x'"),
    (["--ep", "4"], "ep"),
    (["--tp", "eight"], "--tp"),
    (["--batch", "rows.csv"], "MODEL and --batch are both given"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=[" ".join(one) for one, _ in WRONG])
def test_a_mistake_is_one_line(call_cli, arguments, words):
    answer = call_cli("predict", *ASKED, *arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.error.startswith("error: ")
    assert words in answer.error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["llama-3.1-8", "--cluster", "dgx-h100"], "did you mean 'llama-3.1-8b'"),
        (["llama-3.1-8b", "--cluster", "dgx-h10"], "did you mean 'dgx-h100'"),
        (["llama-3.1-8b"], "--cluster is missing"),
        ([], "MODEL is missing"),
        (["llama-3.1-8b", "--cluster", "small.yaml", "--devices", "64"], "ask for at most 16"),
    ],
)
def test_names_that_are_wrong_or_missing(call_cli, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text("like: dgx-h100\nnodes: 2\n")
    answer = call_cli("predict", *arguments, "--seq-len", "1024")
    assert answer.code == 2
    assert words in answer.error


def test_a_run_file_names_its_cluster(call_cli, tmp_path):
    file, keys = tmp_path / "run.yaml", {"model": "llama-3.2-1b", "layout": {"devices": 8}, "data": {"seq_len": 1024}}
    file.write_text(json.dumps({**keys, "cluster": "dgx-h100"}))
    named = call_cli("predict", "--from", file, "--json")
    given = call_cli("predict", "--from", file, "--cluster", "hgx-h200", "--json")
    assert [answer.json()["device"]["name"] for answer in (named, given)] == ["h100-sxm", "h200-sxm"]
    file.write_text(json.dumps(keys))
    assert "--cluster is missing" in call_cli("predict", "--from", file).error


def test_python_raises_the_same_errors():
    with pytest.raises(sw.UserError, match="unknown key 'tpp'"):
        sw.predict("llama-3.1-8b", "dgx-h100", tpp=2)
    with pytest.raises(sw.UserError, match="seq_len is nan"):
        sw.predict("llama-3.1-8b", "dgx-h100", seq_len=float("nan"))


# -- tables ---------------------------------------------------------------------------------------


def write(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def lines(answer):
    return [json.loads(line) for line in answer.out.splitlines()]


def test_a_line_a_row_with_its_id_first(call_cli, tmp_path):
    rows = read_table(MEASURED)[:30]
    answer = call_cli("predict", "--batch", write(tmp_path / "rows.csv", rows))
    assert answer.code == 0
    assert answer.err == ""
    assert [row["id"] for row in lines(answer)] == [row["id"] for row in rows]
    assert all(line.startswith('{"id": ') for line in answer.out.splitlines())
    assert all({"step_time_s", "memory_gib", "fits", "layout"} <= set(row) for row in lines(answer))


def test_json_lines_say_the_same_as_csv(call_cli, tmp_path):
    rows = read_table(MEASURED)[:12]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    table = call_cli("predict", "--batch", write(tmp_path / "rows.csv", rows)).out
    assert call_cli("predict", "--batch", tmp_path / "rows.jsonl").out == table


def test_stdin_is_a_file_too(call_cli, tmp_path, monkeypatch):
    path = write(tmp_path / "rows.csv", read_table(MEASURED)[:3])
    monkeypatch.setattr("sys.stdin", io.StringIO(path.read_text()))
    assert len(lines(call_cli("predict", "--batch", "-"))) == 3


def test_a_bad_row_spoils_nothing_but_itself(call_cli, tmp_path):
    good = {"model": "llama-3.1-8b", "device": "H100-80GB-SXM", "n_devices": 8, "seq": 4096, "tp": 1}
    rows = [
        good,
        {**good, "tp": 3},
        {**good, "device": "H1000-80GB"},
        {**good, "n_devices": "nan"},
        {**good, "n_devices": "many"},
        {**good, "seq": 1e300},
        {**good, "device": ""},
        {**good, "model": "nobody-knows-it"},
        {**good, "tp": -1},
        good,
    ]
    found = lines(call_cli("predict", "--batch", write(tmp_path / "rows.csv", rows)))
    assert [entry["id"] for entry in found] == [str(n) for n in range(1, 11)], "no id: the row's number"
    assert ["error" in entry for entry in found] == [False, True, True, False, *[True] * 5, False]
    assert found[0] == {**found[-1], "id": "1"}
    assert all(set(entry) == {"id", "error"} for entry in found if "error" in entry)


def test_broken_json_lines_and_short_rows(call_cli, tmp_path):
    good = '{"id": "a", "model": "llama-3.1-8b", "device": "h100-sxm", "n_devices": 8}'
    odd = ["{", "[1, 2]", '{"id": "x", "tp": [2]}', '{"id": "y", "recomptue": "full"}']
    (tmp_path / "rows.jsonl").write_text("\n".join([good, *odd]))
    found = lines(call_cli("predict", "--batch", tmp_path / "rows.jsonl"))
    assert [entry["id"] for entry in found] == ["a", "2", "3", "x", "y"]
    assert "step_time_s" in found[0]
    assert "did you mean 'recompute'" in found[4]["error"]
    (tmp_path / "rows.csv").write_text("id,model,device,n_devices\na,llama-3.1-8b,h100-sxm\nb,x,y,8,9\n")
    short, long = lines(call_cli("predict", "--batch", tmp_path / "rows.csv"))
    assert "n_devices 256" in short["assumed"]
    assert "more cells" in long["error"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        ("id,model,device,tp\n", "there are no rows"),
        ("hello, this is a letter\nto a friend\n", "the first line is no header"),
        ("model;device;tp\nllama-3.1-8b;h100-sxm;1\n", "the first line is no header"),
        ("id,model,device,recomptue\na,b,c,d\n", "unknown column 'recomptue'"),
        ("id,model,device,tp,tp\na,b,c,1,2\n", "the column tp is there twice"),
    ],
)
def test_a_file_that_is_no_table(call_cli, tmp_path, text, words):
    (tmp_path / "rows.csv").write_text(text)
    answer = call_cli("predict", "--batch", tmp_path / "rows.csv")
    assert answer.code == 2
    assert words in answer.error


def test_a_file_that_is_no_text_or_not_there(call_cli, tmp_path):
    (tmp_path / "rows.csv").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe\x00")
    assert "not text" in call_cli("predict", "--batch", tmp_path / "rows.csv").error
    assert "did you mean" in call_cli("predict", "--batch", tmp_path / "row.csv").error
    assert "folder" in call_cli("predict", "--batch", tmp_path).error


def test_columns_that_say_nothing_are_noted(call_cli, tmp_path):
    (tmp_path / "rows.csv").write_text("id,model,device,n_devices,weather\na,llama-3.1-8b,h100-sxm,8,rain\n")
    answer = call_cli("predict", "--batch", tmp_path / "rows.csv")
    assert "weather" in answer.error
    assert len(lines(answer)) == 1


# -- where it runs --------------------------------------------------------------------------------


def test_without_torch():
    rows = str(MEASURED)
    done = run_without_torch(
        ["predict", *ASKED, *LAYOUT, "--json"], ["predict", *ASKED, *LAYOUT], ["predict", "--batch", rows]
    )
    assert done.returncode == 0, done.stderr


def test_what_is_in_the_way_is_said_whole(call_cli):
    """A precision that isn't trained doesn't hide that it doesn't fit either."""
    sizes = ("--seq-len", "8192", "--layout", "devices=8,tp=2,precision=fp8,micro_batch=8")
    text = call_cli("predict", "llama-3.1-405b", "-c", "dgx-h100", *sizes).out
    assert "`train` can't run it: precision fp8" in text
    assert "no single change makes it fit; nearest: recompute full" in text


def test_a_batch_takes_no_all(call_cli, tmp_path):
    answer = call_cli("predict", "--batch", tmp_path / "runs.csv", "--all")
    assert (answer.code, "--all and --batch are both given" in answer.error) == (2, True)


@pytest.mark.parametrize(
    ("cluster", "devices", "used"),
    [("rtx-3090", 1, False), ("rtx-3090", 8, False), ("rtx-3090", 16, True), ("p100", 4, False), ("p100", 8, True)],
)
def test_a_network_that_is_not_used_is_not_assumed(call_cli, cluster, devices, used):
    flags = ["--cluster", cluster, "--devices", str(devices), "--seq-len", "512"]
    lines = predicted(call_cli, "gpt2-124m", *flags)["assumed"]
    assert any(line.startswith("fabric ") for line in lines) == used
