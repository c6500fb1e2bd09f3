"""Specs of models, layouts, runs and hardware: plain, validated data, without torch."""
