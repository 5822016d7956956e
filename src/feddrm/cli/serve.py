"""The commands ``feddrm serve``, ``serve-client``, ``serve-key`` and ``query``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddrm.checks import ports
from feddrm.cli.data_options import given_settings
from feddrm.cli.output import (
    Costs,
    Ignored,
    JsonFlag,
    LabelMiss,
    MaxAway,
    Over,
    Views,
    Why,
    Without,
    check_over,
    client_cells,
    print_json,
    print_reasons,
    print_table,
    read_costs,
    reason_text,
    set_text,
)
from feddrm.errors import FeddrmError, SettingError
from feddrm.rules import RULES_HELP

if TYPE_CHECKING:
    from feddrm.serve.gateway_client import GatewayClient

ROWS_PER_REQUEST = 256  # a gateway takes 1,024 samples at most, unless it is set otherwise

Host = Annotated[str | None, typer.Option(help="Address to listen on (default: this machine only).")]
Port = Annotated[int | None, typer.Option(help=f"Port to listen on; 0 takes a free one (default: {ports.GATEWAY}).")]
ClientPort = Annotated[
    int | None, typer.Option(help=f"Port to listen on; 0 takes a free one (default: {ports.PREDICTOR}).")
]
GrpcPort = Annotated[
    int | None, typer.Option(help="Also serve the Open Inference Protocol by gRPC on this port; 0 takes a free one.")
]
KeysFile = Annotated[Path | None, typer.Option(help="API keys, made by 'feddrm serve-key'.")]
OidcIssuer = Annotated[str | None, typer.Option(help="Accept bearer tokens of this OIDC issuer (its iss).")]
OidcAudience = Annotated[str | None, typer.Option(help="The audience (aud) that tokens must have.")]
OidcJwks = Annotated[
    str | None, typer.Option(help="Its public keys: an https:// URL or a file (default: it is asked).")
]
Open = Annotated[bool | None, typer.Option("--open", help="Serve other machines without keys.")]
TlsCert = Annotated[Path | None, typer.Option(help="Certificate (PEM).")]
TlsKey = Annotated[Path | None, typer.Option(help="Its private key (PEM).")]
Proxy = Annotated[str | None, typer.Option(help="Proxies whose X-Forwarded-* headers are trusted.")]
Rate = Annotated[float | None, typer.Option(help="Requests per second and address (default: no limit).")]
TraceEndpoint = Annotated[str | None, typer.Option(help="Send traces here by OTLP, such as http://127.0.0.1:4318.")]
TraceRate = Annotated[
    float | None, typer.Option(help="Requests per second to record at most; 0: no limit (default: 20).")
]
Url = Annotated[str, typer.Argument(help="The gateway, such as http://127.0.0.1:8080.")]
Ca = Annotated[Path | None, typer.Option(help="Certificate (PEM) of the authority of the gateway's.")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info (the default), warning or error.")]


def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run with a router ('feddrm fit-router').")],
    clients: Annotated[Path | None, typer.Option(help="clients.yaml: where the clients' predictors are.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Start all clients of the run on this machine.")] = False,
    host: Host = None,
    port: Port = None,
    grpc_port: GrpcPort = None,
    keys: KeysFile = None,
    oidc_issuer: OidcIssuer = None,
    oidc_audience: OidcAudience = None,
    oidc_jwks: OidcJwks = None,
    open_: Open = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    proxy: Proxy = None,
    audit: Annotated[str | None, typer.Option(help="SQLite file or postgresql:// URL (default: in RUN).")] = None,
    retention_days: Annotated[float | None, typer.Option(help="Days the audit log goes back (default: 30).")] = None,
    reload_seconds: Annotated[
        float | None, typer.Option(help="How often to look for a new router (default: never).")
    ] = None,
    rule: Annotated[str | None, typer.Option(help=f"{RULES_HELP} (default: density).")] = None,
    cost: Costs = None,
    coverage: Annotated[
        float | None, typer.Option(help="Fraction to answer; abstain from the least sure (default: 1).")
    ] = None,
    max_away: MaxAway = None,
    views: Views = None,
    rate: Rate = None,
    use_log: Annotated[
        Path | None, typer.Option(help="SQLite file of answers, for the outcomes that callers report.")
    ] = None,
    record_features: Annotated[
        int | None, typer.Option(help="Keep features of so many latest queries in the use log, for 'feddrm replay'.")
    ] = None,
    challenger: Annotated[
        Path | None, typer.Option(help="A run or router folder whose router decides beside this one (shadow).")
    ] = None,
    share: Annotated[
        float | None, typer.Option(help="Share of the requests that the challenger answers (default: 0).")
    ] = None,
    drift: Annotated[
        bool | None, typer.Option("--drift", help="Compare queries with the training data; alarm if they differ.")
    ] = None,
    trace_endpoint: TraceEndpoint = None,
    trace_rate: TraceRate = None,
    samples: Annotated[bool, typer.Option(help="Show the run's sample pictures in the console.")] = True,
    log_level: LogLevel = None,
) -> None:
    """Serve a run's router: route queries and ask the clients. A console shows both.

    Example: feddrm serve runs/first --demo
    """
    with packages():
        from feddrm.serve.app import build_gateway
        from feddrm.serve.server import address, bind, bind_grpc, demo_clients, run_app
        from feddrm.serve.settings import GatewaySettings, make_settings
        from feddrm.serve.telemetry.logs import json_logging
    from feddrm.io.run_files import RunFiles
    from feddrm.io.run_reader import refuse_folder_of_runs
    from feddrm.router import load_router
    from feddrm.threads import intra_op_threads

    if demo and clients is not None:
        raise SettingError("--demo starts its own clients: leave out --clients")
    given: dict[str, Any] = {
        "host": host, "port": port, "grpc_port": grpc_port, "keys": keys, "open": open_, "tls_cert": tls_cert,
        "tls_key": tls_key, "proxy": proxy, "audit": audit, "retention_days": retention_days,
        "reload_seconds": reload_seconds,
        "rule": rule, "costs": read_costs(cost), "coverage": coverage, "max_away": max_away, "views": views,
        "rate": rate, "log_level": log_level, "use_log": use_log, "record_features": record_features,
        "challenger": challenger, "challenger_share": share, "drift": drift,
        "oidc_issuer": oidc_issuer, "oidc_audience": oidc_audience, "oidc_jwks": oidc_jwks,
        "trace_endpoint": trace_endpoint, "trace_rate": trace_rate,
    }  # fmt: skip
    settings = make_settings(GatewaySettings, clients=clients, **given)
    refuse_folder_of_runs(run)
    # One thread from the start: a demo's clients are forked, and those of a process whose torch had more would hang.
    with contextlib.ExitStack() as stack, intra_op_threads(1):
        load_router(RunFiles(run).router).views(settings.views)  # early, before anything is started
        summary = _dataset_summary(run)
        if demo:  # before anything else starts threads
            names = ("views", "trace_endpoint", "trace_rate")
            shared = {name: getattr(settings, name) for name in names}
            started = stack.enter_context(demo_clients(run, **shared))
            settings = settings.model_copy(update={"clients": started})
        sockets = stack.enter_context(bind(settings)), bind_grpc(settings)
        stack.enter_context(json_logging(settings.log_level))
        app = build_gateway(run, settings, summary, samples)
        print(f"feddrm gateway at {address(settings, *sockets)}", flush=True)
        run_app(app, settings, *sockets)


def serve_client(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A client's folder, RUN/clients/NAME.")],
    run: Annotated[Path | None, typer.Option(help="Folder of config.yaml and router/ (default: above DIR).")] = None,
    answer: Annotated[
        str | None, typer.Option(help="trained (the method's model; the default) or refit (fit-router's).")
    ] = None,
    views: Views = None,
    host: Host = None,
    port: ClientPort = None,
    grpc_port: GrpcPort = None,
    keys: KeysFile = None,
    oidc_issuer: OidcIssuer = None,
    oidc_audience: OidcAudience = None,
    oidc_jwks: OidcJwks = None,
    open_: Open = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    rate: Rate = None,
    trace_endpoint: TraceEndpoint = None,
    trace_rate: TraceRate = None,
    log_level: LogLevel = None,
) -> None:
    """Answer queries with one client's model. It speaks the Open Inference Protocol v2; private leaves stay here.

    Example: feddrm serve-client runs/first/clients/fax --port 9001
    """
    with packages():
        from feddrm.predictor.predictor import Predictor
        from feddrm.serve.predictor.predictor_app import build_predictor
        from feddrm.serve.server import address, bind, bind_grpc, run_app
        from feddrm.serve.settings import PredictorSettings, make_settings
        from feddrm.serve.telemetry.logs import json_logging

    given: dict[str, Any] = {
        "host": host, "port": port, "grpc_port": grpc_port, "keys": keys, "open": open_, "tls_cert": tls_cert,
        "tls_key": tls_key, "rate": rate, "log_level": log_level, "answer": answer, "views": views,
        "oidc_issuer": oidc_issuer, "oidc_audience": oidc_audience, "oidc_jwks": oidc_jwks,
        "trace_endpoint": trace_endpoint, "trace_rate": trace_rate,
    }  # fmt: skip
    settings = make_settings(PredictorSettings, **given)
    predictor = Predictor.load(folder, run, settings.answer, settings.views)
    sockets = bind(settings), bind_grpc(settings)
    with json_logging(settings.log_level):
        app = build_predictor(predictor, settings)
        print(f"feddrm client {predictor.name} at {address(settings, *sockets)}", flush=True)
        run_app(app, settings, *sockets)


def serve_key(
    name: Annotated[str, typer.Argument(help="Name of the key's owner.")],
    scopes: Annotated[
        str, typer.Option(help="Some of route, predict, outcomes, metrics, admin, separated by commas.")
    ] = "route,predict",
    keys: Annotated[Path, typer.Option(help="File to add the key to.")] = Path("keys.yaml"),
    json: JsonFlag = False,
) -> None:
    """Make an API key: print it once, store only its hash.

    Example: feddrm serve-key lab --scopes route,predict
    """
    with packages():
        from feddrm.serve.auth import add_key

    key = add_key(keys, name, [scope.strip() for scope in scopes.split(",") if scope.strip()])
    if json:
        print_json({"name": name, "key": key})
    else:
        typer.echo(key)


def query(
    url: Url,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Picture files, or tables (.csv).")],
    predict: Annotated[bool, typer.Option("--predict", help="Also ask the client for a prediction.")] = False,
    consult: Annotated[int, typer.Option(help="With --predict: ask this many clients and mix their answers.")] = 1,
    abstain: Annotated[
        str, typer.Option(help="With --predict: mark (no label where the router abstains) or answer (a label anyway).")
    ] = "mark",
    rule: Annotated[str | None, typer.Option(help=f"{RULES_HELP} (default: the gateway's).")] = None,
    coverage: Annotated[
        float | None, typer.Option(help="Fraction to answer; abstain from the least sure (default: the gateway's).")
    ] = None,
    without: Without = None,
    max_away: Annotated[
        float | None,
        typer.Option(
            help="Abstain where clients that are away hold more of the probability (default: the gateway's). "
            "With 1, fall back."
        ),
    ] = None,
    label_miss: LabelMiss = None,
    top: Annotated[
        int | None, typer.Option(help="Clients of a ranking in --json (default: all of up to 30, 10 of more).")
    ] = None,
    why: Why = False,
    over: Over = None,
    ignore: Ignored = None,
    key: Annotated[str | None, typer.Option(envvar="FEDDRM_KEY", help="API key.")] = None,
    ca: Ca = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print the answers as csv.")] = False,
    json: JsonFlag = False,
) -> None:
    """Ask a gateway about a picture or a table's row. The gateway says which client it belongs to, or answers it.

    Example: feddrm query http://127.0.0.1:8080 patients.csv --predict --ignore id
    """
    from feddrm.serve.gateway_client import GatewayClient

    if csv and json:
        raise SettingError("--csv and --json print the same answers: give one of them")
    if label_miss is not None and not predict:
        raise SettingError("--label-miss names labels, which clients are asked for: give --predict, too")
    if csv and why:
        raise SettingError("--why prints sentences, which are no csv: give --json, or leave out --csv")
    check_over(why, over)
    options = given_settings(
        rule=rule, coverage=coverage, without=without or None, max_away=max_away, label_miss=label_miss, top=top,
        why=why or None, over=over,
    )  # fmt: skip
    options |= {"consult": consult, "abstain": abstain} if predict else {}
    answers: list[dict[str, Any]] = []
    with GatewayClient(url, key, ca=ca) as gateway:
        ask = gateway.predict if predict else gateway.route
        for path in files:
            for samples, names in _query_parts(gateway, path, ignore or ()):
                answers += _with_names(url, names, ask(samples, **options))
    if json:
        print_json(answers)
        return
    header, rows = _query_table(answers, predict, label_miss)
    if csv:
        from feddrm.report.tables import to_csv

        typer.echo(to_csv(header, rows), nl=False)
        return
    print_table(header, rows)
    if why:
        print_reasons((answer["query"], answer.get("route", answer)["why"]) for answer in answers)


def _query_table(
    answers: Sequence[dict[str, Any]], predict: bool, label_miss: float | None
) -> tuple[list[str], list[list[str]]]:
    rows = []
    for answer in answers:
        route, label = answer.get("route", answer), []
        if predict:
            label = ["-", "-"] if answer["label"] is None else [answer["label"], f"{answer['label_probability']:.3f}"]
        if label_miss is not None:
            label.append(set_text(answer["label_set"]))
        shown = answer if answer["client"] else route  # without an answer, the client that the router named
        away = ", ".join(f"{entry['client']} ({entry['reason']})" for entry in route["away"] + answer.get("failed", []))
        rows.append([answer["query"], *label, *client_cells(shown), reason_text(route), away])
    labels = ["label", "label probability"] if predict else []
    labels += [] if label_miss is None else [f"label set (miss {label_miss:g})"]
    return ["query", *labels, "client", "client probability", "abstains because", "away"], rows


def _with_names(url: str, names: Sequence[str], answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(answers) != len(names):
        raise FeddrmError(f"{url} gave {len(answers)} answers to {len(names)} samples: check the address")
    return [{"query": name, **answer} for name, answer in zip(names, answers, strict=True)]


def _query_parts(gateway: GatewayClient, path: Path, ignore: Sequence[str]) -> Iterator[tuple[Any, list[str]]]:
    """The samples of a file in parts of one request each, with their names: a picture, or rows of a table.

    Header and cells of a table are checked by the gateway's schema before anything is sent.
    """
    if path.suffix.lower() != ".csv":
        yield path, [str(path)]
        return
    from feddrm.tables.query_rows import read_raw_rows, read_rows
    from feddrm.tables.table_schema import TableSchema

    about = gateway.schema()
    if about["inputs"] is None:
        raise FeddrmError(
            f"{path} is a table, but {gateway.url} knows no columns: give picture files, or send rows from Python"
        )
    columns = tuple(about["inputs"])
    schema = None if about["schema"] is None else TableSchema.of(about["schema"])
    samples: Any
    if schema is not None and (raw := read_raw_rows(path, schema, ignore)) is not None:
        rows, places = raw
        schema.read(rows, places.__getitem__)
        samples = [dict(zip(schema.names, row, strict=True)) for row in rows]
    else:
        samples, places = read_rows(path, columns, len(columns), None, ignore)
    for start in range(0, len(samples), ROWS_PER_REQUEST):
        part = slice(start, start + ROWS_PER_REQUEST)
        yield samples[part], places[part]


@contextlib.contextmanager
def packages() -> Iterator[None]:
    """Turn a missing package into an error with its remedy: serving is an optional extra."""
    try:
        yield
    except ImportError as error:
        raise FeddrmError(f"serving needs more packages ({error}): pip install 'feddrm[serve]'") from error


def _dataset_summary(run: Path) -> Any:
    """The run's dataset summary; None without one, which the gateway does not need."""
    from feddrm.io.dataset_summary import DatasetSummary

    try:
        return DatasetSummary.read(run)
    except FeddrmError:
        return None
