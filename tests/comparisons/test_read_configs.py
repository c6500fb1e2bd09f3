"""Configurations of others: read, priced and beaten, or one line that says why not."""

from __future__ import annotations

SCRIPT = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 "
    "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 --bf16 "
    "--tensor-model-parallel-size 8 --vocab-size 50257 --something-new 1\n"
)


def test_read_configs(script, tmp_path):
    folder = tmp_path / "configs" / "megatron"
    folder.mkdir(parents=True)
    (folder / "good.sh").write_text(SCRIPT)
    (folder / "empty.yaml").write_text("a: 1\n")
    data, text = script("read_configs.py", tmp_path / "configs")
    bad, good = data["files"]
    assert "no trainer's configuration" in bad["error"]
    assert good["unread"] == ["something-new"]
    assert good["layout"]["tp"] == 8
    assert good["best_gain_pct"] >= good["change"]["gain_pct"] > 0
    assert "1 of 2 files are read; 1 are priced and planned" in text
    assert "- `megatron/empty.yaml`: no trainer's configuration" in text
