"""The JSON bodies of the gateway's own paths, as pydantic models: they check requests and document answers.

Class names and field descriptions appear in the OpenAPI document.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from feddrm.rules import RULES_HELP, RuleName

FORMATS = ("png", "jpeg", "bmp", "webp", "gif", "tiff", "x-portable-anymap")
PICTURE_TYPES = tuple(f"image/{name}" for name in FORMATS)  # content types of the picture files that are read
Kind = Literal["inputs", "features"]
Cell = bool | float | str | None  # of a table's row


class Options(BaseModel):
    """How to decide; in the body of a JSON request, in the query string of any other."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    rule: RuleName | None = Field(default=None, description=RULES_HELP)
    coverage: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="fraction to answer; the router abstains from the least sure rest"
    )
    without: tuple[str, ...] = Field(default=(), max_length=1024, description="clients that must not be asked")
    max_away: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="abstain where clients that are away hold more of the probability; 1: fall back to the next client",
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
    """What a predictor answers besides probabilities; other parameters of the protocol are not its concern."""

    model_config = ConfigDict(allow_inf_nan=False)

    label_miss: Annotated[float, Field(gt=0, lt=1)] | None = None


class RawOptions(BaseModel):
    """What the bytes of an application/octet-stream body are."""

    kind: Kind = "features"
    datatype: Literal["uint8", "float32"] = "float32"


class SampleFields(BaseModel):
    """The four ways to give samples in JSON; a request uses exactly one."""

    image: str | None = Field(default=None, description="one picture file, as base64")
    inputs: list[Any] | None = Field(default=None, description="nested numbers [n, channels, height, width]")
    datatype: Literal["uint8", "float32"] | None = Field(
        default=None, description="of inputs: uint8 for raw pixels, float32 for network inputs (and for tables)"
    )
    rows: list[dict[str, Cell]] | None = Field(
        default=None,
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

    client: str
    probability: float
    log_density_ratio: float
    available: bool


class Flag(BaseModel):
    """A value of a row that cannot be."""

    column: str
    value: Cell
    problem: str


class Away(BaseModel):
    """A client that could not be asked, why, and its probability."""

    client: str
    reason: str
    probability: float


class Routed(BaseModel):
    """The decision about one sample; ``client`` is null if no client is available.

    ``client_probability`` is how sure the router is that the sample belongs to ``client``. ``fallback`` says that
    ``client`` stands in for a likelier one that is away. By the competence rule, ``right_probability`` is how probable
    it is that the client's answer is right, and probabilities are shares of odds. ``ranked`` has the likeliest
    clients, ``away`` the likeliest of those that are away: as many as ``top`` says.
    """

    client: str | None
    client_probability: float
    margin: float
    abstain: bool
    reason: str
    flags: list[Flag]
    fallback: bool
    away: list[Away]
    ranked: list[Ranked]
    right_probability: float | None


class RouteAnswer(BaseModel):
    """One decision per sample, in their order."""

    request_id: str
    artifact: str
    decisions: list[Routed]


class Answered(BaseModel):
    """A client that answered, and the weight of its answer."""

    client: str
    weight: float
    milliseconds: float


class Failed(BaseModel):
    """A client that did not answer, and why."""

    client: str
    reason: str


class Predicted(BaseModel):
    """The answer for one sample; its first six fields are null where the router abstains.

    ``label_probability`` is how sure the clients are of the label, ``client_probability`` how sure the router is of the
    client. ``fallback`` says that ``client`` stands in for a likelier one that is away or failed. ``label_set`` has the
    labels that the sample may have. It is null where none was requested, where the router abstains, and where the
    clients that answered hold less than 95 % of its probability.
    """

    label: str | None
    label_probability: float | None
    label_set: list[str] | None
    client: str | None
    client_probability: float | None
    probabilities: dict[str, float] | None
    fallback: bool
    answered: list[Answered]
    failed: list[Failed]
    route: Routed


class PredictAnswer(BaseModel):
    """One answer per sample, in their order."""

    request_id: str
    artifact: str
    answers: list[Predicted]


class FieldError(Flag):
    """A cell that cannot be read. Rows are counted from 0."""

    row: int


class ErrorAnswer(BaseModel):
    """What was wrong, and what to do. ``fields`` has the cells of rows that cannot be read."""

    error: str
    request_id: str
    fields: list[FieldError] = []


class SchemaAnswer(BaseModel):
    """The table schema of the router; null for images, and for tables without one.

    ``inputs`` are the names of the network's inputs. ``examples`` are rows made up from the schema.
    """

    artifact: str
    table_schema: dict[str, Any] | None = Field(alias="schema")
    inputs: list[str] | None
    examples: list[dict[str, Cell]]


class OutcomeReport(BaseModel):
    """The true label of an answer."""

    model_config = ConfigDict(extra="forbid")

    request_id: str = Field(min_length=1, max_length=64, description="of the answer, as /v1/predict gave it")
    label: str | int = Field(description="the name of a class, or its number where classes have no names")
    place: int | None = Field(
        default=None, ge=0, le=2**31, description="of the sample in its request, from 0; needed if it had several"
    )


class OutcomeBatch(BaseModel):
    """The true labels of several answers."""

    model_config = ConfigDict(extra="forbid")

    outcomes: list[OutcomeReport] = Field(min_length=1, max_length=1024)


class OutcomeRequest(RootModel[OutcomeReport | OutcomeBatch]):
    """One outcome, or a batch of them."""


class OutcomeAnswer(BaseModel):
    """How many outcomes were stored, and how many were known already."""

    stored: int
    known: int


class UseFigures(BaseModel):
    """Counts of predictions. Accuracy and calibration error are of those with a label and an outcome."""

    predictions: int
    abstained: int
    outcomes: int
    right: int
    accuracy: float | None
    calibration_error: float | None
    abstention: float


class PeriodFigures(UseFigures):
    """The figures of one period, which begins ``from`` (seconds since 1970)."""

    begin: int = Field(alias="from")


class ArtifactFigures(UseFigures):
    """The figures of the answers of one artifact."""

    artifact: str


class OutcomeTable(BaseModel):
    """Figures of periods of so many ``seconds``, the oldest first, and of artifacts."""

    seconds: int
    periods: list[PeriodFigures]
    artifacts: list[ArtifactFigures]
