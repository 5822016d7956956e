"""Routing rules: how evidence about a query becomes weights over clients.

Adding a rule takes one class in a file of its own (a rival: in ``rivals``), one import below, and one row in
``tests/rules/test_contract.py``.
"""

from typing import TYPE_CHECKING, Literal, TypeAlias

from feddrm.rules.competence import Competence
from feddrm.rules.density import Density
from feddrm.rules.posterior import Posterior
from feddrm.rules.rivals import LargestCosine, LeastEntropy, MostConfident, NearestMean
from feddrm.rules.rule import Evidence, Rule

RULES = tuple(name for name, rule in Rule.family.items() if not rule.needs)  # by origin: every router has these
ROUTING_RULES = (*RULES, Competence.name)  # those that a router can route by
RIVALS = tuple(name for name in Rule.family if name not in ROUTING_RULES)  # measured beside them
RULES_HELP = " or ".join(f"{name} ({Rule.family[name].summary().lower()})" for name in ROUTING_RULES)

if TYPE_CHECKING:
    RuleName: TypeAlias = str
else:
    RuleName = Literal[ROUTING_RULES]  # the type by which requests are validated

__all__ = [
    "RIVALS",
    "ROUTING_RULES",
    "RULES",
    "RULES_HELP",
    "Competence",
    "Density",
    "Evidence",
    "LargestCosine",
    "LeastEntropy",
    "MostConfident",
    "NearestMean",
    "Posterior",
    "Rule",
    "RuleName",
]
