"""Routing rules: how scores over clients become weights, one file per rule.

Adding a rule takes one file, one import below, and one row in ``tests/rules/test_contract.py``.
"""

from typing import TYPE_CHECKING, Literal, TypeAlias

from feddrm.rules.density import Density
from feddrm.rules.posterior import Posterior
from feddrm.rules.rule import Rule

RULES = tuple(Rule.family)
RULES_HELP = " or ".join(f"{name} ({rule.summary().lower()})" for name, rule in Rule.family.items())

if TYPE_CHECKING:
    RuleName: TypeAlias = str
else:
    RuleName = Literal[RULES]  # the type by which requests are validated

__all__ = ["RULES", "RULES_HELP", "Density", "Posterior", "Rule", "RuleName"]
