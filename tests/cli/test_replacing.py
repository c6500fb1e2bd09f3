"""No command replaces a file that isn't ours without `--force`; the refusal is one line, before the work."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

MINE = "# my own notes\nname: mine\n"
SIZES = ("--devices", "8", "--seq-len", "1024", "--global-batch", "64", "--fix", "tp=1,pp=1")
PLAN = ("plan", "gpt2", "--cluster", "dgx-h100", *SIZES)


@pytest.mark.parametrize("command", [PLAN, ("presets", "new", "--params", "1e8")], ids=["plan", "presets new"])
def test_a_file_of_the_users_stays(call_cli, tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(MINE)
    answer = call_cli(*command, "--out", path)
    assert (answer.code, path.read_text()) == (2, MINE)
    assert answer.error.startswith("error: the file is there already")
    assert "\n" not in answer.error
    assert call_cli(*command, "--out", path, "--force").code == 0
    written = path.read_text()
    assert isinstance(yaml.safe_load(written), dict)
    assert call_cli(*command, "--out", path).code == 0  # as it was written: replaced
    path.write_text(written + "seed: 7\n")
    assert call_cli(*command, "--out", path).code == 2


def test_a_report_replaces_reports_alone(call_cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 2.0}\n')
    notes = tmp_path / "notes.html"
    notes.write_text("<!doctype html><p>mine")
    answer = call_cli("report", run, "--out", notes)
    assert (answer.code, notes.read_text()) == (2, "<!doctype html><p>mine")
    assert "--force" in answer.error
    assert call_cli("report", run, "--out", notes, "--force").code == 0
    assert call_cli("report", run, "--out", notes).code == 0
    assert call_cli("report", run).code == call_cli("report", run).code == 0


@pytest.mark.parametrize("name", ["timeline.json", "timeline.json.gz", "page.html"])
def test_a_diagnosis_replaces_its_own_alone(call_cli, tmp_path: Path, name: str) -> None:
    """A trace on a run file, on a shard of a checkpoint, or through a link."""
    command = ("diagnose", "example", "--html" if name.endswith("html") else "--perfetto")
    path = tmp_path / name
    for content in (MINE.encode(), b"\x1f\x8b\x08\x00cut", b"", b'{"displayTimeUnit": "ms", "traceEvents": []}'):
        path.write_bytes(content)
        answer = call_cli(*command, path)
        assert (answer.code, path.read_bytes()) == (2, content)
        assert "the file is there already" in answer.error
    link = tmp_path / f"link-{name}"
    link.symlink_to(path)
    assert call_cli(*command, link).code == 2
    assert call_cli(*command, path, "--force").code == 0
    assert call_cli(*command, path).code == 0
    assert call_cli(*command, "/dev/null").code == (2 if name.endswith("html") else 0)


@pytest.mark.parametrize(
    "command",
    [("bench", "all"), ("calibrate", "runs", "--cluster", "dgx-h100"),
     ("calibrate", "a.log", "--cluster", "dgx-h100", "--fit")], ids=" ".join,
)  # fmt: skip
def test_a_profile_replaces_its_own_alone(call_cli, tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "here.yaml"
    path.write_text(MINE)
    answer = call_cli(*command, "--out", path)
    assert (answer.code, path.read_text()) == (2, MINE)
    assert "the file is there already" in answer.error


def test_a_request_of_runpods_stays(call_cli, tmp_path: Path) -> None:
    """JSON has no place for a signature: another text is the user's."""
    run, path = tmp_path / "mine.yaml", tmp_path / "mine.runpod.json"
    run.write_text("name: mine\nmodel: tiny\ndata: tokens\nlaunch: {container: image, gpu: H100}\n")
    command = ("launch", "runpod", run, "launch.preflight=off")
    assert [call_cli(*command).code for _ in range(2)] == [0, 0]
    text = path.read_text()
    path.write_text(text + "\n")
    assert (call_cli(*command).code, path.read_text()) == (2, text + "\n")
    assert (call_cli(*command, "--force").code, path.read_text()) == (0, text)


def test_a_demo_takes_no_folder_of_the_users(call_cli, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    answer = call_cli("demo", "--out", tmp_path)
    assert (answer.code, [path.name for path in tmp_path.iterdir()]) == (2, ["summary.json"])
    assert "no demo wrote that" in answer.error


@pytest.mark.parametrize("name", ["run.yaml", "tokenizer.json"])
def test_a_run_writes_into_no_folder_of_the_users(
    call_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """`out_dir: .` beside the user's own run file, or a folder of prepared tokens as out_dir."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/tokens.bin").write_bytes(bytes(4096))
    model = "{vocab_size: 8, hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 1}"
    text = (
        f"# mine\nmodel: {model}\ndevice: cpu\nlayout: {{precision: fp32}}\ntrain: {{steps: 1}}\n"
        "data: {train: [{path: data/tokens.bin, format: uint16, eod: 0}], seq_len: 8}\n"
    )
    Path("mine.yaml").write_text(text)
    Path(name).write_text(text)
    answer = call_cli("train", "mine.yaml", "out_dir=.")
    assert (answer.code, Path(name).read_text()) == (2, text)
    assert f"would replace {name}" in answer.error
    assert sorted(path.name for path in Path().iterdir()) == sorted({"data", "mine.yaml", name})
    assert call_cli("train", "mine.yaml", "out_dir=.", "--force").code == 0
    assert "environment" in yaml.safe_load(Path("run.yaml").read_text())
    assert call_cli("train", "mine.yaml", "out_dir=.").code == 0  # it is the run's now
    weights = next(Path("checkpoints").glob("*/model-*"))
    assert weights.stat().st_mode & 0o777 == Path("run.yaml").stat().st_mode & 0o777  # the umask's, not 0600
