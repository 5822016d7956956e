"""Negotiation: make one run spec from the server's settings and what every site says about its data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feddrm.data import DEPLOYED, Federation
from feddrm.data.sources.csv_tables import AUTO
from feddrm.data.sources.labelled_samples import SPELLING_REMEDY, spelling_variants
from feddrm.deploy.privacy import Privacy, PrivacyDemand
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.deploy.site.site_dataset import sorted_classes
from feddrm.deploy.wire.masks import FEWEST_SITES, MASK_PROTOCOL, required_masks
from feddrm.deploy.wire.public_files import SOURCE
from feddrm.deploy.wire.run_spec import FIT_PROTOCOL, RunSpec, blank_client
from feddrm.engine import Plan
from feddrm.errors import FeddrmError
from feddrm.plugins import without_folders
from feddrm.router import Recipe
from feddrm.router.settings import RouterSettings
from feddrm.runs.config import resolve
from feddrm.tables.column_sums import ColumnSums, merge_sums, schema_from_sums
from feddrm.tables.table_schema import TableSchema

Hellos = Mapping[str, Mapping[str, Any]]  # the checked header of every site's hello, in the order of the clients


def make_run_spec(settings: FederationSettings, hellos: Hellos) -> RunSpec:
    """The run spec, if the sites' data fit together and the settings suit all of them."""
    hellos = _with_common_schema(hellos)
    _check_alike(settings, hellos)
    classes = _common_classes(hellos)
    first = next(iter(hellos.values()))
    for name, hello in hellos.items():
        _check_masks(settings, name, hello)
    training = {**settings.training, "method": settings.method, "device": "cpu", "data": {}}
    clients = tuple(blank_client(name, first["shape"], first["dtype"]) for name in hellos)
    config = resolve(Federation(DEPLOYED, clients, classes, SOURCE), **training)
    if settings.privacy is not None:
        Privacy(**settings.privacy).check(config.method)
    values = config.as_dict()
    spec = RunSpec.of(
        {
            "run": settings.run,
            "names": tuple(hellos),
            "sizes": [hello["samples"] for hello in hellos.values()],
            "classes": classes,
            **{key: first[key] for key in ("shape", "dtype", "columns", "schema", "crop", "scale")},
            "method": values["method"],
            "model": values["model"],
            "plan": {key: values[key] for key in Plan.__dataclass_fields__ if key in values},
            "privacy": None if settings.privacy is None else dict(settings.privacy),
            "secure_aggregation": settings.secure_aggregation,
            "plugins": without_folders(values.get("plugins", ())),
        }
    )
    if settings.router and settings.privacy is None:
        _check_shared_rows(settings.router_settings, spec.shape)
    if settings.comparison is not None:
        from feddrm.comparison.federated_fit import basis_feature

        basis_feature(spec.facts, **settings.comparison)
    return spec


def _with_common_schema(hellos: Hellos) -> Hellos:
    """The hellos of sites with ``schema: auto`` with the schema that follows from all sites' sums of columns."""
    sums = {name: hello["column_sums"] for name, hello in hellos.items() if hello.get("column_sums")}
    if not sums:
        return hellos
    first, columns = next(iter(sums.items()))
    for name in hellos:
        if name not in sums:
            raise FeddrmError(f"{first} has 'schema: {AUTO}', {name} has not: write it in every site.yaml, or in none")
        if difference := sorted(set(sums[name]) ^ set(columns)):
            column = difference[0]
            having, lacking = (name, first) if column in sums[name] else (first, name)
            raise FeddrmError(f"{having} has column '{column}', {lacking} has not: bring all sites to one form")
    told = {name: {c: ColumnSums.load(values) for c, values in own.items()} for name, own in sums.items()}
    schema = schema_from_sums(merge_sums(list(columns), told))
    common = {"schema": schema.as_dict(), "columns": list(schema.encoded), "shape": [len(schema.encoded)]}
    return {name: {**hello, **common} for name, hello in hellos.items()}


