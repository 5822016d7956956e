"""Explanations in words: the largest terms of plain values."""

from __future__ import annotations

from feddrm.rules.explanation_text import explanation_sentence

TERMS = [{"name": "age", "value": 82, "log_odds": 4.0}, {"name": "chol", "value": None, "log_odds": -3.0},
         {"name": "embedding", "log_odds": 2.0}, {"name": "sex", "value": "male", "log_odds": 1.0},
         {"name": "cp", "value": "2", "log_odds": 0.5}, {"name": "ca", "value": 0, "log_odds": -0.25}]  # fmt: skip
ENTRY = {"client": "oslo", "over": "lima", "log_odds": 5.0, "terms": TERMS, "rest": 0.125, "baseline": 0.625,
         "sizes": 0.0, "unlike": []}  # fmt: skip


def test_a_sentence_has_four_terms_and_the_sum_of_all_others() -> None:
    assert explanation_sentence(ENTRY) == (
        "oslo over lima +5.00: age 82 +4.00, chol missing -3.00, embedding +2.00, sex male +1.00, "
        "everything else +0.38, baseline +0.62"
    )
    shorter = {**ENTRY, "terms": TERMS[:4], "rest": 0.375}
    assert explanation_sentence(shorter) == explanation_sentence(ENTRY), "however many terms a gateway sends"


def test_of_a_strange_query_it_names_shares() -> None:
    unlike = [
        {"name": name, "share": share} for name, share in (("a", 0.5), ("b", 0.2), ("c", 0.1), ("d", 0.1), ("e", 0.1))
    ]
    assert explanation_sentence({**ENTRY, "unlike": unlike}) == (
        "unlike the training data: a (50%), b (20%), c (10%), d (10%), everything else (10%)"
    )


def test_without_a_client_there_is_nothing_to_say() -> None:
    assert explanation_sentence(None) == ""
