"""``feddrm train``, ``feddrm evaluate`` and ``feddrm demo``: training and its results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddrm.cli.data_options import (
    Alpha,
    Clients,
    DataDir,
    Download,
    Partition,
    Recipe,
    Shards,
    Shift,
    check_partition,
    given_settings,
    sectioned_settings,
)
from feddrm.cli.output import JsonFlag, print_json, print_table, resumable
from feddrm.cli.report import AllFlag, print_report
from feddrm.errors import SettingError
from feddrm.plugins import require_plugins
from feddrm.registry import name_and_settings

if TYPE_CHECKING:
    from feddrm.runs import Run

DEMO_METHODS = ("feddrm", "fedavg", "fedavgft", "local")


def train(
    out: Annotated[Path | None, typer.Option(help="Run folder; an interrupted run in it is resumed.")] = None,
    data: Annotated[str | None, typer.Option(help="A name from 'feddrm datasets'.")] = None,
    method: Annotated[str | None, typer.Option(help="A name from 'feddrm methods' (default: feddrm).")] = None,
    model: Annotated[
        str | None, typer.Option(help="A name from 'feddrm models' (default: by the samples' size).")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of the form of a run's config.yaml.")] = None,
    recipe: Recipe = None,
    clients: Clients = None,
    partition: Partition = None,
    alpha: Alpha = None,
    shards: Shards = None,
    shift: Shift = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds (default: 40; photographs: 800).")] = None,
    local_steps: Annotated[int | None, typer.Option(help="SGD steps per client and round (default: 10).")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per step (default: 32; photographs: 128).")] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate at the start of the cosine schedule (default: 0.05; photographs: 0.3)."),
    ] = None,
    clip: Annotated[
        float | None, typer.Option(help="Largest norm of a gradient; 0: any (default: 0; photographs: 1).")
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(help="First rounds in which the learning rate rises (default: 0).")
    ] = None,
    participation: Annotated[
        float | None, typer.Option(help="Fraction of clients that take part in a round (default: 1).")
    ] = None,
    dropout: Annotated[float | None, typer.Option(help="Chance that a client does not answer (default: 0).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of data and training (default: 2025, the paper's).")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Several seeds, as in 0,1,2 or 0-4: one run each, in OUT/seed-0, OUT/seed-1, ...")
    ] = None,
    lam: Annotated[
        float | None, typer.Option("--lambda", help="FedDRM's weight of the class loss (default: 0.9).")
    ] = None,
    variant: Annotated[str | None, typer.Option(help="'paper' or 'original', for methods that have both.")] = None,
    window: Annotated[
        int | None,
        typer.Option(help="Number of last rounds that the summary averages (default: 5 to 50, a sixteenth of all)."),
    ] = None,
    test_crop: Annotated[
        bool | None, typer.Option(help="Crop test images at random, as the paper does (default: crop).")
    ] = None,
    views: Annotated[
        int | None, typer.Option(help="Test with the mean over this many crops and mirror images (default: 1).")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu (the default) or cuda.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="auto (the default), sequential, or graph (all clients at once, on a GPU).")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="On a GPU: auto (the default), bf16, tf32 or fp32.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Clients that train side by side on CPU (default: as suits the data).")
    ] = None,
    track: Annotated[bool, typer.Option("--track", help="Write TensorBoard scalars.")] = False,
    data_dir: DataDir = None,
    download: Download = False,
    extra: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="data.KEY=VALUE",
            help="Any other setting: data.KEY, method.KEY, model.KEY, evaluation.KEY, training.KEY.",
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Train a federation and evaluate it. An interrupted run goes on where it stopped.

    What is not given comes from the dataset and the recipe; the run's config.yaml has it all.

    Example: feddrm train --data digits --method feddrm --rounds 40 --out runs/first
    """
    from feddrm.runs import read_config

    settings = read_config(config) if config is not None else {}
    require_plugins(settings.pop("plugins", None), str(config))
    parts: dict[str, dict[str, Any]] = {}
    for part in ("data", "method", "model", "evaluation"):
        parts[part] = name_and_settings(part, settings.pop(part, None) or {})
    for part, name in (("data", data), ("method", method), ("model", model)):
        if name is not None and name != parts[part].get("name"):
            parts[part] = {"name": name}
    parts["data"] |= given_settings(
        clients=clients,
        partition=partition,
        alpha=alpha,
        shards=shards,
        shift=shift,
        data_dir=data_dir,
        download=download,
    )
    parts["method"] |= given_settings(lam=lam, variant=variant)
    parts["evaluation"] |= given_settings(window=window, views=views)
    if test_crop is not None:
        parts["evaluation"]["test_crop"] = test_crop
    if seed is not None:  # also if the configuration has another seed for the data
        parts["data"]["seed"] = seed
    if seeds is not None:
        if seed is not None:
            raise SettingError(f"--seed {seed} and --seeds {seeds}: give one of them")
        parts["data"].pop("seed", None)
        settings.pop("seed", None)
    settings |= given_settings(
        recipe=recipe,
        rounds=rounds,
        local_steps=local_steps,
        batch_size=batch_size,
        lr=lr,
        clip=clip,
        warmup=warmup,
        participation=participation,
        dropout=dropout,
        seed=seed,
        device=device,
        engine=engine,
        precision=precision,
        threads=threads,
    )
    for part, values in sectioned_settings(extra, setting_names(parts) if extra else {}).items():
        (settings if part == "training" else parts[part]).update(values)
    check_partition(parts["data"].get("partition"), alpha, shards)
    runs = _train(parts, settings, out, track=track, seeds=None if seeds is None else parse_seeds(seeds))
    if not json:
        print_runs([run.path for run in runs])
        return
    summaries = [{"path": str(run.path), **(run.summary or {})} for run in runs]
    print_json(summaries[0] if seeds is None else summaries)


