"""A deployment's servers on their nodes, and the script that starts them.

    serve.sh                    one server on one node: the line itself
    serve.sh NODE               case "$NODE" in 0) server & server & ;; 1) ... esac    a line of each server
    HOSTS="host0 host1" serve.sh NODE    where a replica spans nodes: its first one answers, the others join it

Replicas of one node that an engine starts itself (vLLM's --data-parallel-size of a dense model, SGLang's --dp-size)
are one server; others are servers of their own, which something before them has to share requests out to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from scalewright.emit.emitted import Emitted, yaml_text
from scalewright.emit.serving import gguf
from scalewright.emit.serving.deployment import Deployment, Report
from scalewright.emit.serving.engines import ENGINES, flags_of, options
from scalewright.spec.common.shell import Expression, Word, command, quote

VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}
JOIN_PORT, SIDE_PORT, BOOTSTRAP_PORT, RPC_PORT = 29500, 5600, 8998, 13345

ADDRESS = "${ADDRESS:-$(hostname -I | cut -d' ' -f1)}"  # of this node, where others reach it


@dataclass(frozen=True)
class Server:
    """One process that serves, or one node's part of it."""

    role: str
    number: int  # of the server
    node: int
    rank: int  # of the node within the server
    first: int  # device of the node
    count: int  # devices of the node


def write(engine: str, d: Deployment, report: Report) -> Emitted:
    """The launch lines of an engine."""
    title = ENGINES[engine].title
    inside = 1
    if not d.prefill and d.replicas * d.devices <= d.per_node and _starts_replicas(engine, d):
        inside, d = d.replicas, replace(d, replicas=1)
    servers = list(placed(d, inside))
    nodes = servers[-1].node + 1
    if servers[-1].number and engine != "sglang" and not (engine == "trtllm" and d.prefill):
        router = " that knows prefill from decode (`emit dynamo` and `emit kserve` bring one)" if d.prefill else ""
        report.assume(f"{servers[-1].number + 1} servers, each on a port of its own: put a router{router} before them")
    if nodes > 1 and engine == "vllm" and d.prefill:
        report.assume("caches are sent over the first address of `hostname -I`: set ADDRESS on a node for another")
    if nodes > 1 and engine in ("sglang", "trtllm") and servers[-1].number:
        report.assume("nodes are called node0, node1, ...: put their names in")
    files = {"serve.sh": _script(engine, d, report, servers, inside)}
    if engine == "trtllm":
        for role, _ in d.roles:
            files[_yaml_name(role)] = yaml_text((f"{title}: trtllm-serve --config",), options(d, report, role))
        if d.prefill:
            files["disaggregated.yaml"] = _disaggregated(d, servers)
    run = "bash serve.sh" if nodes == 1 else f"bash serve.sh NODE   # on each of {nodes} nodes, NODE from 0"
    return Emitted(
        engine, ENGINES[engine].version, files, run, tuple(report.dropped.values()),
        tuple(report.changed.values()), tuple(report.assumed),
    )  # fmt: skip


def _starts_replicas(engine: str, d: Deployment) -> bool:
    """Whether one server runs the copies itself: ranks of vLLM's mixtures would share experts, so that they aren't."""
    if d.replicas == 1 or d.attention_dp > 1:
        return False
    return engine == "sglang" or (engine == "vllm" and not d.experts)


