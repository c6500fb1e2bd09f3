"""Checkpoints of other trainers, read where what they carry can't run: torchtitan, Megatron-LM, DeepSpeed, nanotron.

child.py   the confined process (confine.py)    dcp.py, deepspeed.py, nanotron.py   where each tensor lies
index.py   what it answers                      torch_file.py                       files of torch.save
files.py   its answer checked, boxes read       names.py, models.py                 their names and settings as ours
folder.py  which trainer's a folder is, and its tensors under our names
"""
