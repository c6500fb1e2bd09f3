"""How processes find each other: the host's name, the interface that Gloo takes, ports, InfiniBand.

Gloo binds to the address that the host's own name resolves to, or to the interface that GLOO_SOCKET_IFNAME
names. A name that resolves to nothing, or to an address that this machine doesn't have, is the usual reason
why a run on several processes hangs before its first step.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from pathlib import Path

from scalewright.spec.common.ports import how_to_free, listener
from scalewright.spec.errors import Finding

GROUP = "network"
DEFAULT_PORT = 29500
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def resolve(name: str, seconds: float = 1.5) -> list[str]:
    """The addresses of a name; raises OSError, or TimeoutError when the resolver doesn't answer in time."""
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        entries = pool.submit(socket.getaddrinfo, name, None, 0, socket.SOCK_STREAM).result(timeout=seconds)
    except Late:
        raise TimeoutError(f"no answer within {seconds} s") from None
    finally:
        pool.shutdown(wait=False)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def interface_of(addresses: list[str]) -> tuple[str, str] | None:
    """The first (interface, address) of this machine among `addresses`."""
    import psutil  # late: what it imports differs from system to system

    for address in addresses:
        for interface, entries in psutil.net_if_addrs().items():
            if any(entry.address.split("%")[0] == address for entry in entries):
                return interface, address
    return None


def hostname(environ: Mapping[str, str]) -> Finding:
    """Whether the host's name resolves to an address of its own, and to which interface that belongs."""
    if chosen := environ.get("GLOO_SOCKET_IFNAME"):
        what = f"GLOO_SOCKET_IFNAME={chosen} decides; the host's name doesn't matter"
        return Finding(GROUP, "gloo interface", "ok", what)
    name = socket.gethostname()
    fix = f"export GLOO_SOCKET_IFNAME={_loopback()}, or add '127.0.0.1 {name}' to the hosts file"
    try:
        addresses = resolve(name)
    except OSError as error:
        return Finding(GROUP, "gloo interface", "warn", f"the host's name '{name}' doesn't resolve: {error}", fix)
    if (match := interface_of(addresses)) is None:
        # 127.0.1.1 is Debian's entry for the host's own name: on the loopback interface, listed nowhere.
        if all(address.startswith("127.") for address in addresses):
            return _loopback_only(name, addresses[0])
        what = f"the host's name '{name}' resolves to {addresses[0]}, which is no address of this machine"
        return Finding(GROUP, "gloo interface", "warn", what, fix)
    interface, address = match
    if address.startswith("127.") or address == "::1":
        return _loopback_only(name, address)
    what = f"Gloo would use {interface} ({address}), where the host's name '{name}' leads"
    return Finding(GROUP, "gloo interface", "ok", what, data={"interface": interface, "address": address})


def _loopback_only(name: str, address: str) -> Finding:
    what = f"'{name}' resolves to {address}: right for one machine; other machines can't reach it"
    fix = "for several machines: export GLOO_SOCKET_IFNAME=INTERFACE on each"
    return Finding(GROUP, "gloo interface", "ok", what, fix, {"interface": _loopback(), "address": address})


def _loopback() -> str:
    interface, _ = interface_of(["127.0.0.1"]) or ("lo", "")
    return interface


def named_interfaces(environ: Mapping[str, str]) -> list[Finding]:
    """Interfaces that the environment names and this machine doesn't have."""
    import psutil  # late: what it imports differs from system to system

    present = set(psutil.net_if_addrs())
    findings = []
    for variable in INTERFACE_VARIABLES:
        text = environ.get(variable, "")
        names = [name.lstrip("^=") for name in text.split(",") if name]
        if not names or text.startswith("^"):  # ^ means: any but these
            continue
        if not any(interface.startswith(name) for name in names for interface in present):
            what = f"{variable}={text} names no interface of this machine"
            fix = f"use one of {', '.join(sorted(present))}, or unset {variable}"
            findings.append(Finding(GROUP, variable, "problem", what, fix))
    return findings


def loopback() -> Finding:
    """Whether a port can be opened on this machine and reached from it."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(1)
            client = socket.create_connection(("127.0.0.1", server.getsockname()[1]), timeout=1)
            with client, server.accept()[0] as accepted:
                client.sendall(b"x")
                accepted.settimeout(1)
                arrived = accepted.recv(1) == b"x"
    except OSError as error:
        fix = "allow connections to 127.0.0.1 in the firewall or sandbox: local workers need them"
        return Finding(GROUP, "loopback", "problem", f"no port of 127.0.0.1 can be opened and reached: {error}", fix)
    if not arrived:
        what = "what is sent over 127.0.0.1 doesn't arrive"
        return Finding(GROUP, "loopback", "problem", what, "check the firewall")
    return Finding(GROUP, "loopback", "ok", "ports of 127.0.0.1 open and answer")


def main_port(environ: Mapping[str, str]) -> Finding | None:
    """Whether the port where workers would meet is free."""
    text = environ.get("MASTER_PORT", str(DEFAULT_PORT))
    if not text.isdigit() or not 0 < int(text) < 65536:
        what = f"MASTER_PORT={text!r} is no port"
        return Finding(GROUP, "port", "problem", what, f"export MASTER_PORT={DEFAULT_PORT}")
    try:
        with socket.create_server(("127.0.0.1", int(text))):
            pass
    except OSError as error:
        why = f"by {holder}" if (holder := listener(int(text))) else f"({os.strerror(error.errno or 0)})"
        what = f"port {text} is taken {why}: a default rendezvous would fail on it"
        return Finding(GROUP, "port", "note", what, how_to_free(int(text), holder))
    return Finding(GROUP, "port", "ok", f"port {text} is free")


def infiniband(root: Path = Path("/")) -> Finding | None:
    """InfiniBand ports and whether they are up (Linux)."""
    folder = root / "sys/class/infiniband"
    if not folder.is_dir():
        return None
    ports = sorted(folder.glob("*/ports/*/state"))
    down = [path for path in ports if "ACTIVE" not in path.read_text()]
    what = f"{len(ports) - len(down)} of {len(ports)} InfiniBand ports active"
    if down:
        names = ", ".join(path.parts[-4] for path in down[:4])
        what += f"; down: {names}"
        return Finding(GROUP, "infiniband", "warn", what, "check cables and subnet manager (ibstat)")
    return Finding(GROUP, "infiniband", "ok", what)
