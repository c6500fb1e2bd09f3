"""Stop and start anywhere, on any layout: tensors as boxes in safetensors files, described by a manifest."""
