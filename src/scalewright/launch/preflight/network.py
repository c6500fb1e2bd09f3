"""The place where ranks meet, its port, and the interfaces that Gloo and NCCL take.

Most starts that hang do so here: rank 0 listens at an address that only its own machine knows, or a library
binds to an interface by which no other node can be reached.
"""

from __future__ import annotations

from ipaddress import ip_address

from scalewright.launch.preflight.facts import Facts
from scalewright.launch.preflight.rule import RuleFailure, Subject
from scalewright.spec.common.formatting import counted
from scalewright.spec.common.ports import how_to_free

SUBJECT = Subject("network")
INTERFACES = "PyTorch docs, torch.distributed: Choosing the network interface to use"
GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")
OF_CONTAINERS = ("docker", "virbr", "veth", "br-")
CHOOSES_PORTS = ("torchrun", "Ray Train")  # free ones, which others may well be beside


def on_loopback(address: str) -> bool:
    """Whether a name or an address means the machine that asks."""
    if address.lower() in LOCAL_NAMES:
        return True
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def names_in(value: str) -> list[str]:
    """The interfaces of a variable; none where it names those to leave out (`^docker`)."""
    return [] if value.startswith("^") else [name for name in value.lstrip("=").split(",") if name]


@SUBJECT.rule("meeting-on-loopback", "problem", "ranks of several nodes are to meet at `localhost`",
              "torchrun docs: Environment Variables, MASTER_ADDR", at=("meeting", "submit"),
              needs=("several nodes",))  # fmt: skip
def meeting_on_loopback(facts: Facts) -> RuleFailure | None:
    if not on_loopback(facts.place.address):
        return None
    what = f"{facts.place.nodes} nodes are to meet at {facts.place.address}, where each finds only itself"
    where = "launch" if facts.place.target else facts.where
    return RuleFailure(what, where, "set MASTER_ADDR to the first node's name or address")


@SUBJECT.rule("meeting-leads-here", "problem", "the first node's name means another machine on this one",
              "Debian reference, 5.1.1: 127.0.1.1 for the host's own name", at=("meeting",),
              needs=("several nodes",))  # fmt: skip
def meeting_leads_here(facts: Facts) -> RuleFailure | None:
    place, addresses = facts.place, facts.machine.meeting_addresses
    if place.on_first_node or not addresses or on_loopback(place.address):
        return None
    if not all(on_loopback(address) for address in addresses):
        return None
    what = f"{place.address}, where ranks meet, is {addresses[0]} on {facts.machine.host}: itself"
    return RuleFailure(what, "/etc/hosts", "correct its line there, or give MASTER_ADDR as an address")


@SUBJECT.rule("port-number", "problem", "the port where ranks meet is none", "ip(7): ports below 1024 are root's",
              at=("meeting", "submit"))  # fmt: skip
def port_number(facts: Facts) -> RuleFailure | None:
    port = facts.place.port
    if port is None or (1024 if not facts.machine.root else 1) <= port <= 65535:
        return None
    why = "is kept for root" if 0 < port < 1024 else "is no port"
    return RuleFailure(f"MASTER_PORT={port} {why}", facts.where, "choose one from 1024 to 32767, such as 29500")


@SUBJECT.rule("port-taken", "problem", "another process holds the port where ranks meet",
              "torch.distributed: TCPStore (EADDRINUSE)", at=("meeting",), needs=("several ranks",))  # fmt: skip
def port_taken(facts: Facts) -> RuleFailure | None:
    place = facts.place
    if place.rank or place.store_is_up or not facts.machine.port_taken:
        return None
    holder = facts.machine.port_holder
    what = f"port {place.port} of {facts.machine.host or 'this machine'} is taken by {holder or 'an earlier run'}"
    return RuleFailure(what, facts.where, how_to_free(place.port, holder))


@SUBJECT.rule("port-of-connections", "warn", "a fixed port that Linux may give to any connection",
              "Linux docs, ip-sysctl: ip_local_port_range", needs=("several nodes",))  # fmt: skip
def port_of_connections(facts: Facts) -> RuleFailure | None:
    first, last = facts.machine.ephemeral_ports or (32768, 60999)
    port = facts.place.port
    if port is None or not first <= port <= last or facts.place.starter in CHOOSES_PORTS:
        return None
    what = f"port {port} is one of {first} to {last}, from which Linux serves connections: it may be taken"
    return RuleFailure(what, "launch.port" if facts.place.target else facts.where, "choose one below, such as 29500")


@SUBJECT.rule("gloo-pattern", "problem", "`GLOO_SOCKET_IFNAME` is written as NCCL's", INTERFACES,
              at=("meeting", "submit"), needs=("several ranks",))  # fmt: skip
def gloo_pattern(facts: Facts) -> RuleFailure | None:
    value = facts.environ.get(GLOO, "")
    if value[:1] not in ("^", "="):
        return None
    what = f"{GLOO}={value}: Gloo takes whole names, and no '{value[0]}' before them"
    return RuleFailure(what, facts.where, facts.set(f"{GLOO}=INTERFACE, such as eth0"))


@SUBJECT.rule("gloo-interface", "problem", "`GLOO_SOCKET_IFNAME` names no interface here", INTERFACES, at=("meeting",),
              needs=("several ranks",))  # fmt: skip
def gloo_interface(facts: Facts) -> RuleFailure | None:
    value, present = facts.environ.get(GLOO, ""), facts.machine.interfaces
    if present is None or not value or value[:1] in ("^", "="):
        return None
    missing = [name for name in value.split(",") if name not in present]
    if not missing:
        return None
    what = f"{GLOO}={value}, and {facts.machine.host or 'this machine'} has no {missing[0]}"
    return RuleFailure(what, facts.where, f"use one of {', '.join(sorted(present))}")


