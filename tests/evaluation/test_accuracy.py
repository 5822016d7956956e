"""Accuracies in closed form on logits small enough to check by hand, and what must hold for any."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from feddrm.errors import FeddrmError, SettingError
from feddrm.evaluation import (
    Predictions,
    average_accuracy,
    client_accuracy,
    confusion,
    evaluate,
    global_accuracy,
    oracle_accuracy,
    per_client,
    route,
    routed_predictions,
    system_accuracy,
    vote,
    votes,
)


def says(*rows: list[int], classes: int = 3) -> Tensor:
    """Logits [m, N, K] of models whose choices are given."""
    return 2.0 * torch.nn.functional.one_hot(torch.tensor(rows), classes).double() - 1.0


# Two clients; samples 0-3 are the first's, 4-5 the second's.
LABELS, ORIGIN = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([0, 0, 0, 0, 1, 1])
WEIGHTS = torch.tensor([0.8, 0.2], dtype=torch.float64)
CLIENT_LOGITS = torch.tensor([[2.0, 0], [0.5, 0], [1, 0], [0, 1], [0, 2], [0.2, 0]], dtype=torch.float64)
PREDICTIONS = Predictions(
    logits=says([0, 1, 2, 1, 0, 0], [0, 0, 0, 0, 1, 0]),  # own: 3 of 4, and 1 of 2
    labels=LABELS,
    origin=ORIGIN,
    client_logits=CLIENT_LOGITS,
    global_logits=says([0, 0, 2, 1, 1, 2])[0],
)
PLAIN = PREDICTIONS._replace(client_logits=None, global_logits=None)


class TestByHand:
    def test_average_weighs_clients_and_oracle_samples(self) -> None:
        assert average_accuracy(PREDICTIONS, WEIGHTS) == pytest.approx(0.8 * 3 / 4 + 0.2 * 1 / 2, rel=1e-15)
        assert average_accuracy(PREDICTIONS, 100 * WEIGHTS) == pytest.approx(0.7, rel=1e-15)
        assert oracle_accuracy(PREDICTIONS) == 4 / 6

    def test_global(self) -> None:
        assert global_accuracy(PREDICTIONS) == 4 / 6
        assert global_accuracy(PLAIN) is None

    def test_routes(self) -> None:
        assert route(CLIENT_LOGITS, WEIGHTS, "posterior").tolist() == [0, 0, 0, 1, 1, 0]
        # log 0.8 - log 0.2 = log 4 = 1.386 must be made up for by the first client.
        assert route(CLIENT_LOGITS, WEIGHTS, "density").tolist() == [0, 1, 1, 1, 1, 1]
        assert route(CLIENT_LOGITS, WEIGHTS).tolist() == [0, 1, 1, 1, 1, 1]

    def test_the_density_rule_turns_at_the_log_ratio_of_the_weights(self) -> None:
        edge = math.log(4)
        logits = torch.tensor([[edge + 1e-9, 0], [edge - 1e-9, 0]], dtype=torch.float64)
        assert route(logits, WEIGHTS, "density").tolist() == [0, 1]

    def test_equal_scores_go_to_the_smallest_number(self) -> None:
        assert route(torch.zeros(2, 3), torch.ones(3), "density").tolist() == [0, 0]
        assert route(torch.tensor([[0.0, 1, 1]]), torch.ones(3), "posterior").tolist() == [1]

    def test_equal_weights_leave_the_smallest_difference_alone(self) -> None:
        assert route(torch.tensor([[0.0, 1e-30]]), torch.full((2,), 0.3), "density").tolist() == [1]

    def test_system_accuracy_of_either_rule(self) -> None:
        predicted = routed_predictions(PREDICTIONS.logits, route(CLIENT_LOGITS, WEIGHTS, "posterior"))
        assert predicted.tolist() == [0, 1, 2, 0, 1, 0]
        assert system_accuracy(predicted, LABELS) == 5 / 6
        predicted = routed_predictions(PREDICTIONS.logits, route(CLIENT_LOGITS, WEIGHTS, "density"))
        assert predicted.tolist() == [0, 0, 0, 0, 1, 0]
        assert system_accuracy(predicted, LABELS) == 3 / 6

    def test_client_accuracy(self) -> None:
        def accuracy(rule: str) -> float:
            return client_accuracy(CLIENT_LOGITS, ORIGIN, WEIGHTS, rule)

        assert accuracy("posterior") == pytest.approx(0.8 * 3 / 4 + 0.2 * 1 / 2, rel=1e-15)
        assert client_accuracy(CLIENT_LOGITS, ORIGIN, WEIGHTS) == accuracy("posterior")  # the paper's
        assert accuracy("density") == pytest.approx(0.8 * 1 / 4 + 0.2 * 2 / 2, rel=1e-15)

    def test_confusion(self) -> None:
        assert confusion(route(CLIENT_LOGITS, WEIGHTS, "density"), ORIGIN, 2).tolist() == [[1, 3], [0, 2]]
        assert confusion(torch.tensor([2]), torch.tensor([0]), 3).tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]

    def test_evaluate(self) -> None:
        assert evaluate(PREDICTIONS, WEIGHTS) == {
            "average_accuracy": pytest.approx(0.7),
            "oracle_accuracy": 4 / 6,
            "global_accuracy": 4 / 6,
            "client_accuracy": {"head_density": pytest.approx(0.4), "head_posterior": pytest.approx(0.7)},
            # Of two votes that differ the smaller class wins: 0 0 0 0 0 0.
            "system_accuracy": {"vote": 2 / 6, "head_density": 3 / 6, "head_posterior": 5 / 6, "global": 4 / 6},
        }

    def test_evaluate_without_client_head_and_global_model(self) -> None:
        assert evaluate(PLAIN, WEIGHTS) == {
            "average_accuracy": pytest.approx(0.7),
            "oracle_accuracy": 4 / 6,
            "global_accuracy": None,
            "client_accuracy": {},
            "system_accuracy": {"vote": 2 / 6},
        }

    def test_evaluate_uses_the_given_tie_rule(self) -> None:
        # Three classes with two votes each, whose runs end at places 2, 4 and 6: threads 1, 2 and 3.
        logits = says(*([k] for k in (0, 1, 1, 2, 2, 3, 3, 4)), classes=5)
        labels = torch.tensor([2])
        predictions = Predictions(logits[:, [0] * 8], labels.repeat(8), torch.arange(8))
        weights = torch.ones(8)
        assert evaluate(predictions, weights)["system_accuracy"]["vote"] == 0.0
        assert evaluate(predictions, weights, ties="cuda")["system_accuracy"]["vote"] == 1.0
        assert per_client(predictions, list("abcdefgh"), weights)[0]["vote"] == 0.0
        assert per_client(predictions, list("abcdefgh"), weights, ties="cuda")[0]["vote"] == 1.0

    def test_votes_count_ties_and_leading_labels(self) -> None:
        # The models agree on the first and the last sample; of the last the label has no vote.
        assert votes(PREDICTIONS) == {"tied": 4 / 6, "leading": 5 / 6, "smallest": 2 / 6, "cuda": 2 / 6}
        logits = says(*([k] for k in (0, 1, 1, 2, 2, 3, 3, 4)), classes=5)
        predictions = Predictions(logits, torch.tensor([2]), torch.tensor([0]))
        assert votes(predictions) == {"tied": 1.0, "leading": 1.0, "smallest": 0.0, "cuda": 1.0}

    def test_votes_of_more_models_than_cuda_counts_in_one_block(self) -> None:
        predictions = Predictions(says(*[[1]] * 2049), torch.tensor([1]), torch.tensor([0]))
        assert votes(predictions) == {"tied": 0.0, "leading": 1.0, "smallest": 1.0}

    def test_per_client(self) -> None:
        first, second = per_client(PREDICTIONS, ["oslo", "lima"], WEIGHTS)
        assert first == {
            "name": "oslo",
            "test": 4,
            "own": 3 / 4,
            "global": 2 / 4,
            "vote": 2 / 4,
            "head_density": 2 / 4,
            "recall_density": 1 / 4,
            "head_posterior": 4 / 4,
            "recall_posterior": 3 / 4,
        }
        assert second == {
            "name": "lima",
            "test": 2,
            "own": 1 / 2,
            "global": 2 / 2,
            "vote": 0.0,
            "head_density": 1 / 2,
            "recall_density": 2 / 2,
            "head_posterior": 1 / 2,
            "recall_posterior": 1 / 2,
        }
        row = per_client(PLAIN, ["oslo", "lima"], WEIGHTS)[0]
        assert list(row) == list(first)
        missing = {key for key, value in row.items() if value is None}
        assert missing == set(first) - {"name", "test", "own", "vote"}


def literal_mode_of_cuda(votes: list[int]) -> int:
    """torch.mode as its kernel goes: sort, count runs up to every place, reduce pairs, then threads by halves."""
    votes = sorted(votes)
    run = [0] * len(votes)  # how many before this place are equal to it
    for place in range(1, len(votes)):
        run[place] = run[place - 1] + 1 if votes[place] == votes[place - 1] else 0

    def better(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return b if b[0] > a[0] else a  # (count, place): equal counts keep the one that is there

    def reduced(values: list[tuple[int, int]]) -> tuple[int, int]:
        values = values + [(0, 0)] * (32 - len(values))
        for step in (16, 8, 4, 2, 1):
            values = [better(v, values[i + step]) if i + step < 32 else v for i, v in enumerate(values)]
        return values[0]

    padded = [(count, place) for place, count in enumerate(run)] + [(0, 0)] * (-len(run) % 64)
    threads = [better(*padded[at : at + 2]) for at in range(0, len(padded), 2)]
    return votes[reduced([reduced(threads[at : at + 32]) for at in range(0, len(threads), 32)])[1]]


def bit_reversed_mode(votes: list[int]) -> int:
    """The same in words, for up to eight votes: among tied runs the thread first in the order 0, 2, 1, 3."""
    votes = sorted(votes)
    most = max(votes.count(v) for v in votes)
    if most == 1:
        return votes[0]
    tied = [v for v in set(votes) if votes.count(v) == most]
    last = {v: max(p for p, other in enumerate(votes) if other == v) for v in tied}
    return min(tied, key=lambda v: [0, 2, 1, 3].index(last[v] // 2))


def ballots(clients: int, classes: int, samples: int, seed: int = 0) -> Tensor:
    return torch.randint(0, classes, (clients, samples), generator=torch.Generator().manual_seed(seed))


class TestVotes:
    def test_most_votes_win(self) -> None:
        assert vote(says([2, 1], [2, 0], [0, 0])).tolist() == [2, 0]
        assert vote(says([2, 1], [2, 0], [0, 0]), "cuda").tolist() == [2, 0]

    def test_smallest_of_the_leading_classes(self) -> None:
        assert vote(says([2], [1], [2], [1], [0])).tolist() == [1]
        votes = ballots(8, 10, 500)
        assert torch.equal(vote(torch.nn.functional.one_hot(votes, 10)), votes.mode(0).values)  # the CPU's rule

    def test_cuda_ties_in_known_cases(self) -> None:
        # Runs end at places 1, 3, 5, 7, then at 2, 4, 6: thread 0 comes first, and thread 2 before thread 1.
        assert vote(says(*([k] for k in (0, 0, 1, 1, 2, 2, 3, 3)), classes=4), "cuda").tolist() == [0]
        assert vote(says(*([k] for k in (0, 1, 1, 2, 2, 3, 3, 4)), classes=5), "cuda").tolist() == [2]
        assert vote(says(*([k] for k in (7, 6, 5, 4, 3, 2, 1, 0)), classes=8), "cuda").tolist() == [0]

    @pytest.mark.parametrize(
        ("clients", "classes"),
        [(1, 3), (2, 2), (3, 5), (5, 4), (8, 10), (16, 5), (24, 10), (32, 20), (70, 30), (200, 60)],
    )
    def test_cuda_ties_equal_the_kernels_algorithm(self, clients: int, classes: int) -> None:
        votes = ballots(clients, classes, 400)
        expected = [literal_mode_of_cuda(column) for column in votes.T.tolist()]
        assert vote(torch.nn.functional.one_hot(votes, classes), "cuda").tolist() == expected

    def test_cuda_ties_equal_the_rule_in_words(self) -> None:
        votes = ballots(8, 5, 2000)
        got = vote(torch.nn.functional.one_hot(votes, 5), "cuda")
        assert got.tolist() == [bit_reversed_mode(column) for column in votes.T.tolist()]
        assert not torch.equal(got, votes.mode(0).values)  # the rules do differ

    def test_cuda_ties_of_too_many_clients_are_refused(self) -> None:
        with pytest.raises(SettingError, match="2048"):
            vote(torch.zeros(2049, 1, 2), "cuda")

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    @pytest.mark.parametrize("clients", [1, 2, 3, 5, 8, 13, 16, 24, 32, 48, 64, 65, 100, 128, 129, 500, 1024, 2048])
    @pytest.mark.parametrize("classes", [2, 10, 20, 100])
    def test_cuda_ties_equal_torch_mode_on_a_gpu(self, clients: int, classes: int) -> None:
        votes = ballots(clients, classes, 2000).cuda()
        logits = torch.zeros(clients, 2000, classes, dtype=torch.uint8, device="cuda").scatter_(2, votes[..., None], 1)
        assert torch.equal(vote(logits, "cuda"), votes.mode(0).values)
        assert torch.equal(vote(logits).cpu(), votes.cpu().mode(0).values)


class TestRefused:
    def test_unknown_rules_and_ties_are_refused(self) -> None:
        with pytest.raises(SettingError, match=r"unknown rule 'densty'; did you mean 'density'\?"):
            route(CLIENT_LOGITS, WEIGHTS, "densty")
        with pytest.raises(SettingError, match=r"unknown ties 'Cuda'; did you mean 'cuda'\?"):
            vote(PREDICTIONS.logits, "Cuda")

    def test_weights_for_another_number_of_clients_are_refused(self) -> None:
        with pytest.raises(FeddrmError, match=r"shape \(1,\) for 2 clients"):
            average_accuracy(PREDICTIONS, torch.ones(1))
        with pytest.raises(FeddrmError, match=r"shape \(1,\) for 2 clients"):
            route(CLIENT_LOGITS, torch.ones(1), "density")

    @pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, math.nan])
    def test_weights_that_are_not_positive_are_refused(self, weight: float) -> None:
        """Of weight 0 the density rule made an infinite score: every sample went to the client that has none."""
        weights = torch.tensor([1.0, weight])
        for measure in (average_accuracy, evaluate):
            with pytest.raises(FeddrmError, match="all must be positive"):
                measure(PREDICTIONS, weights)
        with pytest.raises(FeddrmError, match="all must be positive"):
            route(CLIENT_LOGITS, weights, "density")

    def test_a_client_without_test_samples_is_refused(self) -> None:
        with pytest.raises(FeddrmError, match="client 1 has no test samples"):
            average_accuracy(PREDICTIONS._replace(origin=torch.zeros_like(ORIGIN)), WEIGHTS)

    def test_names_for_another_number_of_clients_are_refused(self) -> None:
        with pytest.raises(FeddrmError, match="3 names for 2 clients"):
            per_client(PREDICTIONS, ["a", "b", "c"], WEIGHTS)
