"""Stops and resumes on any layout: tensors as boxes in safetensors files, described by a manifest.

format.py    folders, manifest, COMMIT    write.py    every rank its boxes    read.py    any part of a tensor
boxes.py     what a file holds            pieces.py   files and their checksums
save.py      a save, drafted and at once  asynchronous.py   beside training: snapshot.py, writer.py, background.py
memory.py    steps in a node's memory
verify.py    checksums, finite numbers    convert.py  to and from Hugging Face, whose page card.py writes
compare.py   two checkpoints              foreign/    checkpoints of other trainers, read
"""