def placed(d: Deployment, inside: int = 1) -> Iterator[Server]:
    """Servers on nodes, prefill first; a replica never shares its last node with another that spans nodes."""
    number = at = 0  # `at`: the next free device, counted over all nodes
    count = d.devices * inside
    for role, replicas in d.roles:
        for _ in range(replicas):
            left = d.per_node - at % d.per_node
            if left < min(count, d.per_node):
                at += left
            nodes = -(-count // d.per_node)
            for rank in range(nodes):
                held = min(count, d.per_node)
                yield Server(role, number, (at + rank * d.per_node) // d.per_node, rank, at % d.per_node, held)
            at += count if nodes == 1 else nodes * d.per_node
            number += 1


def _script(engine: str, d: Deployment, report: Report, servers: list[Server], inside: int) -> str:
    kind, nodes = ENGINES[engine], servers[-1].node + 1
    head = ["#!/usr/bin/env bash", f"# Written by `scalewright emit {engine}`: {kind.title} {kind.version}, {d.name}."]
    spread = any(server.rank for server in servers)
    if nodes > 1:
        names = ' HOSTS="<names of all, in order, a space between>"' if spread else ""
        head.append(f"# On each of {nodes} nodes:{names} bash serve.sh <0..{nodes - 1}>")
    head.append("set -euo pipefail\n")
    if spread:
        head.append('read -ra hosts <<< "$HOSTS"')
    flags = {role: kind.flags(d, report, role) for role, _ in d.roles}
    if engine == "llama.cpp":
        head += gguf.conversion(d)
    if len(servers) == 1:
        fewer = engine == "llama.cpp" and servers[0].count < d.per_node  # it takes all that it sees
        line = _environment(engine, d, servers[0], fewer, False) + command(
            _words(engine, d, servers[0], inside, flags[""], 0)
        )
        return "\n".join([*head, line, ""])
    alone = servers[-1].number == 0
    body = [f"{_array(role)}=(\n  {command(words)}\n)" for role, words in flags.items()]
    body.append('case "${1:-0}" in')
    for node in range(nodes):
        here = [server for server in servers if server.node == node]
        shared = len(here) > 1 or (engine == "llama.cpp" and here[0].count < d.per_node)
        body.append(f"{node})")
        for server in here:
            if engine == "trtllm" and server.rank:
                body.append(f"  : # server {server.number} is started from its first node")
                continue
            array = Expression(f"${{{_array(server.role)}[@]}}")
            words = _words(engine, d, server, inside, [array], 0 if alone else 1 + server.number)
            body.append(f"  {_environment(engine, d, server, shared, nodes > 1)}{command(words)} &")
        if node == 0 and (router := _router(engine, d, servers)):
            body.append(f"  {command(router)} &")
        body.append("  ;;")
    return "\n".join([*head, *body, "esac", "wait", ""])


def _array(role: str) -> str:
    return role.upper() or "FLAGS"


def _environment(engine: str, d: Deployment, server: Server, shared: bool, apart: bool) -> str:
    """Its devices, where it shares a node; a port of its own for what it sends to other servers."""
    words = {}
    if shared and (name := VISIBLE.get(d.vendor)):
        words[name] = ",".join(map(str, range(server.first, server.first + server.count)))
    if server.role and engine == "vllm":
        # each rank of data parallelism listens on a port of its own, from this one on
        words["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(SIDE_PORT + server.number * d.attention_dp)
        if apart:
            words["VLLM_NIXL_SIDE_CHANNEL_HOST"] = quote(Expression(ADDRESS))
    return "".join(f"{key}={value} " for key, value in words.items()) + ("\\\n  " if words else "")


def _words(engine: str, d: Deployment, server: Server, inside: int, flags: Sequence[Word], behind: int) -> list[Word]:
    """The line of a server on one of its nodes; `behind`: ports that it stands behind the engine's own."""
    kind = ENGINES[engine]
    words: list[Word] = [*kind.launch, gguf.file(d) if engine == "llama.cpp" else d.checkpoint, *flags]
    if engine == "trtllm":
        words += ["--config", _yaml_name(server.role)]
        if d.nodes_each > 1:
            hosts = ",".join(f"{_host(server.node + rank)}:{server.count}" for rank in range(d.nodes_each))
            words = ["mpirun", "-n", str(d.devices), "-H", Expression(hosts), "trtllm-llmapi-launch", *words]
    elif engine != "llama.cpp":
        words += _joined(engine, d, server)
    if inside > 1:
        words += ["--data-parallel-size" if engine == "vllm" else "--dp-size", str(inside)]
    if server.role == "prefill" and engine == "sglang":
        words += ["--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT + server.number)]
    if engine == "vllm" and server.rank:
        return [*words, "--headless"]
    return [*words, "--host", "0.0.0.0", "--port", str(kind.port + behind)]


def _host(node: int) -> str:
    return f"${{hosts[{node}]}}"


def _joined(engine: str, d: Deployment, server: Server) -> list[Word]:
    """How the nodes of one server find each other."""
    nodes = d.nodes_each
    if nodes == 1:
        return []
    first = _host(server.node - server.rank)
    head = Expression(first)
    if engine == "sglang":
        address = Expression(f"{first}:{JOIN_PORT}")
        return ["--dist-init-addr", address, *flags_of({"--nnodes": nodes}), "--node-rank", str(server.rank)]
    if d.attention_dp > 1 and d.attention_dp % nodes == 0:  # ranks of data parallelism, so many a node
        here = d.attention_dp // nodes
        start = flags_of({"--data-parallel-start-rank": server.rank * here or None})
        address_words: list[Word] = ["--data-parallel-address", head, "--data-parallel-rpc-port", str(RPC_PORT)]
        return [*flags_of({"--data-parallel-size-local": here}), *start, *address_words]
    return [*flags_of({"--nnodes": nodes}), "--node-rank", str(server.rank), "--master-addr", head]


def _router(engine: str, d: Deployment, servers: list[Server]) -> list[Word] | None:
    """SGLang's and TensorRT-LLM's own; a node's name is node0, node1, ... where there are several."""
    port = ENGINES[engine].port
    firsts = [server for server in servers if not server.rank]
    if engine == "trtllm" and d.prefill:
        return ["trtllm-serve", "disaggregated", "-c", "disaggregated.yaml"]
    if engine != "sglang" or len(firsts) == 1:
        return None
    words: list[Word] = ["python", "-m", "sglang_router.launch_router", "--host", "0.0.0.0", "--port", str(port)]
    if not d.prefill:
        return [*words, "--worker-urls", *(_url(s, port, servers) for s in firsts)]
    words.append("--pd-disaggregation")
    for s in firsts:
        bootstrap = [str(BOOTSTRAP_PORT + s.number)] if s.role == "prefill" else []
        words += [f"--{s.role}", _url(s, port, servers), *bootstrap]
    return words


def _url(server: Server, port: int, servers: list[Server]) -> str:
    host = "localhost" if servers[-1].node == 0 else f"node{server.node}"
    return f"http://{host}:{port + 1 + server.number}"


def _yaml_name(role: str) -> str:
    return f"{role}.yaml" if role else "options.yaml"


def _disaggregated(d: Deployment, servers: list[Server]) -> str:
    """TensorRT-LLM's file of servers that prefill (context) and decode (generation)."""
    port = ENGINES["trtllm"].port
    data: dict[str, object] = {"hostname": "0.0.0.0", "port": port, "backend": "pytorch"}
    for key, role, count in (("context_servers", "prefill", d.prefill), ("generation_servers", "decode", d.replicas)):
        mine = [_url(s, port, servers).removeprefix("http://") for s in servers if s.role == role and not s.rank]
        data[key] = {"num_instances": count, "urls": mine}
    return yaml_text(("TensorRT-LLM: trtllm-serve disaggregated -c",), data)
