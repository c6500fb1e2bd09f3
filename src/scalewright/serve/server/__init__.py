"""What was trained, over HTTP as OpenAI's API has it: start.py, app.py, calls.py, and runner.py, which owns the engine.

start.py     socket, signals, drain          bodies.py    what a request may contain
app.py       routes, and who may ask         shapes.py    OpenAI's choices and chunks
calls.py     a body -> requests -> answer    reply.py     JSON, server-sent events, errors
runner.py    the engine's thread             template.py  a chat as text, infill.py: a gap as text
metrics.py   Prometheus                      page.py      the page at /, watch.py: the steps that it draws
"""
