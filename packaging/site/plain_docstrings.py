"""What the Python reference shows: examples as code, names without the marks of Sphinx, functions for modules."""

from __future__ import annotations

import re
from typing import Any

import griffe


def plain(docstring: str) -> str:
    """The docstring with examples that Griffe knows (``Examples:``) and names in backticks alone."""
    docstring = re.sub(r":(?:func|meth|class|mod):(?=`)", "", docstring)
    return re.sub(r"^Example:(?=\n +>>>)", "Examples:", docstring, flags=re.MULTILINE)


class PlainDocstrings(griffe.Extension):
    """Griffe calls this for everything that it reads."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Let ``feddrm.fit`` be the function, not the module of that name from which the package exports it."""
        for name, member in list(pkg.members.items()):
            if isinstance(member, griffe.Alias) and member.target_path.startswith(f"{pkg.path}."):
                home = pkg[member.target_path.removeprefix(f"{pkg.path}.")]
                if isinstance(home, griffe.Module) and name in home.members:
                    pkg.set_member(name, griffe.Alias(name, f"{home.path}.{name}", parent=pkg))

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one class, function or module."""
        if obj.docstring is not None:
            obj.docstring.value = plain(obj.docstring.value)
