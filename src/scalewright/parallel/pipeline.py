"""The pipeline: this rank's list of actions of `spec/schedule.py`, done one after the other.

    receive_activation   hidden [B,T,D] from the rank before     ->  forward          ->  send_activation
    receive_gradient     its gradient from the rank after        ->  backward         ->  send_gradient
                                                                 or  backward_input   ->  send_gradient
                                                                     backward_weight

Between its actions a rank keeps, for each (stage, micro-batch):

                  holds                            filled by                    emptied by
    inputs        a stage's input                  receive_activation           forward
    graphs        the forward's graph              forward                      backward, backward_input
    grad_outputs  the gradient of its output       receive_gradient             backward, backward_input
    leaving       a tensor for another rank        forward, backward(_input)    send_activation, send_gradient
    pending       the weights' part of a graph     backward_input               backward_weight

Two neighbouring stages on one rank (the fold of a V) hand tensors over without a message: a forward fills the
next stage's `inputs`, a backward the previous one's `grad_outputs`. An output's own memory is free as soon as it
has arrived, the graph after its backward or weight part: the schedule decides the memory (`peak_activations`).

Where the authors of dualpipev compute a forward and a backward together, to hide one's communication behind
the other's work, we do the forward first: the two are of different micro-batches, so that neither reads the
other's tensors, and the order between them changes no number.

A loss may sit on any stage: the last has the token loss, and every stage may leave an auxiliary loss behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from scalewright.model.decoder import Decoder
from scalewright.parallel.backward import Pending, backward, backward_input, in_parts
from scalewright.parallel.execute import GradientSync, Loss, Recorder, run_losses
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.messages import Messages, acknowledgements
from scalewright.parallel.stages import Stages, take_auxiliary
from scalewright.spec.layout import Layout
from scalewright.spec.schedule import RECEIVES, Action, Schedule, find_kind, schedule

_Unit = tuple[int, int]  # stage, micro-batch


class Pipeline:
    """An executor: one pipeline rank's part of every step."""

    def __init__(self, stages: Stages, layout: Layout, mesh: Mesh, gradients: GradientSync, dtype: torch.dtype) -> None:
        self.layout, self.mesh, self.gradients = layout, mesh, gradients
        self.cuts = cast(dict[int, Decoder], stages.stages)
        self.dtype = dtype
        self.recorder = Recorder()
        self.rank = mesh.index("pp")
        self.messages = Messages(mesh)
        self.sequence_parts = mesh.size("tp") if layout.sp else 1  # as `Decoder.sequence_parts`
        self.embedding: GradientEdge | None = None  # the first stage's newest, which its first block takes
        if 0 in self.cuts:
            self.cuts[0].embedded = self._note_embedding
        self._plans: dict[int, _Plan] = {}

    def train(self, micros: Sequence[Micro], loss: Loss, divisor: Tensor) -> Tensor:
        """A step; fp32 [2]: (loss, auxiliary) / divisor, of the stages that this rank holds."""
        with in_parts() if find_kind(self.layout.schedule).splits else nullcontext():
            return self._train(micros, loss, divisor)

    def _train(self, micros: Sequence[Micro], loss: Loss, divisor: Tensor) -> Tensor:
        plan = self._plan(len(micros))
        step = _StepState(self, plan.schedule, micros, loss, divisor)
        self.gradients.clear()
        self.messages.start(self.shape(micros[0]), self.dtype, plan.incoming, plan.acknowledged)
        self.recorder.start(plan.schedule)
        for position, action in enumerate(plan.schedule.actions[self.rank]):
            self.recorder.before(action)
            step.do(action, last=position in plan.last)
            self.recorder.after(action)
        self.messages.finish()
        self.recorder.arrived()
        self.gradients.finish()
        return step.losses

    @torch.no_grad()
    def total(self, micro: Micro, loss: Loss) -> Tensor:
        """The loss sum of one micro-batch, forward only; 0 where the last stage is elsewhere."""
        plan = self._plan(self.layout.accumulation).schedule
        loss_sum = torch.zeros((), device=self.mesh.device)
        # Waits for the last call's: a rank may be one micro-batch ahead of the next.
        self.messages.start(self.shape(micro), self.dtype)
        hidden = micro.tokens
        for stage, cut in self.cuts.items():
            before, after = plan.before(stage), plan.after(stage)
            if before is not None and plan.rank_of[before] != self.rank:
                hidden = self.messages.receive(plan.rank_of[before])
            if after is None:
                loss_sum, _ = run_losses(cut, hidden, micro, loss)
            else:
                hidden = cut(hidden, **micro.arguments)
                if plan.rank_of[after] != self.rank:
                    self.messages.send(hidden, plan.rank_of[after])
            take_auxiliary(cut)
        return loss_sum

    def shape(self, micro: Micro) -> tuple[int, int, int]:
        """The hidden states between stages: [B, T, D], or [B, T/tp, D] with sp."""
        rows, length = micro.tokens.shape
        width = next(iter(self.cuts.values())).spec.hidden_size
        return rows, length // self.sequence_parts, width

    def follow(self, plan: Schedule) -> None:
        """Takes a given schedule for steps of its number of micro-batches, such as a part of a longer one.

        Sent tensors are then kept until the end of the step.
        """
        self._plans[plan.micro_batches] = self._make_plan(plan, {})

    def _note_embedding(self, hidden: Tensor) -> None:
        self.embedding = get_gradient_edge(hidden) if hidden.requires_grad else None

    def _plan(self, micros: int) -> _Plan:
        if micros not in self._plans:
            layout = self.layout
            plan = schedule(layout.schedule, layout.pp, layout.virtual_stages, micros)
            self._plans[micros] = self._make_plan(plan, acknowledgements(plan, self.rank))
        return self._plans[micros]

    def _make_plan(self, plan: Schedule, acknowledged: dict[int, list[int]]) -> _Plan:
        actions = plan.actions[self.rank]
        incoming = Counter(action.peer for action in actions if action.kind in RECEIVES)
        last = {a.stage: i for i, a in enumerate(actions) if a.kind in ("backward", "backward_weight")}
        return _Plan(plan, incoming, acknowledged, frozenset(last.values()))