def _check_alike(settings: FederationSettings, hellos: Hellos) -> None:
    first_name, first = next(iter(hellos.items()))
    for name, hello in hellos.items():
        for key in ("version", "schema", "shape", "dtype", "columns", "crop"):
            if hello[key] != first[key]:
                remedy = "give all the same schema file" if key == "schema" else "bring all sites to one form"
                raise FeddrmError(f"{name} has {key} {_shown(hello, key)}, {first_name} {_shown(first, key)}: {remedy}")
        if hello["schema"] is not None and tuple(hello["columns"] or ()) != TableSchema.of(hello["schema"]).encoded:
            raise FeddrmError(f"{name} has columns that are not those of its schema: both ends need the same feddrm")
        routed = settings.router and settings.privacy is None
        if (routed or settings.comparison) and (protocol := hello.get("fit_protocol") or 1) != FIT_PROTOCOL:
            raise FeddrmError(
                f"{name} (feddrm {hello['version']}) fits the router by protocol {protocol}, this server by "
                f"{FIT_PROTOCOL}: install the same feddrm at both, or set 'router: false' in federation.yaml"
            )
        if routed and settings.router_settings.competence and not hello.get("share_features"):
            raise FeddrmError(
                f"{name} does not share features of held-out samples, which 'competence' needs of every site: its "
                "administrator may write 'share: {features: true}' in site.yaml, or leave competence out of 'routing'"
            )
        if hello["scale"] != first["scale"] and routed:
            raise FeddrmError(
                f"{name} scales its pixels by {hello['scale']}, {first_name} by {first['scale']}: a raw query cannot "
                "be scaled before it is routed: scale all alike (dataset retina: 'normalise: common' in every "
                "site.yaml), or fit no router ('router: false' in federation.yaml)"
            )
        if hello["privacy"] is not None:  # the site would refuse every message of such a run
            PrivacyDemand(**hello["privacy"]).check_offer(settings.privacy, name)


def _check_shared_rows(routing: RouterSettings, shape: tuple[int, ...]) -> None:
    """Refuse a fit of competence whose sites would send the samples themselves."""
    if not routing.competence or routing.features is None:
        return
    if own := Recipe.parse(routing.features).holding_samples(shape):
        raise FeddrmError(
            f"competence=true with features={routing.features}: {own[0]} features of a table's rows contain the rows "
            "themselves, and those stay at their sites: write 'features: embedding' in 'routing'"
        )


def _check_masks(settings: FederationSettings, name: str, hello: Mapping[str, Any]) -> None:
    """Refuse a run whose secure aggregation does not suit a site, or is of another protocol."""
    masks = hello.get("masks") or {"protocol": 0, "required": False, "fewest": FEWEST_SITES}
    if not settings.secure_aggregation:
        if masks["required"]:
            raise FeddrmError(required_masks(name))
        return
    if masks["protocol"] != MASK_PROTOCOL:
        raise FeddrmError(
            f"{name} (feddrm {hello['version']}) has secure aggregation by protocol {masks['protocol']}, this "
            f"server by {MASK_PROTOCOL}: install the same feddrm at both"
        )
    asked = Plan(**{k: v for k, v in settings.training.items() if k == "participation"}).asked(len(settings.clients))
    if masks["fewest"] > asked:
        raise FeddrmError(
            f"{name} takes part in sums of at least {masks['fewest']} sites (fewest_sites in its site.yaml), a "
            f"round of this run asks {asked}: add sites, or agree on a smaller number"
        )
    if hello.get("column_sums"):
        raise FeddrmError(
            f"{name} has 'schema: {AUTO}', whose sums of columns are sent site by site, without masks: give every site "
            "the same schema file, or leave secure_aggregation out"
        )


def _shown(hello: Mapping[str, Any], key: str) -> str:
    """A field as a message shows it: of a schema its checksum."""
    value = hello[key]
    return TableSchema.of(value).digest if key == "schema" and value is not None else str(value)


def _common_classes(hellos: Hellos) -> tuple[str, ...]:
    """The classes of all sites: in the sites' own order if all sites have the same, else sorted."""
    lists = [hello["classes"] for hello in hellos.values()]
    same = all(classes == lists[0] for classes in lists)
    classes = tuple(lists[0]) if same else sorted_classes({label for labels in lists for label in labels})
    if not same and (pair := spelling_variants(classes)) is not None:
        here, there = (next(name for name, hello in hellos.items() if label in hello["classes"]) for label in pair)
        raise FeddrmError(f"the classes '{pair[0]}' at {here} and '{pair[1]}' at {there} {SPELLING_REMEDY}")
    if len(classes) < 2:
        raise FeddrmError(f"all sites together have one class ({', '.join(classes)}): there is nothing to tell apart")
    return classes
