"""A site's own data, as ``site.yaml`` names them: a folder, a table, arrays, or a share of a known dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from feddrm.data import Client, Federation, load
from feddrm.data.sample_warnings import row_columns, sample_warnings
from feddrm.data.sources.array_files import read_arrays
from feddrm.data.sources.arrays import client_from_arrays
from feddrm.data.sources.csv_tables import AUTO, labels_as_integers
from feddrm.data.sources.image_folders import check_size, list_images, subjects_of
from feddrm.data.sources.images import read_images
from feddrm.data.sources.labelled_samples import Division, LabelledSamples, divide
from feddrm.data.sources.table_rows import RawTable, Roles, read_raw_table
from feddrm.deploy.rotating_log import log
from feddrm.deploy.site.site_status import CONFIG
from feddrm.errors import FeddrmError, SettingError, short_list
from feddrm.io.text import as_in_yaml
from feddrm.registry import nearest
from feddrm.tables.column_sums import ColumnSums, check_levels, merge_sums, schema_from_sums
from feddrm.tables.table_schema import TableSchema
from feddrm.tasks import require_classes
from feddrm.typed_settings import typed

KINDS = ("folder", "csv", "npz", "dataset")
BACK = "put them back, or start a new run"
FEW_CLASSES = 10  # so many classes may have fewer than two samples each
OPTIONS = {
    "folder": ("folder", "size", "grey", "subject", "test_fraction", "seed"),
    "csv": ("csv", "label", "drop", "schema", "categories", "subject", "test_fraction", "seed"),
    "npz": ("npz", "test_fraction", "seed"),
}
SETTINGS = frozenset(key for keys in OPTIONS.values() for key in keys) | {"client"}


class DataSettings(TypedDict):
    """The types of the settings in ``OPTIONS``, but for a size: one number or two."""

    folder: str
    csv: str
    npz: str
    grey: bool
    label: str
    drop: Sequence[str]
    schema: str
    categories: Sequence[str]
    subject: str
    test_fraction: float
    seed: int


@dataclass(frozen=True, eq=False)
class SiteDataset:
    """A site's samples. Labels stay text until the classes of all sites are known, except in a ``ready`` client.

    With ``schema: auto`` the rows stay a raw ``table``, and ``x`` is blank, until the schema of all sites is known;
    ``sums`` is what the site tells of its columns; only ``counted`` rows, those of training, enter means and squares.
    """

    name: str
    classes: tuple[str, ...]
    columns: tuple[str, ...] | None
    crop: bool
    ready: Client | None
    x: Any = None
    labels: Sequence[str] = ()
    test_fraction: float = 0.3
    seed: int = 2025
    schema: TableSchema | None = None
    table: RawTable | None = None
    sums: Mapping[str, ColumnSums] | None = None
    counted: Sequence[bool] = ()
    subjects: Sequence[str] | None = None

    def with_schema(self, schema: TableSchema) -> SiteDataset:
        """The rows of a raw table as the schema of all sites encodes them. No cell stands in an error that leaves."""
        if self.table is None or set(self.table.columns) != set(schema.names):
            raise FeddrmError(f"holds other columns than this run's schema has: {BACK}")
        try:
            x = self.table.samples(schema).x
        except FeddrmError as error:
            log.warning("the schema of the run does not fit: %s", error)
            raise FeddrmError(f"holds a row that this run's schema cannot encode (see its log): {BACK}") from None
        return replace(self, x=x, columns=schema.encoded, schema=schema, table=None, sums=None)

    def client(self, classes: Sequence[str]) -> Client:
        """The site as a client. Its labels become positions in ``classes``."""
        if self.ready is not None:
            if tuple(classes) != self.classes:
                raise FeddrmError(f"{self.name} has the classes of a known dataset, others have not: use one kind")
            return self.ready
        division = Division.checked(self.name, self.test_fraction, self.seed)
        arrays = (self.x, list(self.labels)) if self.subjects is None else (self.x, list(self.labels), self.subjects)
        return client_from_arrays(self.name, arrays, classes, division)

    def warnings(self) -> list[str]:
        """What one process would warn of, as far as this site alone can tell; settings as in its ``site.yaml``."""
        dataset = self
        if self.table is not None and self.sums is not None:
            with suppress(FeddrmError):  # a schema of all sites may be possible where one of this site is not
                schema = schema_from_sums(merge_sums(list(self.sums), {self.name: self.sums}))
                dataset = replace(self, x=self.table.samples(schema).x, columns=schema.encoded, schema=schema)
        client = dataset.client(self.classes)
        shape = client.train.x.shape[1:]
        columns = row_columns(dataset.schema, dataset.columns, *shape) if len(shape) == 1 else None
        warnings = sample_warnings(self.name, [client], self.classes, columns)
        return [as_in_yaml(warning.removeprefix(f"{self.name}: "), SETTINGS) for warning in warnings]

    def client_as_before(self, classes: Sequence[str], samples: int, shape: Sequence[int]) -> Client:
        """The client of a run that has begun; refused if classes, number or shape of samples have changed since."""
        if more := [label for label in self.classes if label not in classes]:
            raise FeddrmError(f"holds class '{more[0]}', which this run began without: take it out, or start a new run")
        own = self.client(classes)
        if len(own.train) != samples:
            raise FeddrmError(f"holds {len(own.train)} samples, this run began with {samples}: {BACK}")
        now = tuple(own.train.x.shape[1:])
        if now != tuple(shape):
            raise FeddrmError(f"holds samples of shape {now}, this run began with {tuple(shape)}: {BACK}")
        return own


def read_site_dataset(name: str, data: Mapping[str, Any], base: Path) -> SiteDataset:
    """Read the data that ``data`` of a ``site.yaml`` names; paths are relative to ``base``.

    ``folder``: images in class sub-folders; ``subject`` is a regular expression that finds in a file's name whom the
    image is of. ``csv``: a table with a header; ``label`` is the column to predict, ``subject`` one that says whom a
    row is of, ``schema`` a schema file that all sites share, or ``auto``: the server makes one from sums of all
    sites' columns. ``npz``: arrays ``x``, ``y`` and perhaps ``subject``. ``dataset``: a share of a dataset that feddrm
    knows, for trying out; ``client`` is the number of the share. An error names the file with these settings.
    """
    try:
        dataset = _read(name, data, base)
        _check_client(dataset, str(data.get("npz", "")))
    except FeddrmError as error:
        kind = SettingError if isinstance(error, SettingError) else FeddrmError
        text = as_in_yaml(str(error), {*SETTINGS, *map(str, data)})
        raise kind(f"{base / CONFIG}: data: {text}") from error
    return dataset


def _check_client(dataset: SiteDataset, arrays: str) -> None:
    """Divide the samples once: an error may show their values, and the next to make a client is the answer to a hello.

    Arrays are looked at only then, so an error of theirs gets the name of the file.
    """
    try:
        dataset.client(dataset.classes)
    except FeddrmError as error:
        raise type(error)(f"{arrays}: {error}" if arrays else str(error)) from error


def _read(name: str, data: Mapping[str, Any], base: Path) -> SiteDataset:
    kinds = [kind for kind in KINDS if kind in data]
    if len(kinds) != 1:
        raise SettingError(f"name exactly one of {', '.join(KINDS)}, not {', '.join(kinds) or 'none'}")
    kind = kinds[0]
    if kind == "dataset":
        return _share(name, data)
    for key in data:
        if key not in OPTIONS[kind]:
            raise SettingError(f"no setting '{key}' for {kind} data{nearest(str(key), OPTIONS[kind])}")
    # null is as if a setting were not given
    data = typed(DataSettings, {key: value for key, value in data.items() if value is not None or key == kind})
    division: dict[str, Any] = {key: data[key] for key in ("test_fraction", "seed") if key in data}
    path = base / data[kind]
    if kind == "csv":
        return _table(name, base, data, division)
    x, labels, subjects = _images(path, data) if kind == "folder" else _arrays(path)
    text = [str(label) for label in labels]
    classes = _classes(text, str(path), subjects)
    return SiteDataset(name, classes, None, False, None, x, text, subjects=subjects, **division)


def _table(name: str, base: Path, data: Mapping[str, Any], division: Mapping[str, Any]) -> SiteDataset:
    if not data.get("label"):
        raise SettingError("csv data need 'label', the column to predict")
    auto = data.get("schema") == AUTO
    if data.get("categories") and not auto:
        raise SettingError(f"categories need 'schema: {AUTO}': describe them in the schema file")
    schema = TableSchema.load(base / data["schema"]) if data.get("schema") and not auto else None
    roles = Roles(data["label"], None, data.get("drop", ()), subject=data.get("subject"))
    table = read_raw_table(base / data["csv"], name, roles, schema, auto)
    columns, rows = table.columns if schema is None else schema.encoded, table.rows
    x = np.zeros((len(rows.labels), len(columns)), np.float32) if auto else table.samples(schema).x
    samples, subjects = LabelledSamples(x, rows.labels, rows.places.__getitem__), rows.subjects or None
    text = [str(label) for label in labels_as_integers({name: samples}, None)[0][name].labels]
    classes = _classes(text, f"column '{data['label']}'", subjects)
    options = {"schema": schema, "subjects": subjects, **division}
    read = SiteDataset(name, classes, columns, False, None, x, text, **options)
    if not auto:
        return read
    divided = Division.checked(name, read.test_fraction, read.seed)
    train, _ = divide(name, {name: len(x)}, divided, {name: subjects})[name]
    counted = np.isin(np.arange(len(x)), train).tolist()
    sums = table.sums(counted, data.get("categories", ()))
    check_levels(sums, rows.cells, subjects)
    return replace(read, table=table, sums=sums, counted=counted)


def _classes(labels: Sequence[str], where: str, subjects: Sequence[str] | None) -> tuple[str, ...]:
    """The classes of a site's labels. Their names leave the site: labels that name samples or subjects are refused."""
    classes = sorted_classes(set(labels))
    count = len(set(zip(labels, subjects or range(len(labels)), strict=True)))
    what = "samples" if subjects is None else "samples, each subject's with one label counted once"
    if len(classes) > max(FEW_CLASSES, count // 2):
        raise FeddrmError(
            f"{where} has {len(classes)} different labels of {count} {what}: the names of classes leave this "
            "site, and these name single samples: choose what is to be predicted"
        )
    return classes


def sorted_classes(classes: set[str]) -> tuple[str, ...]:
    """Sorted as numbers if all are numbers, else as text."""
    numbers = all(c.lstrip("-").isdigit() for c in classes)
    return tuple(sorted(classes, key=int) if numbers else sorted(classes))


def load_shares(data: Mapping[str, Any]) -> Federation:
    """The known dataset of which every site gets a client as its share."""
    settings = {str(key): value for key, value in data.items() if key not in ("dataset", "client")}
    whole = load(str(data["dataset"]), **settings)
    what, remedy = f"a deployed federation of '{data['dataset']}'", "train these data in one process ('feddrm train')"
    require_classes(whole.task, what, remedy)
    return whole


def _share(name: str, data: Mapping[str, Any]) -> SiteDataset:
    whole, number = load_shares(data), data.get("client", 0)
    if not isinstance(number, int) or not 0 <= number < len(whole):
        raise SettingError(f"client={number!r}: '{data['dataset']}' has shares 0 to {len(whole) - 1}")
    own = replace(whole.clients[number], name=name)
    return SiteDataset(name, whole.classes, whole.columns, whole.crop is not None, own, schema=whole.schema)


def _arrays(path: Path) -> tuple[Any, list[Any], list[str] | None]:
    """Samples, labels and subjects of one site. A file of several clients would train here on all."""
    x, labels, clients, subjects = read_arrays(path)
    if len(names := sorted(set(clients or ()))) > 1:
        raise FeddrmError(f"{path} has rows of several clients ({short_list(names)}): give the rows of this site alone")
    return x, labels, subjects


def _images(path: Path, data: Mapping[str, Any]) -> tuple[Any, list[Any], list[str] | None]:
    images = list_images(path)
    if not images:
        raise FeddrmError(f"{path} has no images in class folders: put them there, one folder per class")
    size = check_size(str(path), data.get("size"))
    options = {"grey": data["grey"]} if "grey" in data else {}
    paths = [image.path for image in images]
    subjects = subjects_of(paths, data.get("subject") or None)
    return read_images(paths, size, **options), [image.label for image in images], subjects
