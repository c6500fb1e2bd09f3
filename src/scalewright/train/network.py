"""A run's network under its layout, with its first weights: random, Hugging Face's, or a checkpoint's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from scalewright.checkpoint.read import CheckpointReader, damage, find_checkpoint
from scalewright.checkpoint.store.bring import bring, comes_later
from scalewright.model.huggingface import HuggingFaceFolder
from scalewright.model.init import init_box, on_meta
from scalewright.model.python import build_python_model
from scalewright.parallel.collectives import copy_from_rank_zero
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.offload_states import masters_device
from scalewright.parallel.parallelize import Parallel, fill, parallelize
from scalewright.parallel.stages import cut_stages, find_blocks
from scalewright.parallel.weights import Source
from scalewright.spec.errors import UserError
from scalewright.spec.memory import is_sharded
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import Box, place, place_plain
from scalewright.spec.run import PythonRef, RunSpec
from scalewright.spec.tensors import TensorSpec
from scalewright.spec.user_code import import_object
from scalewright.train.initial import grown, init_vocabulary


@dataclass(frozen=True)
class Network:
    """A model under its layout, and how its random weights were made (None: they are the module's own)."""

    parallel: Parallel
    random_source: Source | None


def build_network(
    run: RunSpec, mesh: Mesh, *, bf16: bool, memory: AbstractContextManager[Any] | None = None
) -> Network:
    """Builds the run's model and applies its layout; weights are allocated, and a user's module is filled. `memory` is
    entered where a model of ours allocates (see `parallelize`)."""
    model, layout = run.model, run.layout
    compiled, compress = run.train.compile is True, run.train.compress  # auto is settled by now, where it can be
    split = partial(parallelize, layout=layout, mesh=mesh, bf16=bf16, compile_blocks=compiled, compress=compress)
    if isinstance(model, ModelSpec):
        with on_meta():
            stages = cut_stages(model, layout, mesh.index("pp"))
        parallel = split(stages, place(model, layout), seq_len=run.stated_seq_len, memory=memory)
        device = masters_device(layout, mesh.device)
        return Network(parallel, lambda t, box: init_box(t, model, run.seed, *box, device=device))
    module, values = build_own_module(run, mesh)
    parallel = split(module, place_plain(describe(module), layout), random=True)
    fill(parallel.weights, lambda t, box: cut(values[t.name], box))
    parallel.buffers.share()
    return Network(parallel, None)


def build_own_module(run: RunSpec, mesh: Mesh) -> tuple[nn.Module, dict[str, Tensor]]:
    """A user's module, its parameters in fp32, and their first values by name: rank 0's, in case the builder
    takes random numbers from elsewhere than torch. Raises UserError for one that can't be trained."""
    if not isinstance(run.model, PythonRef):
        raise ValueError("resolve the run first: its model is still a name")
    module = build_python_model(run.model.python, run.model.arguments, run.seed)
    _widen(module)
    _check_parameters(module, run)
    return module, {name: copy_from_rank_zero(p.detach().clone().cpu(), mesh) for name, p in module.named_parameters()}


def _widen(module: nn.Module) -> None:
    """Parameters in fp32, the masters' dtype, in place, and half-precision buffers with them; doubles, whole
    and complex numbers in buffers stay as they are."""
    for parameter in module.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.float()
    for part in module.modules():
        for key, buffer in part._buffers.items():
            if buffer is not None and buffer.is_floating_point() and buffer.itemsize < 4:
                part._buffers[key] = buffer.float()


def _check_parameters(module: nn.Module, run: RunSpec) -> None:
    """Raises UserError for parameters that can't be trained, or can't be sharded as the layout asks for."""
    layout = run.layout
    for name, parameter in module.named_parameters():
        if not parameter.is_floating_point():
            problem = f"parameter '{name}' is {str(parameter.dtype).removeprefix('torch.')}, and masters are fp32"
            raise UserError(problem, "model", "keep real numbers in it (torch.view_as_real), or make it a buffer")
        if is_sharded(layout) and parameter.dim() == 0:
            problem = f"parameter '{name}' is a single number, which zero_stage {layout.zero_stage} can't cut"
            raise UserError(problem, "model", "give it the shape [1], or use zero_stage 0")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        how = "set requires_grad = True on those that are, in your builder"
        raise UserError("no parameter of the model is to be trained", "model", how)
    if is_sharded(layout) and (shared := _shared_by_blocks(module)):
        by_block = f"zero_stage {layout.zero_stage} shards each block by itself"
        how = "use zero_stage 0, or give each block a parameter of its own"
        raise UserError(f"'{shared[0]}' and '{shared[1]}' are one parameter, and {by_block}", "model", how)


@contextmanager
def types_explained(run: RunSpec, module: nn.Module) -> Iterator[None]:
    """Says what to do when a user's module in bf16 meets its own fp32 buffers; raises UserError."""
    try:
        yield
    except RuntimeError as error:
        if run.layout.precision not in ("bf16", "fp16") or not isinstance(run.model, PythonRef):
            raise
        kept = [name for name, buffer in module.named_buffers() if buffer.dtype == torch.float32]
        if not kept or ("dtype" not in str(error) and "scalar type" not in str(error)):
            raise
        cast = f"in {run.layout.precision} parameters are cast and buffers ({', '.join(kept[:3])}) stay fp32"
        problem = f"{cast}, and the model mixes them where it can't: {str(error).splitlines()[0]}"
        how = "use layout.precision=fp32, or cast where a buffer meets an activation: buffer.to(x.dtype)"
        raise UserError(problem, "model", how) from error


def _shared_by_blocks(module: nn.Module) -> tuple[str, str] | None:
    """Two names of one parameter, in two blocks, or in a block and outside of all; None: there are none."""
    block_of: dict[str, int] = {}  # by the beginning of a name
    for number, block in enumerate(find_blocks(module)):
        for prefix, submodule in module.named_modules(remove_duplicate=False):
            if submodule is block:
                block_of[f"{prefix}."] = number
    first: dict[int, tuple[str, int | None]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owner = next((number for prefix, number in block_of.items() if name.startswith(prefix)), None)
        other, its_owner = first.setdefault(id(parameter), (name, owner))
        if owner != its_owner:
            return other, name
    return None


def describe(module: nn.Module) -> list[TensorSpec]:
    """A user's module as tensors that only data parallelism cuts."""
    return [TensorSpec(name, tuple(p.shape), "plain", 0) for name, p in module.named_parameters()]


def load_python(ref: PythonRef) -> Callable[..., Any]:
    """The user's function with the run file's arguments bound; raises UserError."""
    function, arguments = import_object(ref.python), ref.arguments
    return lambda *given: function(*given, **arguments)


def cut(tensor: Tensor, box: Box) -> Tensor:
    """The part of a whole tensor that a box describes."""
    return tensor[tuple(slice(offset, offset + size) for offset, size in zip(*box, strict=True))]


def first_weights(run: RunSpec, network: Network, mesh: Mesh, words: int | None = None) -> None:
    """Fills the weights by `init`: random, from a Hugging Face folder, or from a checkpoint. `words` of the data's
    tokenizer: those that the model lacks begin as the mean of its others."""
    if run.init == "random":
        if network.random_source is not None:
            fill(network.parallel.weights, network.random_source)
        return
    reader, weights = _init_reader(run, mesh), network.parallel.weights
    if isinstance(reader, CheckpointReader):
        fill(weights, grown(checkpoint_source(reader), run, words))
        network.parallel.buffers.load(reader.read_buffer)
    else:
        fill(weights, grown(lambda t, box: reader.read_slice(t.name, *box).float(), run, words))


def _init_reader(run: RunSpec, mesh: Mesh) -> CheckpointReader | HuggingFaceFolder:
    """Where `init:` takes weights from; raises UserError when the folder is neither kind, or damaged."""
    folder = bring(run.init, later=True)
    if not folder.exists():
        raise UserError("no such folder", f"init: {run.init}", "give 'random', a Hugging Face folder or a checkpoint")
    if (folder / "config.json").exists():
        if not isinstance(run.model, ModelSpec):
            raise UserError("a user's own model can't take a Hugging Face folder", "init", "load it in your builder")
        return HuggingFaceFolder(folder, run.model.replace(vocab_size=init_vocabulary(run, run.model)[0]))
    given = find_checkpoint(folder)
    later = comes_later(given)
    if problem := None if later else damage(given, mesh):
        raise UserError(f"the checkpoint is damaged: {problem}", f"init: {given}", "give an older one")
    return CheckpointReader(given, verify_files=later)


def checkpoint_source(reader: CheckpointReader) -> Source:
    """The weights of a checkpoint, as a source to fill from."""
    return lambda tensor, box: reader.read(tensor.name, box, tensor.shape)
