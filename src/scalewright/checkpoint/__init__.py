"""Stops and resumes on any layout: tensors as boxes in safetensors files, described by a manifest.

format.py    folders, manifest, COMMIT    write.py    every rank its boxes    read.py    any part of a tensor
boxes.py     what a file holds            pieces.py   files and their checksums
verify.py    checksums, finite numbers    convert.py  to and from Hugging Face, whose page card.py writes
compare.py   two checkpoints              foreign/    checkpoints of other trainers, read
"""
