"""Text files: readers and writers of YAML, JSON, JSON lines and CSV.

Every reader takes a ``remedy``, the end of its error messages, because only the caller knows what a
user can do.
"""

from __future__ import annotations

import ast
import csv
import itertools
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from feddrm.errors import FeddrmError

SEPARATORS = (",", ";", "\t", "|")
SEPARATOR_LINE = re.compile(r"sep=(.)\s*", re.IGNORECASE)  # a first line by which Excel knows the separator
QUOTED = re.compile(r'"[^"]*("|$)')
WHOLE_NUMBER = re.compile(r"([+-]?\d{1,300})(\.0*)?")  # int refuses thousands of digits
# A setting as errors show it: its name, then the value as Python writes it. A word without quotes is text.
SETTING = re.compile(r"(?<![\w.])(\w+)=(\[(?:[^][]|\[[^]]*\])*\]|\([^)]*\)|\{[^}]*\}|'[^']*'|\"[^\"]*\"|[^\s,:;)]+)")
LINE_LENGTH = 400  # characters of a text from elsewhere
WORD, CONSTANTS = re.compile(r"[^\W\d]\w*"), ("True", "False", "None")


def broken(path: Path, why: str, remedy: str) -> FeddrmError:
    """The error for a file that exists but cannot be used."""
    return FeddrmError(f"{path} is broken ({why}): {remedy}")


def read_text(path: Path, remedy: str) -> str:
    """The whole file, as UTF-8."""
    try:
        return read_bytes(path, remedy).decode()
    except UnicodeDecodeError as error:
        raise broken(path, "not UTF-8 text", remedy) from error


def read_bytes(path: Path, remedy: str) -> bytes:
    """The whole file, as bytes."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise FeddrmError(f"cannot read {path} ({error.strerror}): {remedy}") from error


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """A JSON object."""
    return _mapping(path, remedy, "JSON", json.loads)


def read_yaml(path: Path, remedy: str) -> dict[str, Any]:
    """A YAML mapping."""
    return _mapping(path, remedy, "YAML", _parse_yaml)


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a YAML file of the form of ``config.yaml``."""
    return read_yaml(path, "give an existing YAML file of 'key: value' lines")


def read_yaml_text(path: Path, remedy: str) -> dict[str, Any]:
    """A YAML mapping in which every value stays text: a label may be 'no', which YAML reads as false."""
    return _mapping(path, remedy, "YAML", lambda text: _parse_yaml(text, "BaseLoader"))


class _YamlError(ValueError):
    """Text that is not YAML; ``lineno`` as in the errors of JSON."""

    lineno: int | None = None


def _parse_yaml(text: str, loader: str = "SafeLoader") -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, loader))
    except yaml.YAMLError as error:
        problem, mark = _YamlError(), getattr(error, "problem_mark", None)
        problem.lineno = None if mark is None else mark.line + 1
        raise problem from error