def parse_seeds(text: str) -> list[int]:
    """The seeds of ``0,1,2`` or ``0-4``."""
    seeds: list[int] = []
    for item in text.split(","):
        first, dash, last = (word.strip() for word in item.partition("-"))
        if not all(word.isdecimal() for word in (first, last or first)) or (dash and not int(first) <= int(last or -1)):
            raise SettingError(f"--seeds {text!r}: give whole numbers, as in 0,1,2 or 0-4")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    views: Annotated[
        int | None,
        typer.Option(help="Measure the run again: answers averaged over this many crops and mirror images."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="With --views: cpu or cuda (default: the run's).")] = None,
    data_dir: DataDir = None,
    json: JsonFlag = False,
) -> None:
    """Print the accuracies of a run. If it is not finished, they are those of its last evaluated round.

    With --views, as in 'feddrm evaluate RUN --views 8', the run is measured again on its test samples, after its last
    round, with one view and with eight. Nothing is trained or written.

    Example: feddrm evaluate runs/first
    """
    if views is not None:
        from feddrm.runs import Run

        _print_views(Run.open(run), views, device, data_dir, json)
        return
    from feddrm.io.run_reader import RunReader

    opened = RunReader(run)
    opened.config()  # refuses what is no run
    if device is not None or data_dir is not None:
        raise SettingError("--device and --data-dir are for measuring again: give --views, too")
    if json:
        lines = opened.metrics()
        print_json(opened.summary() or {"finished": False, "last": lines[-1] if lines else None})
    else:
        print_runs([run])


def _print_views(run: Run, views: int, device: str | None, data_dir: str | None, json: bool) -> None:
    """Measure a run with one view and with several, and print both."""
    from feddrm.report.accuracy_measures import read_scores
    from feddrm.runs.run_router import load_run_federation

    federation = load_run_federation(run.folder, run.config, data_dir)
    federation.query_views.take(views)
    measured = {count: run.evaluate(federation, views=count, device=device) for count in sorted({1, views})}
    if json:
        print_json({"path": str(run.path), "views": {str(count): figures for count, figures in measured.items()}})
        return
    scores = {count: read_scores(figures, run.path) for count, figures in measured.items()}
    rows = []
    for measure in sorted(scores[1], key=lambda m: m.order):
        gain = scores[views][measure].mean - scores[1][measure].mean
        rows.append([measure.title, *(of[measure].percent for of in scores.values()), f"{100 * gain:+.2f}"])
    noun = "C-index" if "average_c_index" in measured[1] else "accuracy"
    header = [noun, *("1 view" if count == 1 else f"{count} views" for count in scores), "difference"]
    print_table(header, rows, title=f"{noun} in percent after round {measured[1]['round']}")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    rounds: Annotated[int, typer.Option(help="Communication rounds.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of data and training.")] = 0,
    everything: AllFlag = False,
    json: JsonFlag = False,
) -> None:
    """Compare FedDRM with other methods on the digits. They are FedAvg, FedAvg with fine-tuning and local models.

    Example: feddrm demo --out runs/demo
    """
    from feddrm.report.report_page import write_report
    from feddrm.report.run_table import report_table

    folders = []
    for method in DEMO_METHODS:
        parts: dict[str, dict[str, Any]] = {"data": {"name": "digits"}, "method": {"name": method}}
        parts |= {"model": {}, "evaluation": {}}
        folders.append(out / method)
        (run,) = _train(parts, {"rounds": rounds, "seed": seed}, folders[-1])
        if method == "feddrm" and not run.folder.has_router:
            with resumable():
                run.fit_router(progress=True)
    table = report_table(folders)
    page = write_report(table, out)
    if json:
        print_json(table.values())
        return
    print_report(table, everything)
    typer.echo(f"wrote {page}")


