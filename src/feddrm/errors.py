"""Errors that a user can correct. The command line prints them without a stack trace."""

INTERRUPTED = 130  # the exit code by which shells report Ctrl-C


class FeddrmError(Exception):
    """An error that the user can correct (exit code 1).

    Its text is one line, which names the wrong value and the remedy.
    """

    exit_code = 1


class SettingError(FeddrmError):
    """An impossible name or value, found before any file is read (exit code 2)."""

    exit_code = 2


class InterruptedRunError(FeddrmError):
    """Ctrl-C during work whose progress is saved (exit code 130)."""

    exit_code = INTERRUPTED

    def __init__(self) -> None:
        super().__init__("interrupted: the same command goes on where it stopped")
