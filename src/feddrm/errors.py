"""The exceptions a person is meant to read."""

INTERRUPTED = 130  # what shells say of a command that Ctrl-C ended


class FeddrmError(Exception):
    """Something the caller can put right.

    Its text is a single line that names the value at fault and the remedy; the command line
    prints it without a stack trace and exits with 1.
    """

    exit_code = 1


class SettingError(FeddrmError):
    """A name or value that could never work, known before anything is read (exit code 2)."""

    exit_code = 2


class InterruptedRunError(FeddrmError):
    """Ctrl-C during work that is kept."""

    exit_code = INTERRUPTED

    def __init__(self) -> None:
        super().__init__("interrupted: the same command goes on where it stopped")