def setting_names(parts: dict[str, dict[str, Any]]) -> dict[str, set[str]]:
    """The names of all settings by part; without a model's name those of every model, as the data decide on one."""
    from dataclasses import fields

    from feddrm.data import Dataset
    from feddrm.engine import Plan
    from feddrm.methods import Method
    from feddrm.models import Model
    from feddrm.runs.config import Evaluation, Machine

    name = {part: parts[part].get("name") for part in parts}
    kinds: dict[str, list[Any]] = {
        "data": [Dataset.find(name["data"])] if name["data"] else [],
        "method": [Method.find(name["method"] or "feddrm")],
        "model": [Model.find(name["model"])] if name["model"] else list(Model.family.values()),
        "evaluation": [Evaluation],
        "training": [Plan, Machine],
    }
    return {part: {f.name for kind in members for f in fields(kind)} for part, members in kinds.items()}


def _train(
    parts: dict[str, dict[str, Any]],
    settings: dict[str, Any],
    out: Path | None,
    track: bool = False,
    seeds: list[int] | None = None,
) -> list[Run]:
    """Train one run, or one per seed."""
    from feddrm.methods import Method
    from feddrm.models import Model
    from feddrm.runs import train as train_run
    from feddrm.runs import train_seeds
    from feddrm.runs.config import training_settings

    names = {part: parts[part].pop("name", None) for part in ("data", "method", "model")}
    if out is None:
        raise SettingError("where should the run go? give --out FOLDER")
    if names["data"] is None:
        raise SettingError("what should it train on? give --data NAME (see: feddrm datasets)")
    recipe = settings.pop("recipe", None)
    plan, machine = training_settings(settings)
    if "seed" in plan:
        parts["data"].setdefault("seed", plan["seed"])
    method = Method.make(names["method"] or "feddrm", **parts["method"])
    model = Model.make(names["model"], **parts["model"]) if names["model"] else parts["model"]
    given: dict[str, Any] = {
        "model": model,
        "data_settings": parts["data"],
        "evaluation": parts["evaluation"],
        "progress": True,
        "track": track,
        "recipe": recipe,
        **plan,
        **machine,
    }
    with resumable():
        if seeds is not None:
            return train_seeds(names["data"], method, seeds=seeds, out=out, **given)
        return [train_run(names["data"], method, out=out, **given)]


def print_runs(folders: list[Path]) -> None:
    """Print the accuracies of runs as a table, and a line for every training that collapsed."""
    from feddrm.io.run_reader import RunReader
    from feddrm.report.page_parts.conclusion import one_class_note
    from feddrm.report.run_table import report_table

    table = report_table(folders)
    print_table(table.header(), table.text_rows(), title=table.title)
    if (note := one_class_note(table)) is not None:
        typer.echo(note)
    for folder in folders:
        summary = RunReader(folder).summary() or {}
        if (collapsed := summary.get("collapsed")) is None:
            continue
        text = "one answer to all queries: its features do not tell the classes apart: give others (data, or --model)"
        if summary.get("rounds") != 0:  # frozen features have no rounds and no learning rate
            ending = ", to the end" if collapsed["at_end"] else ""
            text = (
                f"training collapsed in {collapsed['rounds']} of {collapsed['of']} evaluated rounds{ending} "
                "(one answer to all queries): lower --lr, or try --clip 1 or --warmup"
            )
        typer.echo(f"{folder}: {text}", err=True)
