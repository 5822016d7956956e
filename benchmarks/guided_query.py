"""Draws one query being guided, as an animated picture: docs/guided.svg.

python -m benchmarks.guided_query --out docs/guided.svg

Everything in it is computed: the federation of ``feddrm demo``, its exact router, the answer of the client that the
router chooses, and that of one global model. The query is a test sample that the first answers rightly and the second
does not, so it shows how guiding works and not how often it helps.
"""

from __future__ import annotations

import argparse
import base64
import io
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from jinja2 import Environment, StrictUndefined
from PIL import Image
from torch import Tensor

import feddrm
from feddrm.io.atomic import write_atomically

CLEAR = 0.98  # probability of the client up to which the picture shows other clients' bars, too
TOP, STEP, BAR = 66, 38, 175  # pixels: the first client, from one to the next, a probability of one


@dataclass(frozen=True)
class Guided:
    """One query and what became of it. ``asked`` is the client that the router chose, rightly."""

    picture: Tensor
    label: str
    names: tuple[str, ...]
    looks: Tensor  # one sample as each client sees it
    probabilities: tuple[float, ...]
    asked: int
    sure: float
    global_answer: str
    global_sure: float


def find_query(folder: Path, rounds: int) -> Guided:
    """Train as the demo does. Of the queries that only the chosen client answers rightly, take the surest answer."""
    federation = feddrm.load("digits", seed=0)
    guided = feddrm.train(federation, "feddrm", rounds=rounds, seed=0, out=folder / "feddrm")
    router = guided.fit_router(heads=False)
    single = feddrm.train(federation, "fedavg", rounds=rounds, seed=0, out=folder / "fedavg")
    single.fit_router(features="raw", heads=False)  # only because a run answers with one
    found = []
    for number, client in enumerate(federation.clients):
        x = client.test.x
        decision = router.route(x)
        by_client, by_all = guided.predict(x, abstain="answer"), single.predict(x, client=client.name)
        for row, y in enumerate(client.test.y):
            label, shares = federation.classes[int(y)], tuple(decision.probabilities[row].tolist())
            right = by_client.labels[row] == label != by_all.labels[row] and decision.client[row] == number
            if right and shares[number] < CLEAR:
                sure, others = (float(answers.probabilities[row].max()) for answers in (by_client, by_all))
                looks = torch.stack([view[1] for view in federation.gallery])  # type: ignore[union-attr]
                answer = str(by_all.labels[row])
                found.append(Guided(x[row], label, federation.names, looks, shares, number, sure, answer, others))
    if not found:
        raise SystemExit("no query that only the chosen client answers rightly: give more --rounds")
    return max(found, key=lambda query: query.sure)


def draw(query: Guided) -> str:
    """The picture. Without animation, as in print, it shows the end."""
    pairs = zip(query.names, query.looks, query.probabilities, strict=True)
    clients = [
        {"name": name, "look": _png(look), "y": TOP + STEP * row, "bar": max(1.5, BAR * share), "share": share}
        for row, (name, look, share) in enumerate(pairs)
    ]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string(Path(__file__).with_suffix(".svg").read_text())
    chosen = clients[query.asked]
    return template.render(query=query, picture=_png(query.picture), clients=clients, chosen=chosen) + "\n"


def _png(picture: Tensor) -> str:
    """A sample as a picture in the text."""
    content = io.BytesIO()
    Image.fromarray(picture[0].numpy()).save(content, "PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def main() -> None:
    """Train, choose and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/guided.svg"))
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feddrm-") as folder:
        query = find_query(Path(folder), args.rounds)
    write_atomically(args.out, draw(query).encode())
    print(
        f"wrote {args.out}: {query.names[query.asked]} answers {query.label}, one model for all {query.global_answer}"
    )


if __name__ == "__main__":
    main()
