"""Scripts that people published, beside bash: equal, named as unknown, and never run."""

from __future__ import annotations

import shutil

import pytest

TRAIN = "--num-layers 16 --hidden-size 2048 --num-attention-heads 16 --micro-batch-size 1 --global-batch-size 64"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash isn't here")
def test_public_scripts(script, tmp_path):
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "equal.sh").write_text(f"#!/bin/bash\nN=8\ntorchrun --nproc_per_node $N pretrain_gpt.py {TRAIN}\n")
    (folder / "named.sh").write_text("#!/bin/bash\ntouch ../touched\n/opt/bin/python train.py $1 --a $(hostname)\n")
    data, text = script("public_scripts.py", folder)
    equal, named = data["scripts"]
    assert (equal["words"], equal["read"], equal["devices"]) == ("equal", "megatron", 8)
    assert (named["words"], named["read"], named["starts"]) == ("named", "refused", 1)
    assert {path.name for path in folder.iterdir()} == {"equal.sh", "named.sh"}
    assert "Words: equal 1, named 1." in text
    assert "Reading: read 1, a value isn't in it 1." in text