@dataclass(frozen=True)
class _Plan:
    """A schedule, and one rank's data derived from it."""

    schedule: Schedule
    incoming: Mapping[int, int]  # messages from each peer
    acknowledged: Mapping[int, list[int]]
    last: frozenset[int]  # positions of each stage's last backward or weight part


@dataclass
class _Graph:
    outputs: list[GradientEdge] = field(default_factory=list)  # the hidden state or loss, auxiliary losses
    grad_outputs: list[Tensor | None] = field(default_factory=list)  # None: another rank still has to send it
    input: Tensor | None = None  # a leaf; None for tokens
    boundary: GradientEdge | None = None  # where the input part ends


class _StepState:
    """One step on one rank; the containers are those of the table at the top."""

    def __init__(
        self, pipeline: Pipeline, plan: Schedule, micros: Sequence[Micro], loss: Loss, divisor: Tensor
    ) -> None:
        self.pipeline, self.plan, self.micros, self.loss = pipeline, plan, micros, loss
        self.scale = divisor.reciprocal()  # the gradient of every loss
        self.losses = torch.zeros(2, device=divisor.device)  # (loss, auxiliary) / divisor
        self.inputs: dict[_Unit, Tensor] = {}
        self.graphs: dict[_Unit, _Graph] = {}
        self.grad_outputs: dict[_Unit, Tensor] = {}
        self.leaving: dict[_Unit, Tensor] = {}
        self.pending: dict[_Unit, Pending] = {}

    def do(self, action: Action, last: bool) -> None:
        """One action; `last`: its stage's last backward or weight part of the step."""
        unit, pipeline = (action.stage, action.micro), self.pipeline
        match action.kind:
            case "receive_activation":
                self.inputs[unit] = pipeline.messages.receive(action.peer)
            case "receive_gradient":
                self.grad_outputs[unit] = pipeline.messages.receive(action.peer)
            case "send_activation" | "send_gradient":
                pipeline.messages.send(self.leaving.pop(unit), action.peer)
            case "forward":
                self._forward(unit)
            case "backward":
                pipeline.gradients.begin(action.stage, last)
                self._backward(unit)
                pipeline.gradients.end(action.stage, last)
            case "backward_input":
                self._backward_input(unit)
            case "backward_weight":
                pipeline.gradients.begin(action.stage, last)
                self.pending.pop(unit).run()
                pipeline.gradients.end(action.stage, last)

    def _forward(self, unit: _Unit) -> None:
        stage, micro = unit[0], self.micros[unit[1]]
        cut, graph = self.pipeline.cuts[stage], _Graph()
        if self.plan.before(stage) is not None:
            graph.input = self.inputs.pop(unit).requires_grad_()
            graph.boundary = get_gradient_edge(graph.input)
        inputs = graph.input if graph.input is not None else micro.tokens
        is_last = self.plan.after(stage) is None
        if is_last:
            loss, extra = run_losses(cut, inputs, micro, self.loss)
        else:
            out: Tensor = cut(inputs, **micro.arguments)
        if graph.input is None:
            graph.boundary, self.pipeline.embedding = self.pipeline.embedding, None
        auxiliary = take_auxiliary(cut)
        if is_last:
            auxiliary = extra if auxiliary is None else extra + auxiliary
            self._add_output(graph, loss + auxiliary, self.scale)
            self.losses += torch.stack([loss.detach(), auxiliary.detach()]) * self.scale
        else:
            self._add_output(graph, out, None)
            if auxiliary is not None:
                self._add_output(graph, auxiliary, self.scale)
                self.losses[1] += auxiliary.detach() * self.scale
            self._pass_on(out.detach(), unit, self.plan.after(stage), self.inputs)
        self.graphs[unit] = graph

    def _add_output(self, graph: _Graph, output: Tensor, grad_output: Tensor | None) -> None:
        if output.requires_grad:  # the edge is enough: the output's own memory needn't wait for the backward
            graph.outputs.append(get_gradient_edge(output))
            graph.grad_outputs.append(grad_output if grad_output is None else grad_output.to(output.dtype))

    def _pass_on(self, tensor: Tensor, unit: _Unit, neighbour: int | None, local: dict[_Unit, Tensor]) -> None:
        """Hands a result to the neighbour stage, if that is on this rank, or leaves it to a send."""
        if neighbour is None:
            return
        if self.plan.rank_of[neighbour] == self.pipeline.rank:
            local[neighbour, unit[1]] = tensor
        else:
            self.leaving[unit] = tensor

    def _start_backward(self, unit: _Unit) -> tuple[_Graph, list[Tensor]]:
        graph = self.graphs.pop(unit)
        arrived = None if self.plan.after(unit[0]) is None else self.grad_outputs.pop(unit)
        gradients = [arrived if gradient is None else gradient for gradient in graph.grad_outputs]
        return graph, [gradient for gradient in gradients if gradient is not None]

    def _backward(self, unit: _Unit) -> None:
        graph, grad_outputs = self._start_backward(unit)
        if graph.outputs:
            backward(graph.outputs, grad_outputs)
        if graph.input is not None:
            grad_input, graph.input.grad = graph.input.grad, None
            self._return(grad_input, graph.input, unit)

    def _backward_input(self, unit: _Unit) -> None:
        graph, grad_outputs = self._start_backward(unit)
        grad_input, self.pending[unit] = backward_input(graph.outputs, grad_outputs, graph.boundary)
        if graph.input is not None:
            self._return(grad_input, graph.input, unit)

    def _return(self, grad_input: Tensor | None, stage_input: Tensor, unit: _Unit) -> None:
        """Passes the input's gradient to the stage before; zeros when nothing depends on the input."""
        grad_input = torch.zeros_like(stage_input) if grad_input is None else grad_input
        self._pass_on(grad_input, unit, self.plan.before(unit[0]), self.grad_outputs)
