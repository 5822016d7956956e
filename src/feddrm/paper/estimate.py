"""Estimates how long a cell will take, from finished cells on the same hardware."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from feddrm.paper.cell_records import CellRecord
from feddrm.paper.grid import Cell

# Rough weights; measured cells correct them. Unit: one training step on a batch of 128 small images.
STEP = {"fedsamft": 1.9, "fedas": 1.1}  # a second gradient; a second forward pass while aligning
NETWORK = {"lenet": 0.05, "mlp": 0.01, "resnet18_retina": 9.0}
OWN_TRUNKS = ("ditto", "fedala")  # every evaluation runs one trunk per client
PASS = 47.0  # the pooled test set through one trunk: 18,000 images, each a third of a training step's work
SMALL_PASS = 2.0  # the same for RETINA, which has a few hundred images


def cost(cell: Cell) -> float:
    """The work of a cell, in steps."""
    plan, name = cell.plan, cell.learner.name
    clients = getattr(cell.dataset, "clients", 3)
    tuned = cell.learner.tuning_rounds(plan.rounds)
    steps = plan.rounds * clients * plan.local_steps * plan.batch_size / 128
    train = steps * STEP.get(name, 1.0)
    evaluated = [r for r in range(1, plan.rounds + 1) if cell.evaluation.due(r, plan.rounds)]
    tunes_trunks = tuned > 0 and name != "fedbabu"  # FedBABU tunes only the heads
    trunks = sum(clients if name in OWN_TRUNKS or (tunes_trunks and r > plan.rounds - tuned) else 1 for r in evaluated)
    evaluation = trunks * (SMALL_PASS if cell.dataset.name == "retina" else PASS)
    return (train + evaluation) * NETWORK.get(cell.model.name, 1.0)


def estimate(cell: Cell, cells: Mapping[str, Cell], records: Iterable[CellRecord]) -> float | None:
    """The probable seconds of a cell; None if nothing has been measured yet.

    ``records`` are those of one kind of hardware. Cells of the same method and network are the best evidence,
    then those of the same network, then all. Cells that shared the hardware with others count only if there
    are no others.
    """
    done = [(cells[record.id], record.seconds) for record in _undisturbed(cells, records)]
    if not done:
        return None
    same_method = [(c, s) for c, s in done if (c.learner.name, c.model.name) == (cell.learner.name, cell.model.name)]
    evidence = same_method or [(c, s) for c, s in done if c.model.name == cell.model.name] or done
    return cost(cell) * median(seconds / cost(other) for other, seconds in evidence)


def router_estimate(cell: Cell, cells: Mapping[str, Cell], records: Iterable[CellRecord]) -> float:
    """The most that the router of such a cell has taken; 0 if none has been fitted.

    Cells of the same method and data are the best evidence, then those of the same data, then all.
    """
    fits = [(cells[record.id], record.content["seconds"].get("router")) for record in _undisturbed(cells, records)]
    done = [(other, float(seconds)) for other, seconds in fits if seconds]
    same_data = [(other, seconds) for other, seconds in done if other.dataset.name == cell.dataset.name]
    same_method = [(other, seconds) for other, seconds in same_data if other.method == cell.method]
    return max((seconds for _, seconds in same_method or same_data or done), default=0.0)


def _undisturbed(cells: Mapping[str, Cell], records: Iterable[CellRecord]) -> list[CellRecord]:
    """The results that had the hardware to themselves; all if none had."""
    known = [record for record in records if record.id in cells]
    return [record for record in known if not record.content["seconds"].get("beside")] or known
