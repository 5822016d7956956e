"""The command line: it parses, calls and prints. Exit codes: 0 done, 1 failed, 2 wrong call."""

from feddrm.cli.app import main

__all__ = ["main"]