def _mapping(path: Path, remedy: str, kind: str, parse: Callable[[str], Any]) -> dict[str, Any]:
    text = read_text(path, remedy)
    try:
        value = parse(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise broken(path, f"{'' if line is None else f'line {line} is '}not {kind}", remedy) from error
    if not isinstance(value, dict):
        noun = {"JSON": "an object", "YAML": "a mapping"}[kind]
        raise broken(path, f"expected {noun}, found {type(value).__name__}", remedy)
    return value


def read_json_lines(path: Path, remedy: str) -> list[dict[str, Any]]:
    """One object per line. The last line is left out if it is not JSON: a crash may have cut it off."""
    # Each line is decoded by itself: a crash may cut a character in two.
    lines = [(i, line) for i, line in enumerate(read_bytes(path, remedy).split(b"\n"), start=1) if line.strip()]
    entries = []
    for number, line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == lines[-1][0]:
                break
            raise broken(path, f"line {number} is not JSON", remedy) from error
        if not isinstance(entry, dict):
            raise broken(path, f"line {number} is no object", remedy)
        entries.append(entry)
    return entries


def read_csv(path: Path, remedy: str) -> list[tuple[int, list[str]]]:
    """The rows of a UTF-8 file (with or without a byte order mark), each with the number of its first line.

    Cells are separated by that comma, semicolon, tab or bar which the first line has most often. A line ``sep=;``
    before it is no row. Spaces around cells are removed, and rows without any text are left out.
    """
    rows: list[tuple[int, list[str]]] = []
    line = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            start = [next(file, "")]
            while start[-1] and not start[-1].strip():
                start.append(next(file, ""))
            if told := SEPARATOR_LINE.fullmatch(start[-1].strip("\r\n")):
                start[-1:] = ["\n", next(file, "")]
            header = QUOTED.sub("", start[-1])
            separator = told[1] if told else max(SEPARATORS, key=header.count)
            reader = csv.reader(itertools.chain(start, file), delimiter=separator, strict=True)
            for row in reader:
                cells = [cell.strip() for cell in row]
                if any(cells):
                    rows.append((line, cells))
                line = reader.line_num + 1  # a quoted cell may span several lines
    except UnicodeDecodeError as error:
        raise _not_utf8(path) from error
    except csv.Error as error:
        raise FeddrmError(f"{path}, line {line}: not valid CSV ({error}): correct it there") from error
    except FileNotFoundError as error:
        raise FeddrmError(f"{path} does not exist: {remedy}") from error
    except OSError as error:
        raise FeddrmError(f"{path} cannot be read ({error.strerror}): {remedy}") from error
    return rows


def _not_utf8(path: Path) -> FeddrmError:
    """The error for a table that cannot be decoded. A reader of parts knows the place in its part only."""
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        return FeddrmError(f"{path} is compressed: unpack it (gunzip), and give the .csv file")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return FeddrmError(f"{path} is not UTF-8 text (line {line}): save it as CSV in UTF-8")
    return FeddrmError(f"{path} was changed while it was read: try again")


def nfc(text: str) -> str:
    """The text in Unicode's composed form: some systems write 'ü' as one character, others as two."""
    return unicodedata.normalize("NFC", text)


def parse_float(text: str) -> float | None:
    """The number that a cell holds, or None. ``1_000`` is no number: only Python reads it as one."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def parse_whole(text: str) -> int | None:
    """The whole number that a cell holds, or None; 1, 01 and 1.0 are one.

    It does not go through floats, which cannot tell codes of more than 15 digits (SNOMED CT) apart. A text with an
    exponent is a name: 1E50 is a disease in ICD-11.
    """
    match = WHOLE_NUMBER.fullmatch(text)
    return int(match[1]) if match else None


def json_bytes(value: Any) -> bytes:
    """The bytes of an indented JSON file. Bytes of a path that are no UTF-8 become escapes, as JSON has them."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def json_line(value: Any) -> bytes:
    """The bytes of one line of a JSON-lines file."""
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


def yaml_bytes(value: Mapping[str, Any]) -> bytes:
    """The bytes of a YAML file with the keys in the given order."""
    import yaml

    return yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True).encode()


def as_in_yaml(text: str, settings: Collection[str]) -> str:
    """The text with these settings as a YAML file has them: 'drop: [id]' for ``drop=['id']``."""

    import yaml

    def written(setting: re.Match[str]) -> str:
        name, value = setting[1], setting[2]
        if name not in settings:
            return setting[0]
        try:
            plain = value if WORD.fullmatch(value) and value not in CONSTANTS else ast.literal_eval(value)
        except (ValueError, SyntaxError):
            return setting[0]
        plain = list(plain) if isinstance(plain, tuple) else plain
        line = yaml.safe_dump(plain, default_flow_style=True, width=sys.maxsize, allow_unicode=True)
        line = line.removesuffix("\n").removesuffix("\n...")
        quote = "" if "'" in line or text[: setting.start()].endswith("(") else "'"
        return f"{quote}{name}: {line}{quote}"

    return SETTING.sub(written, text)


def printable_line(text: str) -> str:
    """A text from elsewhere as one short line. Control characters are escaped: they could control a terminal."""
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split()))
    return "".join(escaped)[:LINE_LENGTH]
