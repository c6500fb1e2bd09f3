"""The texts that need no network: complete, credited, and split as said."""

from __future__ import annotations

import hashlib
from collections import Counter
from importlib import resources

from scalewright.data.documents import fragments
from scalewright.data.pieces import cut_pieces
from scalewright.data.prepare import corpus, prepare

BUNDLED = {
    "shakespeare/input.txt": (1_115_394, "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),
    "wikitext-2/valid.txt": (1_121_681, "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
    "wikitext-2/test.txt": (1_256_449, "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
}


def test_bundled_texts_are_unchanged_and_credited():
    folder = resources.files("scalewright.data") / "bundled"
    for name, (size, checksum) in BUNDLED.items():
        data = (folder / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (size, checksum)
    for name in ("shakespeare", "wikitext-2"):
        assert (folder / name / "LICENSE").read_text()
        assert "Source" in (folder / name / "README.md").read_text()


def test_shakespeare_is_cut_as_everyone_does():
    """The first int(0.9 n) characters train: as in nanoGPT's data/shakespeare_char."""
    parts = [part for piece in cut_pieces(corpus("shakespeare", Counter()), 0.1) for part in piece.parts]
    assert [(part.split, part.start, part.stop) for part in parts] == [
        ("train", 0, 1_003_854),
        ("valid", 1_003_854, 1_115_394),
    ]


def test_wikitext_is_sixty_articles_a_split(tmp_path):
    for file, split in zip(corpus("wikitext-2", Counter()), ("train", "valid"), strict=True):
        assert file.split == split
        (piece,) = cut_pieces([file], 0.1)
        found = list(fragments(piece.parts[0], "text", Counter()))
        assert len(found) == 60
        with open(file.path, encoding="utf-8", newline="") as stream:
            assert "".join(fragment.text for fragment in found) == stream.read()
    summary = prepare("wikitext-2", tmp_path / "out", vocab_size=300, progress=None)
    assert summary.splits["train"]["text_bytes"] == 1_121_681
    assert summary.splits["valid"]["text_bytes"] == 1_256_449


def test_the_standard_library_is_there():
    files = corpus("python-stdlib", Counter())
    names = {file.name for file in files}
    assert {"python-stdlib/json/decoder.py", "python-stdlib/os.py"} <= names
    assert not any("site-packages" in name or "/test/" in name for name in names)
    assert sum(file.size for file in files) > 5_000_000
