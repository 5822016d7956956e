"""Which datasets are found on this machine, and whether their files are the official ones."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from feddrm.checks.findings import NOTE, OK, PROBLEM, Finding
from feddrm.io.data_files import file_md5, find, search_folders
from feddrm.io.official_files import CIFAR, HEART, Origin, alternatives

GET = {"tcga_brca": "put the files of FLamby's fed_tcga_brca there, if you need it"}
AGAIN = "remove it and fetch it again"


def check_data(data_dir: Path | None) -> Iterator[Finding]:
    """The folder of data, and one finding for every dataset in files."""
    given = os.environ.get("FEDDRM_DATA")
    if data_dir is None and given and not Path(given).is_dir():
        yield Finding("data", PROBLEM, f"FEDDRM_DATA is {given}, which is no folder: correct it, or unset it")
    folders = ", ".join(map(str, search_folders(data_dir)))
    for dataset in ("cifar10", "cifar100", "heart", "tcga_brca"):
        paths = find(alternatives(dataset), data_dir)
        what = f"data {dataset}"
        if paths is None:
            remedy = GET.get(dataset, "give --download to the command that needs it")
            yield Finding(what, NOTE, f"not in {folders}: {remedy}")
        elif (fault := _fault(dataset, paths)) is not None:
            yield Finding(what, PROBLEM, fault)
        else:
            yield Finding(what, OK, f"{paths[0].parent}: {_compared(dataset, paths)}")


def _fault(dataset: str, paths: Sequence[Path]) -> str | None:
    """What is wrong with the files that were found; None if nothing is."""
    try:
        if dataset in CIFAR:
            return _cifar_fault(CIFAR[dataset], paths)
        if dataset == "heart":
            wrong = [(p, r) for p, r in zip(paths, HEART, strict=True) if file_md5(p) != r.md5]
            return f"{wrong[0][0]} is not the official file: replace it by {wrong[0][1].url}" if wrong else None
        empty = [path for path in paths if path.stat().st_size == 0]
        return f"{empty[0]} is empty: get it again" if empty else None
    except (OSError, zipfile.BadZipFile) as error:
        return f"cannot read {paths[0].parent} ({error}): {AGAIN}"


def _cifar_fault(origin: Origin, paths: Sequence[Path]) -> str | None:
    for path in paths:
        if path.is_dir():
            missing = [name for name in origin.parts if not (path / name).is_file()]
            return f"{path} has no {missing[0]}: {AGAIN}" if missing else None
        if path.suffix == ".npz":
            try:
                with zipfile.ZipFile(path) as archive:
                    damaged = archive.testzip()
            except zipfile.BadZipFile:
                damaged = "whole file"
            if damaged is not None:
                return f"{path} is damaged ({damaged}): {AGAIN}"
        elif file_md5(path) != origin.archive.md5:
            return f"{path} is not the official file: {AGAIN} from {origin.archive.url}"
    return None


def _compared(dataset: str, paths: Sequence[Path]) -> str:
    """What the files were compared with."""
    if dataset == "tcga_brca":
        return "found; there is no official checksum"
    if paths[0].is_dir():
        return "all parts are there; their content is compared when they are loaded"
    if paths[0].suffix == ".npz":
        return "whole by the files' own checksums; the images are compared when they are loaded"
    return "the official checksums"
