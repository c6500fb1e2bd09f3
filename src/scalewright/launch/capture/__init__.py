"""`scalewright record`: traces of a user's own command.

command.py   starts the command, and collects what its processes wrote
injected/    the folder that is put on its PYTHONPATH: sitecustomize.py and the recorder itself
"""
