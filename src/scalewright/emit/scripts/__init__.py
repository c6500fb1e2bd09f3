"""What the trainers on Hugging Face models share: config.json, samples, and the parts of training scripts.

render.py     scripts from their templates
facts.py      settings that a script expresses itself: schedule, batch, data, loss, saves
model.py      config.json, and base models that others name
samples.txt   emitted as samples.py: the samples of the run in its order
*.txt         templates of the scripts; parts.txt has what they share
"""