@SUBJECT.rule("nccl-interface", "problem", "`NCCL_SOCKET_IFNAME` fits no interface here",
              "NCCL user guide, Environment Variables: NCCL_SOCKET_IFNAME", at=("meeting",),
              needs=("GPUs", "several ranks"))  # fmt: skip
def nccl_interface(facts: Facts) -> RuleFailure | None:
    value, present = facts.environ.get(NCCL, ""), facts.machine.interfaces
    names = names_in(value)
    if present is None or not names:
        return None
    exact = value.startswith("=")
    if any(name in present if exact else any(i.startswith(name) for i in present) for name in names):
        return None
    what = f"{NCCL}={value}, and {facts.machine.host or 'this machine'} has no such interface"
    return RuleFailure(what, facts.where, f"use one of {', '.join(sorted(present))}")


@SUBJECT.rule("interface-down", "warn", "a chosen interface is down", INTERFACES, at=("node",),
              needs=("several nodes",))  # fmt: skip
def interface_down(facts: Facts) -> RuleFailure | None:
    present = facts.machine.interfaces or {}
    for variable in (GLOO, *((NCCL,) if facts.gpus else ())):
        for name in names_in(facts.environ.get(variable, "")):
            if name in present and not present[name].up:
                how = f"ip link set {name} up, or choose another one"
                return RuleFailure(f"{variable} names {name}, which is down", facts.where, how)
    return None


@SUBJECT.rule("interface-loopback", "problem", "several nodes over the loopback interface", INTERFACES,
              at=("meeting", "submit"), needs=("several nodes",))  # fmt: skip
def interface_loopback(facts: Facts) -> RuleFailure | None:
    for variable in (GLOO, *((NCCL,) if facts.gpus else ())):
        value = facts.environ.get(variable, "")
        if names_in(value) and all(name in ("lo", "lo0") for name in names_in(value)):
            what = f"{variable}={value} is the loopback interface: no other node can be reached by it"
            return RuleFailure(what, facts.where, f"set {variable} (launch.interface) to the network between nodes")
    return None


@SUBJECT.rule("interface-of-containers", "warn", "a bridge of containers between nodes",
              "NCCL user guide, Environment Variables: NCCL_SOCKET_IFNAME (docker* is left out)",
              needs=("several nodes",))  # fmt: skip
def interface_of_containers(facts: Facts) -> RuleFailure | None:
    for variable in (GLOO, *((NCCL,) if facts.gpus else ())):
        names = [name for name in names_in(facts.environ.get(variable, "")) if name.startswith(OF_CONTAINERS)]
        if names:
            what = f"{variable} names {names[0]}, which joins containers of one machine"
            return RuleFailure(what, facts.where, "name the interface of the network between nodes")
    return None


@SUBJECT.rule("host-on-loopback", "problem", "the host's own name is a loopback address, or none, on several nodes",
              "PyTorch, ProcessGroupGloo: falls back to the loopback address", at=("meeting",),
              needs=("several nodes",))  # fmt: skip
def host_on_loopback(facts: Facts) -> RuleFailure | None:
    addresses, host = facts.machine.host_addresses, facts.machine.host
    if addresses is None or facts.environ.get(GLOO):
        return None
    if any(not on_loopback(address) for address in addresses):
        return None
    leads = f"leads to {addresses[0]}" if addresses else "has no address"
    what = f"the name {host} {leads} here, so Gloo would listen where no other node reaches it"
    return RuleFailure(what, "/etc/hosts", f"export {GLOO}=INTERFACE (launch.interface), or correct the hosts file")


@SUBJECT.rule("two-interfaces", "warn", "`launch.interface` and `launch.env` name two interfaces", INTERFACES,
              at=("submit",))  # fmt: skip
def two_interfaces(facts: Facts) -> RuleFailure | None:
    chosen, env = facts.site.interface, facts.site.env
    other = next((name for name in (GLOO, NCCL) if name in env and chosen not in names_in(env[name])), None)
    if not chosen or other is None or env[other].startswith("^"):
        return None
    what = f"{other}={env[other]} counts, and not launch.interface {chosen}"
    return RuleFailure(what, "launch.env", f"leave {other} out, or interface")


@SUBJECT.rule("host-twice", "problem", "`launch.hosts` has a host twice, or `localhost` among others",
              "torchrun docs: --node-rank", at=("submit",))  # fmt: skip
def host_twice(facts: Facts) -> RuleFailure | None:
    hosts = facts.site.hosts
    if twice := [host for host in dict.fromkeys(hosts) if hosts.count(host) > 1]:
        return RuleFailure(f"{twice[0]} stands twice", "launch.hosts", "name each host once")
    if facts.place.nodes > 1 and (local := [host for host in hosts[1:] if on_loopback(host)]):
        return RuleFailure(f"{local[0]} is another machine on each host", "launch.hosts", "give its name or address")
    return None


@SUBJECT.rule("hosts-and-nodes", "problem", "fewer hosts than nodes", "mpirun(1): --hostfile, slots", at=("submit",))
def hosts_and_nodes(facts: Facts) -> RuleFailure | None:
    hosts, nodes = len(facts.site.hosts), facts.place.nodes
    if facts.place.target != "mpi" or not hosts or hosts >= nodes:
        return None
    what = f"{counted(hosts, 'hosts')} for {nodes} nodes"
    return RuleFailure(what, "launch.hosts", "name as many, or set launch.nodes")
