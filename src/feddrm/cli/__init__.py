"""The command line: parse, call, print. Exit code 0 done, 1 failed, 2 wrong call."""

from feddrm.cli.app import main

__all__ = ["main"]
