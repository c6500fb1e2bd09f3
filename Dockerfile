# An image that trains, for a CPU or for CUDA:
#
#   docker build --tag scalewright .
#   docker build --tag scalewright --build-arg BASE=nvidia/cuda:12.8.1-base-ubuntu24.04 --build-arg TORCH=https://pypi.org/simple .
#   docker run --rm scalewright scalewright plan llama-3.1-8b --cluster dgx-h100 --devices 64 --seq-len 8192
#   docker run --rm --gpus all --ipc host --volume "$PWD:/workspace" scalewright scalewright train run.yaml
#
# It was not built by us yet: no Docker was at hand. tests/test_dockerfile.py checks its parts and runs its steps
# with stand-ins for apt-get and pip.
ARG BASE=python:3.12-slim
FROM ${BASE}

# A compiler for torch.compile, and a Python where the base has none (CUDA's).
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ \
 && if ! command -v python3; then apt-get install --yes --no-install-recommends python3-dev python3-venv; fi \
 && rm -rf /var/lib/apt/lists/*

# PyPI's torch for Linux brings CUDA's libraries; this index has one without.
ARG TORCH=https://download.pytorch.org/whl/cpu
ARG EXTRAS=train,track
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE /opt/scalewright/
COPY src /opt/scalewright/src
RUN cd /opt/scalewright \
 && python3 -m venv /opt/venv \
 && /opt/venv/bin/python -m pip install --no-cache-dir --extra-index-url "$TORCH" -c constraints.txt ".[$EXTRAS]"

ENV PATH=/opt/venv/bin:$PATH
RUN scalewright --version && scalewright presets models llama-3.1-8b

# No ENTRYPOINT: what `launch` writes starts the image with `bash -c`.
WORKDIR /workspace
CMD ["scalewright", "--help"]
