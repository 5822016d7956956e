"""The JSON bodies of the gateway's own paths, as pydantic models: they check requests and document answers.

Lists fail at their first bad entry: an error for each of millions would take gigabytes and hold up all other requests.
Class names and field descriptions appear in the OpenAPI document.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, RootModel, SkipValidation, WithJsonSchema

from feddrm.rules import RULES, RULES_HELP, RuleName

FORMATS = ("png", "jpeg", "bmp", "webp", "gif", "tiff", "x-portable-anymap")
PICTURE_TYPES = tuple(f"image/{name}" for name in FORMATS)  # content types of the picture files that are read
MAX_OUTCOMES = 1024  # of one request
Kind = Literal["inputs", "features"]
Cell = bool | float | str | None  # of a table's row
Label = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
]


class Options(BaseModel):
    """How to decide; in the body of a JSON request, in the query string of any other."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    rule: RuleName | None = Field(default=None, description=RULES_HELP)
    coverage: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="fraction to answer; the router abstains from the least sure rest"
    )
    without: tuple[str, ...] = Field(
        default=(), max_length=1024, fail_fast=True, description="clients that must not be asked"
    )
    max_away: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="abstain where clients that are away hold more of the probability; 1: fall back to the next client",
    )
    why: bool = Field(
        default=False,
        description="also say what made client likelier than the runner-up, in terms that add up; "
        f"by rule {' or '.join(RULES)}",
    )
    over: str | None = Field(
        default=None, description="with why: the client to compare with; by default, and if it is chosen, the runner-up"
    )
    top: int | None = Field(
        default=None, ge=1, description="clients in ranked and in away: the likeliest; by default all of 30, 10 of more"
    )


class PredictOptions(Options):
    """How to decide and whom to ask."""

    consult: int = Field(default=1, ge=1, le=1024, description="ask this many clients and mix their answers")
    abstain: Literal["mark", "answer"] = Field(
        default="mark",
        description="mark: no label where the router abstains; answer: give it all the same",
    )
    label_miss: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description="also give the set of labels that misses the right one with this probability; it asks the clients "
        "that hold 95 % of the router's probability",
    )


class PredictorOptions(BaseModel):
    """What a predictor answers besides probabilities."""

    model_config = ConfigDict(allow_inf_nan=False)

    label_miss: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None, description="also give the set of labels that misses the right one with this probability"
    )


class RawOptions(BaseModel):
    """What the bytes of an application/octet-stream body are."""

    kind: Kind = Field(default="features", description="what the bytes are: samples, or the result of Router.features")
    datatype: Literal["uint8", "float32"] = Field(default="float32", description="the type of the numbers")


class SampleFields(BaseModel):
    """The four ways to give samples in JSON; a request uses exactly one."""

    image: str | None = Field(default=None, description="one picture file, as base64")
    inputs: list[Any] | None = Field(default=None, description="nested numbers [n, channels, height, width]")
    datatype: Literal["uint8", "float32"] | None = Field(
        default=None, description="of inputs: uint8 for raw pixels, float32 for network inputs (and for tables)"
    )
    rows: list[dict[str, SkipValidation[Cell]]] | None = Field(  # decode.py checks the cells
        default=None,
        fail_fast=True,
        description="table rows by column name: raw columns if GET /v1/schema has a schema (null or 'unknown' where a "
        "value is missing), otherwise numbers",
    )
    features: list[list[float]] | None = Field(
        default=None,
        description="the result of Router.features: computed where the sample is, so the sample stays there",
    )


class RouteRequest(Options, SampleFields):
    """Samples and how to decide."""


class PredictRequest(PredictOptions, SampleFields):
    """Samples, how to decide and whom to ask."""


class Ranked(BaseModel):
    """One client in the ranking of a sample."""

    client: str = Field(description="its name")
    probability: float = Field(
        description="that the sample belongs to it; by the competence rule, its share of the odds"
    )
    log_density_ratio: float = Field(
        description="how much likelier the sample is at this client than in all data, as a logarithm"
    )
    available: bool = Field(description="whether it can be asked now")


class Flag(BaseModel):
    """A value of a row that cannot be."""

    column: str = Field(description="the name of the column")
    value: Cell = Field(description="as it was sent")
    problem: str = Field(description="what is wrong with it, and what to give")


class Away(BaseModel):
    """A client that could not be asked."""

    client: str = Field(description="its name")
    reason: str = Field(description="why it could not be asked")
    probability: float = Field(description="that the sample belongs to it")


class TermOf(BaseModel):
    """What a term of an explanation is of."""

    name: str = Field(description="the column of a table, the feature, or the feature and its stage")
    value: Cell = Field(default=None, description="the column's raw value, null if missing; only of columns of samples")


class WhyTerm(TermOf):
    """A term of an explanation."""

    log_odds: float = Field(description="what it adds to the log-odds of client over the other")


class UnlikeTerm(TermOf):
    """What makes a sample unlike the training data."""

    share: float = Field(description="of the strangeness; 1 where the roughness of a picture is the reason")


class Why(BaseModel):
    """Why client was chosen over another: terms that add up to the difference of their log-odds."""

    client: str = Field(description="the client that should answer")
    over: str = Field(description="the named client, or the best of the others that are available")
    log_odds: float = Field(description="the sum of terms, rest, baseline and sizes")
    terms: list[WhyTerm] = Field(description="the ten largest")
    rest: float = Field(description="the sum of all further terms")
    baseline: float = Field(description="the log-odds of an average query, the clients being equally likely beforehand")
    sizes: float = Field(description="by rule posterior, what the clients' numbers of samples add")
    unlike: list[UnlikeTerm] = Field(description="of a sample that is unlike the training data, the ten largest shares")


