"""Plugins: methods, models and datasets of one's own, from files that the user names and from installed packages.

A run folder and a router only record which plugins they need. Opening one never executes a plugin: somebody else may
have written it. The user names the file, and its checksum must be the recorded one.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from feddrm.errors import FeddrmError
from feddrm.typed_settings import typed_arguments

if TYPE_CHECKING:
    from importlib import metadata

VARIABLE = "FEDDRM_PLUGINS"  # paths of plugin files, separated as in PATH
KINDS = ("method", "model", "dataset")  # rules and tasks have names, too, but no command would use a plugin's
GROUP = "feddrm.plugins"  # the entry points of installed packages


@dataclass(frozen=True)
class PluginFile:
    """A plugin file that was executed, and the checksum of what was executed."""

    path: Path
    sha256: str


_files: dict[str, PluginFile] = {}  # by the name of their module
_packages: dict[str, metadata.Distribution] = {}  # by the name of the imported module


@typed_arguments
def load_plugin(path: str | Path) -> None:
    """Execute a Python file. The methods, models and datasets that it defines can be used by name from then on.

    Example:
        >>> feddrm.load_plugin("median.py")  # the example of docs/extending.md
        >>> feddrm.Method.make("fedmedian")
        FedMedian()
    """
    path = Path(path).resolve()
    try:
        source = path.read_bytes()
    except OSError as error:
        raise FeddrmError(f"cannot read the plugin {path} ({error.strerror}): give a Python file") from error
    name = f"feddrm_plugin_{path.stem}_{_sha256(str(path).encode())[:8]}"
    plugin = PluginFile(path, _sha256(source))
    if _files.get(name) == plugin:
        return
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses and type hints look their module up
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)  # not import: the bytes of the checksum are executed
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise FeddrmError(f"the plugin {path} failed{_line(error, path)} ({_reason(error)}): correct it") from error
    kinds = {kind for value in vars(module).values() if (kind := _kind(value, name))}
    if not kinds.intersection(KINDS):
        del sys.modules[name]
        remedy = f"plugins cannot add a {kinds.pop()}" if kinds else "give it a frozen dataclass that sets 'name'"
        raise FeddrmError(f"the plugin {path} defines no method, model or dataset: {remedy} (see docs/extending.md)")
    _files[name] = plugin


@cache
def load_configured() -> tuple[str, ...]:
    """Load the files of FEDDRM_PLUGINS and all installed plugin packages, once; one line per broken package."""
    from importlib import metadata

    for path in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        load_plugin(path)
    broken = []
    for entry in metadata.entry_points(group=GROUP):
        package = "?" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
        try:
            entry.load()
        except (Exception, SystemExit) as error:
            broken.append(
                f"the installed plugin package {package} cannot be loaded ({_reason(error)}): repair or uninstall it"
            )
        else:
            if entry.dist is not None:
                _packages[entry.module] = entry.dist
    return tuple(broken)


def used_plugins(*classes: type | None) -> list[dict[str, str]]:
    """The plugins that define these classes or a class above them, as a run records them."""
    modules = dict.fromkeys(c.__module__ for member in classes if member is not None for c in member.__mro__)
    used = [{"path": str(_files[m].path), "sha256": _files[m].sha256} for m in modules if m in _files]
    packages = {
        package.name: package.version
        for loaded, package in _packages.items()
        if any(module == loaded or module.startswith(f"{loaded}.") for module in modules)
    }
    return used + [{"package": name, "version": version} for name, version in packages.items()]


def plugin_failure(error: BaseException) -> str | None:
    """One line for an error that came through a plugin's code, at its innermost line; None for any other error."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__"))
        if any(module == loaded or module.startswith(f"{loaded}.") for loaded in (*_files, *_packages)):
            return f"the plugin {frame.f_code.co_filename} failed in line {line} ({_reason(error)}): correct it"
    return None


def without_folders(recorded: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """The record for files that travel: the name of a plugin's file, not where it lies on this machine."""
    return [{key: Path(value).name if key == "path" else value for key, value in plugin.items()} for plugin in recorded]


def require_plugins(recorded: object, where: str | Path) -> None:
    """Refuse to go on unless every recorded plugin is loaded, with the recorded checksum. Nothing recorded is run."""
    if not recorded:
        return
    load_configured()
    if not isinstance(recorded, list) or not all(isinstance(plugin, Mapping) for plugin in recorded):
        raise FeddrmError(f"{where} has no list of files under 'plugins': put it back as it was")
    for plugin in recorded:
        if "package" in plugin:
            _require_package(plugin, where)
        else:
            _require_file(plugin, where)


def _require_package(plugin: Mapping[str, Any], where: str | Path) -> None:
    if plugin["package"] not in {package.name for package in _packages.values()}:
        raise FeddrmError(
            f"{where} needs the plugin package {plugin['package']} {plugin.get('version')}, which is not installed "
            "here: install it, if you trust it"
        )


def _require_file(plugin: Mapping[str, Any], where: str | Path) -> None:
    path, sha256 = plugin.get("path"), plugin.get("sha256")
    if sha256 in {file.sha256 for file in _files.values()}:
        return
    needs = f"{where} needs the plugin {path} with the checksum {sha256}"
    changed = [file for file in _files.values() if file.path.name == Path(str(path)).name]
    if changed:
        raise FeddrmError(f"{needs}; {changed[0].path} has {changed[0].sha256}: give the file as it was then")
    raise FeddrmError(f"{needs}: if you trust this file, give --plugin {path} (or {VARIABLE}={path})")


def _kind(value: object, module: str) -> str | None:
    """``method``, ``model``, ``rule``: what a class of a plugin's module can be found as by name; None for all else."""
    if not isinstance(value, type) or value.__module__ != module:
        return None
    noun: Any = getattr(value, "noun", None)
    return noun() if getattr(value, "name", None) in getattr(value, "family", {}) else None


def _line(error: BaseException, path: Path) -> str:
    """``in line 7``: where a plugin failed, as far as that is known."""
    if isinstance(error, SyntaxError):
        return f" in line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" in line {lines[-1]}" if lines else ""


def _reason(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
