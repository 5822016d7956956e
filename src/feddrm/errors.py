"""The exceptions a person is meant to read."""


class FeddrmError(Exception):
    """Something the caller can put right.

    Its text is a single line that names the value at fault and the remedy; the command line
    prints it without a stack trace and exits with 1.
    """

    exit_code = 1


class SettingError(FeddrmError):
    """A name or value that could never work, known before anything is read (exit code 2)."""

    exit_code = 2
