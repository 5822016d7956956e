"""How long a cell will take, from those that are done on the same hardware."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from feddrm.paper.cell_records import CellRecord
from feddrm.paper.grid import Cell

# Rough weights only: measured cells put them right. Unit: one training step on a batch of 128 small images.
STEP = {"fedsamft": 1.9, "fedas": 1.1}  # a second gradient; a second forward pass while aligning
NETWORK = {"lenet": 0.05, "mlp": 0.01, "resnet18_retina": 9.0}
OWN_TRUNKS = ("ditto", "fedala")  # every client is asked with a trunk of its own in every evaluation
PASS = 47.0  # the pooled test set once forward through one trunk: 18,000 images, a third of a step's work each
SMALL_PASS = 2.0  # RETINA's few hundred


def cost(cell: Cell) -> float:
    """Relative work of a cell."""
    plan, name = cell.plan, cell.learner.name
    clients = getattr(cell.dataset, "clients", 3)
    tuned = cell.learner.tuning_rounds(plan.rounds)
    steps = plan.rounds * clients * plan.local_steps * plan.batch_size / 128
    train = steps * STEP.get(name, 1.0)
    asked = [r for r in range(1, plan.rounds + 1) if cell.evaluation.due(r, plan.rounds)]
    alone = tuned > 0 and name != "fedbabu"  # tuning moves the trunks apart, but for FedBABU's heads
    trunks = sum(clients if name in OWN_TRUNKS or (alone and r > plan.rounds - tuned) else 1 for r in asked)
    ask = trunks * (SMALL_PASS if cell.dataset.name == "retina" else PASS)
    return (train + ask) * NETWORK.get(cell.model.name, 1.0)


def estimate(cell: Cell, cells: Mapping[str, Cell], records: Iterable[CellRecord]) -> float | None:
    """Seconds a cell will probably take; None where nothing has been measured yet.

    ``records`` are those of one kind of hardware. The same method on the same network says most;
    otherwise all of them together say how fast the hardware is. Cells that shared it with others
    say something only where there is nothing else.
    """
    known = [record for record in records if record.id in cells]
    alone = [record for record in known if not record.content["seconds"].get("beside")]
    done = [(cells[record.id], record.seconds) for record in alone or known]
    if not done:
        return None
    like = [(c, s) for c, s in done if (c.learner.name, c.model.name) == (cell.learner.name, cell.model.name)]
    near = like or [(c, s) for c, s in done if c.model.name == cell.model.name] or done
    return cost(cell) * median(seconds / cost(other) for other, seconds in near)
