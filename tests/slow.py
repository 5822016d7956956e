"""Which tests are slow: those that start a process or a browser, fuzz, or take seconds.

Most are not listed by name. `reached` reads the code of a test and of its fixtures, and follows the helpers that they
call within tests/. So a test may move or be renamed and stays marked.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

TESTS = Path(__file__).parent
MARKERS = ("deploy", "long", "data")  # markers that imply slow
PACKAGES = {  # a test is slow that reaches one of these
    "subprocess": "starts processes",
    "multiprocessing": "starts processes",
    "selenium": "starts a browser",
    "schemathesis": "fuzzes",
    "flwr": "runs a federation over Flower's messages",
    "feddrm.deploy.flower": "starts processes",
    "feddrm.router.export": "compiles a router for ONNX",
}
PARAMETERS = ("postgresql",)  # a test with one of these as a parameter starts that server
LONG = {  # other tests that take more than a second: what they do
    "test_95_percent_intervals_cover_95_percent": "simulates hundreds of fits",
    "test_homogeneity_rejects_5_percent_of_equal_populations": "simulates hundreds of fits",
    "test_estimates_approach_the_known_populations": "fits large samples",
    "test_12_the_bias_of_a_fixed_ridge_stays_as_data_grow": "fits large samples",
    "test_08_density_rule_finds_the_largest_density_and_posterior_rule_the_bayes_client": "fits large samples",
    "test_drift_and_tradeoff": "simulates federations",
    "test_it_runs": "runs the examples of all commands",
    "test_every_workload_is_measured": "starts processes through the package",
    "test_the_smoke_grid_from_end_to_end": "trains a grid",
    "test_retina_on_made_images": "trains on photographs",
    "test_any_method_can_be_given_a_router": "trains with every method",
    "test_fitting_again_gives_the_same": "fits a router twice",
    "test_private_parts_and_heads_are_their_owners": "trains and fits all heads",
    "test_progress_from_python_is_on_standard_error_and_only_where_asked": "trains and fits all heads",
    "test_a_demo_starts_the_remaining_clients_only": "starts processes through the package",
    "test_uint8_values_equal_the_reference": "shifts many images",
    "test_all_colours_equal_pillow": "shifts 16 million colours",
    "test_many_clients_and_classes": "draws large figures",
    "test_several_runs_are_compared": "draws many figures",
    "test_a_comparison_says_in_what_the_runs_differ": "draws many figures",
}


class NoProcesses:
    """An audit hook that refuses to start a process while a test runs that is not marked slow.

    It finds what `reached` cannot see: processes that the package itself starts.
    """

    EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})

    def __init__(self) -> None:
        self.fast_test: str | None = None  # the test that runs, if it is not slow

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.fast_test is not None and event in self.EVENTS:
            raise RuntimeError(f"{self.fast_test} starts a process ({event} {arguments[:1]}): mark it slow")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        """Guard one test with its fixtures."""
        self.fast_test = None if item.get_closest_marker("slow") else item.nodeid
        try:
            return (yield)
        finally:
            self.fast_test = None


def is_slow(test: pytest.Function) -> bool:
    """Whether `make test-fast` leaves the test out."""
    if test.originalname in LONG or any(test.get_closest_marker(name) for name in MARKERS):
        return True
    if any(parameter in test.name.partition("[")[2] for parameter in PARAMETERS):
        return True
    fixtures = [fixture.func for versions in test._fixtureinfo.name2fixturedefs.values() for fixture in versions]
    return any(reached(function) for function in [test.function, *fixtures])


@cache
def reached(function: Any) -> frozenset[str]:
    """Those of `PACKAGES` that a test or a fixture can reach."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting = [function]
    while waiting:
        value = _unwrapped(waiting.pop())
        if id(value) in seen:
            continue
        seen.add(id(value))
        home = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
        if package := _package(str(home)):
            found.add(package)
        elif inspect.isclass(value) and _is_ours(value):
            waiting += [member for member in vars(value).values() if isinstance(member, FunctionType)]
        elif isinstance(value, FunctionType) and _is_ours(value):
            names = set(_names(value.__code__))
            found |= {package for name in names if (package := _package(name))}  # imported inside the function
            waiting += _resolved(names, value.__globals__)
    return frozenset(found)


def _unwrapped(value: Any) -> Any:
    """The function behind decorators, Hypothesis's included."""
    try:
        value = inspect.unwrap(value)
    except ValueError:  # an object that claims to wrap without end, as mocks do
        return value
    return getattr(getattr(value, "hypothesis", None), "inner_test", value)


def _package(module: str) -> str | None:
    return next((name for name in PACKAGES if f"{module}.".startswith(f"{name}.")), None)


def _is_ours(value: FunctionType | type | ModuleType) -> bool:
    """Whether a function, class or module is defined under tests/."""
    try:
        return inspect.getfile(value).startswith(str(TESTS))
    except TypeError:  # built in
        return False


def _resolved(names: set[str], scope: Mapping[str, Any]) -> Iterator[Any]:
    """What global names stand for, and what ``module.name`` stands for if the module is under tests/."""
    for name in names & scope.keys():
        yield scope[name]
        if isinstance(scope[name], ModuleType) and _is_ours(scope[name]):
            yield from (vars(scope[name])[other] for other in names & vars(scope[name]).keys())


def _names(code: CodeType) -> Iterator[str]:
    """Every global and attribute name, and every imported module, of a function and of those inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
