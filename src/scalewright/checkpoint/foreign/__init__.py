"""Checkpoints of torchtitan, Megatron-LM, DeepSpeed and nanotron, read where what they carry can't run.

child.py   the confined process (confine.py)    dcp.py, deepspeed.py, nanotron.py   where each tensor lies
index.py   what it answers                      torch_file.py                       files of torch.save
files.py   its answer checked, boxes read       names.py, models.py                 their names, settings
folder.py  which trainer's a folder is, and its tensors under our names
"""
