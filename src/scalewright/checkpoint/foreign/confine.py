"""Takes from this process what reading a file doesn't need: so runs the reader of others' checkpoints.

    limits         memory, processor seconds, open files; no file may grow, no core dump
    no_new_privs   a setuid program gains nothing
    seccomp        a list of system calls: read, seek, memory, write to pipes. No socket, no new process or
                   program, no file opened for writing, no memory made executable: each gives EPERM

The list is Linux's alone (x86-64 and arm64); elsewhere the limits hold. The reader has no call that could run
what a file carries; this is for the day when Python's interpreter has a flaw.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2  # linux/prctl.h, linux/seccomp.h
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
PROT_EXEC = 4
# Bytes of `struct seccomp_data`: the call's number, the architecture, six arguments of 8 bytes
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06  # BPF: ld w abs, jeq k, jset k, ret k
ALLOW, EPERM = 0x7FFF0000, 0x00050001

# Numbers by linux/unistd.h. `open` and `openat` may not write, `mmap` and `mprotect` make nothing executable.
CALLS = {
    "x86_64": (
        0xC000003E,
        {
            "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "lseek": 8, "munmap": 11, "brk": 12,
            "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "ioctl": 16, "pread64": 17, "access": 21,
            "sched_yield": 24, "mremap": 25, "madvise": 28, "getpid": 39, "exit": 60, "fcntl": 72, "getcwd": 79,
            "readlink": 89, "sigaltstack": 131, "gettid": 186, "futex": 202, "getdents64": 217, "clock_gettime": 228,
            "exit_group": 231, "newfstatat": 262, "readlinkat": 267, "faccessat": 269, "getrandom": 318, "statx": 332,
        },
        {"open": (2, 1, WRITES), "openat": (257, 2, WRITES), "mmap": (9, 2, PROT_EXEC), "mprotect": (10, 2, PROT_EXEC)},
    ),
    "aarch64": (
        0xC00000B7,
        {
            "getcwd": 17, "fcntl": 25, "ioctl": 29, "faccessat": 48, "close": 57, "getdents64": 61, "lseek": 62,
            "read": 63, "write": 64, "pread64": 67, "readlinkat": 78, "newfstatat": 79, "fstat": 80, "exit": 93,
            "exit_group": 94, "futex": 98, "clock_gettime": 113, "sched_yield": 124, "sigaltstack": 132,
            "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "getpid": 172, "gettid": 178, "brk": 214,
            "munmap": 215, "mremap": 216, "madvise": 233, "getrandom": 278, "statx": 291,
        },
        {"openat": (56, 2, WRITES), "mmap": (222, 2, PROT_EXEC), "mprotect": (226, 2, PROT_EXEC)},
    ),
}  # fmt: skip


def confine(memory: int, seconds: int) -> list[str]:
    """Gives up what isn't needed, for good; the names of what holds now. Import first, call then."""
    holds = []
    if sys.platform != "win32":
        set_limits(memory, seconds)
        holds.append("limits")
    if sys.platform == "linux" and platform.machine() in CALLS:
        if set_no_new_privileges():
            holds.append("no_new_privs")
        if filter_calls(platform.machine()):
            holds.append("seccomp")
    return holds


def set_limits(memory: int, seconds: int) -> None:
    """Bytes of address space, seconds of processor time; a limit that is lower already stays."""
    import resource  # Unix's

    limits = {resource.RLIMIT_AS: memory, resource.RLIMIT_CPU: seconds, resource.RLIMIT_NOFILE: 32}
    limits |= {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    for kind, limit in limits.items():
        _, hard = resource.getrlimit(kind)
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        try:
            resource.setrlimit(kind, (most, most))
        except (ValueError, OSError):  # macOS takes no limit of the address space
            continue


def set_no_new_privileges() -> bool:
    """Whether the kernel took it."""
    return bool(ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)


def filter_calls(machine: str) -> bool:
    """Whether the kernel took the list of calls; a kernel without seccomp doesn't."""
    code = program(machine)
    content = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    filter_ = Program(len(code) // 8, ctypes.addressof(content))
    return bool(ctypes.CDLL(None).prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_), 0, 0) == 0)


def program(machine: str) -> bytes:
    """The filter in BPF, 8 bytes an instruction: (code, skip if true, skip if false, number)."""
    architecture, plain, with_argument = CALLS[machine]
    allow, refuse = (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, EPERM)
    lines = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), refuse, (LOAD, 0, 0, NUMBER)]
    for number in plain.values():
        lines += [(EQUAL, 0, 1, number), allow]
    for number, argument, forbidden in with_argument.values():
        load = (LOAD, 0, 0, ARGUMENTS + 8 * argument)
        lines += [(EQUAL, 0, 4, number), load, (ANY_BIT, 0, 1, forbidden), refuse, allow]
    return b"".join(struct.pack("=HBBI", *line) for line in [*lines, refuse])
