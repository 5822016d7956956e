"""The run spec that the server makes from the sites' hellos."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.deploy.server.negotiation import make_run_spec
from feddrm.deploy.wire.masks import MASK_PROTOCOL
from feddrm.deploy.wire.public_files import describe_run
from feddrm.deploy.wire.run_spec import FIT_PROTOCOL, RunSpec
from feddrm.engine.recipes import RECIPES, fill_in
from feddrm.io.text import read_yaml
from feddrm.tables.column_kinds import NumberColumn
from feddrm.tables.column_sums import ColumnSums, schema_from_sums
from feddrm.tables.table_schema import TableSchema
from plugin_files import forget, new_process, write_examples
from refusal import refused

SETTINGS = FederationSettings(("oslo", "lima", "kyiv"))
HELLO: dict[str, Any] = {
    "shape": [4],
    "dtype": "float32",
    "columns": ["a", "b", "c", "d"],
    "schema": None,
    "crop": False,
    "version": "1",
    "fit_protocol": FIT_PROTOCOL,
    "scale": [[0.0], [1.0]],
    "privacy": None,
    "samples": 30,
    "classes": ["healthy", "sick"],
}


def hellos(**lima: Any) -> dict[str, dict[str, Any]]:
    return {"oslo": HELLO, "lima": {**HELLO, **lima}, "kyiv": HELLO}


def test_the_classes_are_those_of_all_sites() -> None:
    spec = make_run_spec(SETTINGS, hellos(classes=["healthy", "recovered"], samples=20))
    assert (spec.classes, list(spec.sizes)) == (("healthy", "recovered", "sick"), [30, 20, 30])
    assert make_run_spec(SETTINGS, hellos(classes=["sick"])).classes == ("healthy", "sick")


@pytest.mark.parametrize("other", ["Sick", "sick ", " SICK"])
def test_one_class_in_two_spellings_is_refused(other: str) -> None:
    with refused(f"'{other}' at lima", "'sick' at oslo", "spell them alike"):
        make_run_spec(SETTINGS, hellos(classes=["healthy", other]))


def test_single_letters_may_differ_in_case_only() -> None:
    assert make_run_spec(SETTINGS, hellos(classes=["a", "A"])).classes == ("A", "a", "healthy", "sick")


@pytest.mark.parametrize(
    ("key", "value"),
    [("shape", [5]), ("dtype", "uint8"), ("columns", ["a", "b", "d", "c"]), ("crop", True), ("version", "2")],
)
def test_a_difference_is_refused_with_the_names_of_both_sites(key: str, value: Any) -> None:
    with refused(f"lima has {key} {value}, oslo {HELLO[key]}", "bring all sites to one form"):
        make_run_spec(SETTINGS, hellos(**{key: value}))


@pytest.mark.parametrize(("lima", "spoken"), [({"fit_protocol": None}, 1), ({"fit_protocol": 7}, 7)])
def test_a_site_that_fits_routers_by_another_protocol_is_named(lima: dict[str, Any], spoken: int) -> None:
    """Older sites state none. Without a router they take part."""
    with refused(f"lima (feddrm 1) fits the router by protocol {spoken}", f"this server by {FIT_PROTOCOL}", "the same"):
        make_run_spec(SETTINGS, hellos(**lima))
    assert make_run_spec(FederationSettings(SETTINGS.clients, router=False), hellos(**lima)).names == tuple(hellos())


@pytest.mark.parametrize("lima", [{}, {"share_features": None}, {"share_features": False}])
def test_competence_needs_the_consent_of_every_site(lima: dict[str, Any]) -> None:
    """An older site states none."""
    settings = replace(SETTINGS, routing={"competence": True, "heads": True, "features": "embedding"})
    agreed = {name: {**HELLO, "share_features": True} for name in SETTINGS.clients}
    assert make_run_spec(settings, agreed).names == SETTINGS.clients
    with refused("lima does not share features of held-out samples", "share: {features: true}", "leave competence out"):
        make_run_spec(settings, {**agreed, "lima": {**HELLO, **lima}})
    assert make_run_spec(SETTINGS, hellos(**lima)).names == SETTINGS.clients


@pytest.mark.parametrize("features", [None, "multiscale", "embedding+multiscale"])
def test_rows_of_tables_are_never_shared_for_competence(features: str | None) -> None:
    """Multiscale features of a table's row begin with the row."""
    routing = {"competence": True, "heads": True} | ({} if features is None else {"features": features})
    agreed = {name: {**HELLO, "share_features": True} for name in SETTINGS.clients}
    with refused("multiscale features of a table's rows contain the rows themselves", "features: embedding"):
        make_run_spec(replace(SETTINGS, routing=routing), agreed)
    assert make_run_spec(replace(SETTINGS, router=False, routing=routing), agreed).names == SETTINGS.clients


