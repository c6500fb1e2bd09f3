"""What the trainers on Hugging Face models share: config.json, samples, and the parts of training scripts.

model.py      config.json, base models that others name, and scripts from their templates
facts.py      what a script expresses itself: schedule, batch, data, loss, saves; DDP, FSDP, DeepSpeed
samples.txt   emitted as samples.py: the samples of the run in its order
*.txt         templates of the scripts; parts.txt has what they share
"""
