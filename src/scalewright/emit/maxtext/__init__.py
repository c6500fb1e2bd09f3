"""MaxText: a YAML beside its base.yml, both ways.

    layout.py   axes, batch, policies
    run.py      the file: the network, optimizer, learning rate, data, saves

Keys and conditions are those of 0.2.5 (src/maxtext/configs/{base.yml,types.py}).
"""
