"""What ``feddrm doctor`` looks at on this machine: Python, packages, extras, cores, GPU, folders, ports, clock."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from feddrm.checks import ports
from feddrm.checks.findings import (
    BEHIND_SECONDS,
    NOTE,
    OK,
    PROBLEM,
    WARNING,
    Finding,
    check_disk,
    clock_finding,
    require_writable,
)
from feddrm.errors import FeddrmError

EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")
REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,-]*\])?\s*([^;]*)")
BOUND = re.compile(r"(>=|<)\s*([\d.]+)")
NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
SMI_SECONDS = 10.0
USERS = {ports.GATEWAY: "feddrm serve", ports.PREDICTOR: "feddrm serve-client", ports.FEDERATION: "feddrm deploy init"}


def check_python() -> Iterator[Finding]:
    """Python's version and the packages that feddrm needs. None of them is imported."""
    own = _distribution()
    python = ".".join(map(str, sys.version_info[:3]))
    wanted = own.metadata["Requires-Python"] or ""
    fits = _fits(python, wanted)
    remedy = "" if fits else f": feddrm needs {wanted}: make the environment with another Python"
    yield Finding("Python", OK if fits else PROBLEM, f"{python}{remedy}")
    for requirement in sorted(own.requires or (), key=lambda text: not text.startswith("torch")):
        name, text = _requirement(requirement)
        if EXTRA.search(requirement):
            continue
        if (missing := _missing(requirement)) is not None:
            yield Finding(name, PROBLEM, f"{missing}: pip install '{text}'")
        elif name == "torch":
            yield Finding(name, OK, metadata.version(name))


def check_extras() -> Iterator[Finding]:
    """The optional extras of the package: installed, or what is missing."""
    own = _distribution()
    for extra in own.metadata.get_all("Provides-Extra") or ():
        if extra == "dev":
            continue
        needed = [text for text in own.requires or () if (found := EXTRA.search(text)) and found[1] == extra]
        lacking = [missing for text in needed if (missing := _missing(text)) is not None]
        if lacking:
            yield Finding(f"extra {extra}", NOTE, f"{', '.join(lacking)}: pip install 'feddrm[{extra}]'")
        else:
            yield Finding(f"extra {extra}", OK, "installed")


def check_cores() -> Iterator[Finding]:
    """The cores that this process may use, and the threads that torch will start."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = os.environ.get("OMP_NUM_THREADS")
    text = f"{cores} can be used, OMP_NUM_THREADS is {given or 'not set'}"
    if given is not None and not (given.isdigit() and 0 < int(given) <= cores):
        yield Finding("cores", WARNING, f"{text}: give a number from 1 to {cores}, or unset it")
    else:
        yield Finding("cores", OK, text)


def check_gpu() -> Iterator[Finding]:
    """The NVIDIA GPUs that the driver's nvidia-smi names, and whether the installed torch can use them."""
    if shutil.which(NVIDIA[0]) is None:
        if Path("/proc/driver/nvidia/version").exists():
            yield Finding("GPU", WARNING, "the NVIDIA driver is loaded without nvidia-smi: install it with the driver")
        else:
            yield Finding("GPU", NOTE, "no NVIDIA GPU (no nvidia-smi, no /proc/driver/nvidia): the CPU is used")
        return
    try:
        asked = subprocess.run(NVIDIA, capture_output=True, text=True, timeout=SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("GPU", WARNING, f"nvidia-smi does not answer ({error}): repair the driver, or use the CPU")
        return
    names = [" ".join(line.split()) for line in asked.stdout.splitlines() if line.strip()]
    if asked.returncode != 0 or not names:
        said = " ".join((asked.stderr or asked.stdout).split()) or "it names no GPU"
        yield Finding("GPU", WARNING, f"nvidia-smi: {said[:200]}: repair the driver, or use the CPU")
    elif (installed := _version("torch") or "").endswith("+cpu"):
        text = f"torch {installed} is built for CPUs: install a CUDA build (pytorch.org) to use it"
        yield Finding("GPU", WARNING, f"{'; '.join(names)} (by nvidia-smi): {text}")
    else:
        yield Finding("GPU", OK, f"{'; '.join(names)} (by nvidia-smi)")


def check_runs(runs: Path) -> Iterator[Finding]:
    """Whether runs can be written, the free disk, and this machine's clock against that of the file system."""
    place = next(folder for folder in (runs.absolute(), *runs.absolute().parents) if folder.exists())
    if not place.is_dir():
        raise FeddrmError(f"{place} is a file: choose another folder for runs")
    now, written, installed = time.time(), require_writable(place), Path(__file__).stat().st_mtime
    yield Finding("runs", OK, f"{runs} can be written")
    yield from check_disk(place)
    if now < installed - BEHIND_SECONDS:
        text = f"it says {time.strftime('%Y-%m-%d %H:%M', time.gmtime(now))} UTC, before feddrm was installed"
        yield Finding("clock", PROBLEM, f"{text}: set this machine's clock")
    else:
        remedy = "set the clocks of both machines by NTP"
        yield clock_finding(now - written, f"the file system's of {place}", remedy)


def check_ports() -> Iterator[Finding]:
    """Whether the ports are free that commands use unless they are told otherwise."""
    for port, command in USERS.items():
        if (reason := ports.why_taken(ports.LOOPBACK, port)) is None:
            yield Finding(f"port {port}", OK, f"free for '{command}'")
        else:
            text = f"cannot be used ({reason}): stop what uses it, or give '{command} --port' another"
            yield Finding(f"port {port}", WARNING, text)


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution("feddrm")
    except metadata.PackageNotFoundError as error:
        raise FeddrmError("feddrm is not installed, only its source is found: pip install feddrm") from error


def _requirement(text: str) -> tuple[str, str]:
    """Name and whole text of a requirement, without its condition."""
    match = REQUIREMENT.match(text)
    assert match is not None
    return match[1], text.partition(";")[0].strip()


def _missing(requirement: str) -> str | None:
    """What is wrong with a required package: that it is missing, or its version; None if it is there."""
    name, text = _requirement(requirement)
    installed = _version(name)
    if installed is None:
        return f"{name} is missing"
    return None if _fits(installed, text) else f"{name} {installed} does not fit {text}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _fits(version: str, bounds: str) -> bool:
    """Whether a version is within bounds of the form ``>=1.2,<2``. Suffixes such as ``+cpu`` do not count."""
    own, ends = _numbers(version), [(sign, _numbers(end)) for sign, end in BOUND.findall(bounds)]
    return all(own >= end if sign == ">=" else own < end for sign, end in ends)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.match(r"[\d.]*", version)[0].strip(".").split(".") if part)  # type: ignore[index]