class Routed(BaseModel):
    """The decision about one sample."""

    client: str | None = Field(description="the client that should answer; null if none is available")
    client_probability: float = Field(description="how sure the router is that the sample belongs to client")
    margin: float = Field(description="the probability of the likeliest client less that of the next")
    abstain: bool = Field(description="whether nobody should answer")
    reason: str = Field(description="why the router abstains; empty if it does not")
    flags: list[Flag] = Field(description="the values of a row that cannot be")
    fallback: bool = Field(description="whether client stands in for a likelier one that is away")
    away: list[Away] = Field(description="the likeliest clients that are away, as many as top says")
    ranked: list[Ranked] = Field(description="the likeliest clients, as many as top says")
    right_probability: float | None = Field(
        description="by the competence rule: how probable it is that the answer of client is right"
    )
    why: Why | None = Field(description="where the request asks for it; null also where there is no client")


class RouteAnswer(BaseModel):
    """One decision per sample."""

    request_id: str = Field(description="the name of this request in the logs")
    artifact: str = Field(description="the version of the router that decided")
    decisions: list[Routed] = Field(description="in the order of the samples")


class Answered(BaseModel):
    """A client that answered."""

    client: str = Field(description="its name")
    weight: float = Field(description="of its answer in the mixture")
    milliseconds: float = Field(description="until its answer was there")


class Failed(BaseModel):
    """A client that did not answer."""

    client: str = Field(description="its name")
    reason: str = Field(description="why there is no answer")


class Predicted(BaseModel):
    """The answer for one sample; its first six fields are null where the router abstains."""

    label: str | None = Field(description="the likeliest class")
    label_probability: float | None = Field(description="how sure the clients that answered are of the label")
    label_set: list[str] | None = Field(
        description="the labels that the sample may have; null where none was requested, where the router abstains, "
        "and where the clients that answered hold less than 95 % of its probability"
    )
    client: str | None = Field(description="the client that answered; with consult, the likeliest of them")
    client_probability: float | None = Field(description="how sure the router is of the client")
    probabilities: dict[str, float] | None = Field(description="of all classes")
    fallback: bool = Field(description="whether client stands in for a likelier one that is away or failed")
    answered: list[Answered] = Field(description="the clients that answered, the likeliest first")
    failed: list[Failed] = Field(description="the clients that were asked and did not answer")
    route: Routed = Field(description="the decision about the sample")


class PredictAnswer(BaseModel):
    """One answer per sample."""

    request_id: str = Field(description="the name of this request, by which outcomes are reported")
    artifact: str = Field(description="the version of the router that decided")
    answers: list[Predicted] = Field(description="in the order of the samples")


class FieldError(Flag):
    """A cell that cannot be read."""

    row: int = Field(description="its row, counted from 0")


class ErrorAnswer(BaseModel):
    """What was wrong, and what to do."""

    error: str = Field(description="both, on one line")
    request_id: str = Field(description="the name of this request in the logs")
    fields: list[FieldError] = Field(default=[], description="the cells of rows that cannot be read, at most 20")


class SchemaAnswer(BaseModel):
    """The table schema of the router."""

    artifact: str = Field(description="the version of the router")
    table_schema: dict[str, Any] | None = Field(
        alias="schema", description="the columns; null for images, and for tables without a schema"
    )
    inputs: list[str] | None = Field(description="the names of the network's inputs; null for images")
    examples: list[dict[str, Cell]] = Field(description="rows made up from the schema")


class OutcomeReport(BaseModel):
    """The true label of an answer."""

    model_config = ConfigDict(extra="forbid")

    request_id: str = Field(min_length=1, max_length=64, description="of the answer, as /v1/predict gave it")
    label: Label = Field(description="the name of a class, or its number where classes have no names")
    place: int | None = Field(
        default=None, ge=0, le=2**31, description="of the sample in its request, from 0; needed if it had several"
    )


class OutcomeBatch(BaseModel):
    """The true labels of several answers."""

    model_config = ConfigDict(extra="forbid")

    outcomes: list[OutcomeReport] = Field(
        min_length=1, max_length=MAX_OUTCOMES, fail_fast=True, description="one per answer"
    )


class OutcomeOptions(BaseModel):
    """Whose answers the outcomes are of."""

    caller: str | None = Field(default=None, description="who got the answers, if not you; it needs the scope outcomes")


class OutcomeRequest(RootModel[OutcomeReport | OutcomeBatch]):
    """One outcome, or a batch of them."""


class OutcomeAnswer(BaseModel):
    """What became of the outcomes."""

    stored: int = Field(description="how many were new")
    known: int = Field(description="how many were known already")


class UseFigures(BaseModel):
    """Figures of predictions."""

    predictions: int = Field(description="samples that were predicted")
    abstained: int = Field(description="from how many of them the router abstained")
    outcomes: int = Field(description="how many have a label and an outcome")
    right: int = Field(description="how many of those are right")
    accuracy: float | None = Field(description="right ones among those with an outcome; null without any")
    calibration_error: float | None = Field(
        description="how far label_probability is from the accuracy, over bins of it"
    )
    abstention: float = Field(description="the abstained share of all predictions")


class PeriodFigures(UseFigures):
    """The figures of one period."""

    begin: int = Field(alias="from", description="when it begins, in seconds since 1970")


class ArtifactFigures(UseFigures):
    """The figures of the answers of one artifact."""

    artifact: str = Field(description="the version of the router")


class OutcomeTable(BaseModel):
    """Figures of a gateway's answers over time and by artifact."""

    seconds: int = Field(description="the length of a period")
    periods: list[PeriodFigures] = Field(description="the oldest first")
    artifacts: list[ArtifactFigures] = Field(description="of all periods together")