def test_sites_that_scale_differently_cannot_have_a_router() -> None:
    """A raw query cannot be scaled before it is routed."""
    own = hellos(scale=[[0.5, 0.4, 0.1], [0.1, 0.1, 0.1]])
    with refused("lima scales its pixels by [[0.5, 0.4, 0.1]", "oslo by [[0.0], [1.0]]", "normalise: common"):
        make_run_spec(SETTINGS, own)
    assert make_run_spec(FederationSettings(SETTINGS.clients, router=False), own).scale == ((0.0,), (1.0,))


def test_a_federation_with_one_class_is_refused() -> None:
    alone = {name: {**HELLO, "classes": ["sick"]} for name in hellos()}
    with refused("all sites together have one class (sick)"):
        make_run_spec(SETTINGS, alone)


def test_a_site_loads_no_code_that_the_server_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spec carries the name and the checksum of a plugin. Every administrator names the file."""
    median, _ = write_examples(tmp_path)
    with new_process(monkeypatch):
        monkeypatch.setenv("FEDDRM_PLUGINS", str(median))
        spec = make_run_spec(FederationSettings(SETTINGS.clients, training={"method": "fedmedian"}), hellos())
        assert [plugin["path"] for plugin in spec.plugins] == ["median.py"]
        assert str(tmp_path) not in str(spec.as_dict())
        describe_run(tmp_path, spec)
        assert read_yaml(tmp_path / "config.yaml", "")["plugins"] == list(spec.plugins)
        forget()
        monkeypatch.delenv("FEDDRM_PLUGINS")
        received = RunSpec.of(spec.as_dict())
        with refused("run 'first' needs the plugin median.py", spec.plugins[0]["sha256"], "FEDDRM_PLUGINS=median.py"):
            received.make_net()
        monkeypatch.setenv("FEDDRM_PLUGINS", str(median))
        forget()
        assert received.make_method().name == "fedmedian"
        median.write_text(median.read_text() + "# changed")
        forget()
        with refused("give the file as it was then"):
            received.make_method()


SCHEMA = TableSchema(tuple(NumberColumn(name, scale=10) for name in "abcd"))


def test_all_sites_must_encode_their_tables_by_one_schema() -> None:
    with refused(f"lima has schema {SCHEMA.digest}, oslo None: give all the same schema file"):
        make_run_spec(SETTINGS, hellos(schema=SCHEMA.as_dict()))
    same = {name: {**HELLO, "schema": SCHEMA.as_dict()} for name in SETTINGS.clients}
    spec = make_run_spec(SETTINGS, same)
    assert spec.schema == SCHEMA.as_dict()
    assert RunSpec.of(spec.as_dict()).facts.schema == SCHEMA
    other = TableSchema((*SCHEMA.columns[:3], NumberColumn("d", scale=20)))
    with refused(f"lima has schema {other.digest}, oslo {SCHEMA.digest}"):
        make_run_spec(SETTINGS, {**same, "lima": {**HELLO, "schema": other.as_dict()}})
    with refused("oslo has columns that are not those of its schema"):
        make_run_spec(SETTINGS, {name: {**hello, "columns": ["a", "b", "c", "x"]} for name, hello in same.items()})


def sums(**columns: list[str]) -> dict[str, Any]:
    return {name: ColumnSums.of(cells, [True] * len(cells), False).as_dict() for name, cells in columns.items()}


def test_the_schema_of_sites_that_send_sums_is_that_of_all_their_rows() -> None:
    ages = [["41", "52"], ["63", ""], ["70", "38.5"]]
    sexes = [["f", "f"], ["m", "f"], ["m", "x"]]
    told = [sums(age=age, sex=sex) for age, sex in zip(ages, sexes, strict=True)]
    told[1] = {name: told[1][name] for name in ("sex", "age")}  # a file may order its columns differently
    auto = {**HELLO, "shape": [2], "columns": ["age", "sex"]}
    spec = make_run_spec(
        SETTINGS, {name: {**auto, "column_sums": own} for name, own in zip(SETTINGS.clients, told, strict=True)}
    )
    whole = sums(age=[cell for part in ages for cell in part], sex=[cell for part in sexes for cell in part])
    expected = schema_from_sums({name: ColumnSums.load(column) for name, column in whole.items()})
    assert spec.schema == expected.as_dict()
    assert spec.columns == expected.encoded == ("age", "sex_f", "sex_m", "sex_x", "age_missing")
    assert spec.shape == (5,)


@pytest.mark.parametrize(
    ("lima", "complaint"),
    [
        (None, "oslo has 'schema: auto', lima has not: write it in every site.yaml, or in none"),
        (sums(a=["1"], b=["2"]), "lima has column 'b', oslo has not: bring all sites to one form"),
        (sums(a=["red"]), "column 'a' has numbers at oslo, kyiv and text such as 'red' at lima"),
    ],
)
def test_sites_whose_columns_have_no_common_schema_are_named(lima: Any, complaint: str) -> None:
    own = {name: {**HELLO, "column_sums": sums(a=["1", "2"])} for name in SETTINGS.clients}
    with refused(complaint):
        make_run_spec(SETTINGS, {**own, "lima": {**HELLO, "column_sums": lima}})


def test_a_run_spec_without_a_schema_is_an_older_one() -> None:
    values = make_run_spec(SETTINGS, hellos()).as_dict()
    del values["schema"]
    assert RunSpec.of(values).facts.schema is None


def test_training_may_name_a_recipe() -> None:
    images = {"shape": [3, 32, 32], "dtype": "uint8", "columns": None}
    sites = {name: {**HELLO, **images} for name in SETTINGS.clients}
    for recipe in RECIPES:
        settings = replace(SETTINGS, training={"recipe": recipe, "momentum": 0.5})
        settings.check()
        assert make_run_spec(settings, sites).make_plan() == fill_in({"momentum": 0.5}, small=False, recipe=recipe)
    with refused("unknown recipe 'papr'; did you mean 'paper'?"):
        replace(SETTINGS, training={"recipe": "papr"}).check()


MASKS = {"protocol": MASK_PROTOCOL, "required": False, "fewest": 3}
SECURE = replace(SETTINGS, secure_aggregation=True)


def masked_hellos(**lima: Any) -> dict[str, dict[str, Any]]:
    return {name: {**hello, "masks": hello.get("masks", MASKS)} for name, hello in hellos(**lima).items()}


def test_secure_aggregation_is_part_of_the_run_spec() -> None:
    spec = make_run_spec(SECURE, masked_hellos())
    assert spec.secure_aggregation
    assert RunSpec.of(spec.as_dict()) == spec
    old = {key: value for key, value in spec.as_dict().items() if key != "secure_aggregation"}
    assert not RunSpec.of(old).secure_aggregation, "of a server that has none"
    assert not make_run_spec(SETTINGS, hellos()).secure_aggregation


def test_a_site_that_requires_secure_aggregation_stops_a_run_without_it() -> None:
    with refused("lima requires secure aggregation", "'secure_aggregation: true' in federation.yaml"):
        make_run_spec(SETTINGS, hellos(masks={**MASKS, "required": True}))


@pytest.mark.parametrize(
    ("lima", "reason"),
    [
        ({"masks": None}, f"by protocol 0, this server by {MASK_PROTOCOL}: install the same feddrm"),
        ({"masks": {**MASKS, "fewest": 4}}, "sums of at least 4 sites (fewest_sites in its site.yaml), a round"),
    ],
)
def test_a_site_that_cannot_take_part_in_its_sums_stops_the_run(lima: dict[str, Any], reason: str) -> None:
    with refused("lima", reason):
        make_run_spec(SECURE, masked_hellos(**lima))


def test_sums_of_columns_are_no_masked_sums() -> None:
    own = sums(a=["1", "2", "3"])
    each = {name: {**hello, "column_sums": own} for name, hello in masked_hellos().items()}
    with refused("'schema: auto'", "without masks", "the same schema file"):
        make_run_spec(SECURE, each)
