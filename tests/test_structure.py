"""The rules that keep the package easy to read: names, folders, mirrored tests, the glossary, pictures, short files.

Each rule is a function that returns its violations. It is tried on this project, and on a small made-up one that
breaks it. Import rules are checked by ruff and import-linter (`make lint`).
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from no_processes import NoProcesses

ROOT = Path(__file__).parent.parent
PACKAGE, TESTS = ROOT / "src" / "feddrm", ROOT / "tests"
Make = Callable[[Mapping[str, str]], Path]

# Folders in which modules are named after commands, so that they may share a name with a module elsewhere.
COMMANDS = ("cli", "bench")
# A name that may occur more than once, and why. A line that is no longer needed is reported, too.
MODULE_NAMES = {
    "base": "the base class of datasets, and of features",
    "settings": "each part of the program has its own",
}
CLASS_NAMES = {}
MOST_MODULES = 12  # directly in one package
ONE_FILE_EACH = ("methods", "data/datasets", "cli")  # one file per method, dataset, group of commands: no limit
MOST_LINES = 400
GLOSSARY_ROWS = range(40, 91)

# A module without a test file of its own, and the test that covers it.
COVERED = {
    "_version.py": "tests/test_api.py",
    "bench/engine.py": "tests/cli/test_bench.py",
    "data/sources/table_rows.py": "tests/data/sources/test_csv_tables.py",
    "deploy/flower/control_token.py": "tests/deploy/flower/test_superlink.py",
    "deploy/provision/templates.py": "tests/deploy/provision/test_project.py",
    "deploy/site/site_fit.py": "tests/deploy/server/test_remote_cohort.py",
    "models/groupnorm_triton.py": "tests/models/test_groupnorm.py",
    "router/decisions/decision.py": "tests/router/test_router.py",
    "router/fit/cohort.py": "tests/deploy/server/test_remote_cohort.py",
    "router/features/design_matrix.py": "tests/router/fit/test_selection.py",
    "rules/competence.py": "tests/rules/test_contract.py",
    "rules/density.py": "tests/rules/test_contract.py",
    "rules/posterior.py": "tests/rules/test_contract.py",
    "rules/rivals.py": "tests/rules/test_contract.py",
    "rules/rule.py": "tests/rules/test_contract.py",
}
# A test file that belongs to no single module, and what it tests.
THEMES = {
    "tests/test_api.py": "the names that feddrm exports",
    "tests/test_benchmarks.py": "the scripts in benchmarks/",
    "tests/test_drawings.py": "the drawings of the documentation",
    "tests/test_survival.py": "survival, from data to predictions",
    "tests/test_without_router.py": "predictions of a run without a router, by command and in Python",
    "tests/test_killed.py": "training, fit and report that end at any file operation",
    "tests/test_readme.py": "every command and example of the README",
    "tests/test_pages.py": "every command and example of README and docs is run",
    "tests/test_stories.py": "the stories of researcher and statistician",
    "tests/test_structure.py": "the rules of this file",
    "tests/test_operations.py": "the dashboard and the alert rules of docs/operations",
    "tests/test_release.py": "wheel and source distribution",
    "tests/test_packaging.py": "image, compose files, units and manifests of packaging/",
    "tests/test_site.py": "the built documentation site, in a browser",
    "tests/test_site_pages.py": "the pages of the site that are made from files and from the program",
    "tests/report/test_look.py": "the report in a browser: folds, tooltips, widths, colours",
    "tests/test_theory.py": "every command, example and figure of docs/theory.md",
    "tests/methods/test_contract.py": "every method, by one set of tests",
    "tests/methods/test_exchange.py": "what every method sends, keeps and combines",
    "tests/methods/test_golden.py": "every method against exact figures",
    "tests/models/test_contract.py": "every model, by one set of tests",
    "tests/data/sources/test_csv_schemas.py": "raw columns of csv tables, by a schema",
    "tests/data/sources/test_csv_survival.py": "times and events of csv tables, in the place of a label",
    "tests/cli/test_why.py": "the reasons of a choice, as route prints them",
    "tests/cli/test_plugin_option.py": "plugins in every command, from training to serving",
    "tests/cli/test_examples.py": "the examples in the help of every command",
    "tests/deploy/test_consortium_story.py": "the story of the consortium",
    "tests/deploy/test_docs_page.py": "the commands of docs/deploy.md, the figures of privacy and speed",
    "tests/deploy/test_end_to_end.py": "a federation of real processes",
    "tests/deploy/test_masked_processes.py": "a federation of real processes with secure aggregation",
    "tests/deploy/test_killed_publishing.py": "the end of a deployed run, killed at any file operation",
    "tests/deploy/test_parity.py": "a deployed training equals one process to the last bit",
    "tests/deploy/server/test_reply_headers.py": "every field that a reply's header may have",
    "tests/deploy/site/test_subjects.py": "sites whose samples are of subjects",
    "tests/deploy/site/test_changed_data.py": "a site whose data has changed",
    "tests/deploy/site/test_tables_of_sites.py": "tables of several sites in one federation, with a schema of all",
    "tests/evaluation/test_invariants.py": "relations between accuracies",
    "tests/paper/test_prose.py": "sentences of the documentation against the results",
    "tests/paper/test_tuned_prose.py": "the same of the tuned grid",
    "tests/rules/test_contract.py": "every routing rule, by one set of tests",
    "tests/serve/test_analyst_story.py": "the story of the analyst",
    "tests/serve/test_explained_routes.py": "the reasons of a choice, as the gateway gives them",
    "tests/serve/test_class_names.py": "class names from the run to the answer",
    "tests/serve/test_documented_examples.py": "the examples of docs/serve.md",
    "tests/serve/test_best_client_away.py": "what every interface says when the best client is away",
    "tests/serve/test_frozen_features.py": "a fit without rounds, served by real processes",
    "tests/serve/test_faults.py": "clients and disks that fail",
    "tests/serve/test_fuzz.py": "random requests against the OpenAPI document",
    "tests/serve/console/test_console_look.py": "the console in a browser: words, folds, tooltips, widths, colours",
    "tests/serve/console/test_console_trouble.py": "the console when gateway, key, options or samples fail",
    "tests/serve/oip/test_conformance.py": "gateway and predictor, asked by tritonclient over HTTP and gRPC",
    "tests/serve/predictor/test_own_scales.py": "clients that scale samples each in its own way",
}


def modules(package: Path) -> list[str]:
    """Every module's path below the package, without ``__init__`` and ``__main__``."""
    return sorted(str(path.relative_to(package)) for path in package.rglob("*.py") if not path.stem.startswith("__"))


def repeated(homes: Mapping[str, list[str]], allowed: Collection[str]) -> list[str]:
    """Names with more than one home, and allowed names that have at most one."""
    twice = {name for name, places in homes.items() if len(places) > 1}
    return [f"'{name}' occurs in {', '.join(homes[name])}" for name in sorted(twice - set(allowed))] + [
        f"'{name}' is not repeated: delete its line" for name in sorted(set(allowed) - twice)
    ]


def repeated_modules(package: Path, allowed: Collection[str] = ()) -> list[str]:
    """Modules with the same name, files named after commands aside."""
    homes: dict[str, list[str]] = {}
    for module in modules(package):
        if module.split("/")[0] not in COMMANDS:
            homes.setdefault(Path(module).stem, []).append(module)
    return repeated(homes, allowed)


def classes(package: Path) -> dict[str, list[str]]:
    """Every public class and the modules that define one of that name."""
    homes: dict[str, list[str]] = {}
    for module in modules(package):
        for node in ast.parse((package / module).read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    return homes


def repeated_classes(package: Path, allowed: Collection[str] = ()) -> list[str]:
    """Public classes with the same name."""
    return repeated(classes(package), allowed)


def crowded_packages(package: Path) -> list[str]:
    """Packages with too many modules directly in them."""
    folders = [str(Path(module).parent) for module in modules(package)]
    counts = {folder: folders.count(folder) for folder in sorted(set(folders) - set(ONE_FILE_EACH))}
    return [f"{folder} has {count} modules" for folder, count in counts.items() if count > MOST_MODULES]


def long_files(package: Path) -> list[str]:
    """Files with too many lines."""
    counts = {path: len(path.read_text().splitlines()) for path in sorted(package.rglob("*.py"))}
    return [f"{path.relative_to(package)} has {count} lines" for path, count in counts.items() if count >= MOST_LINES]


def undescribed_files(package: Path) -> list[str]:
    """Files whose docstring does not begin with one sentence on one line."""
    wrong = []
    for path in sorted(package.rglob("*.py")):
        source = path.read_text()
        first, line = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0], source.partition("\n")[0]
        if not first.endswith(".") or len(line) > 120:
            wrong.append(f"{path.relative_to(package)}: '{first}'")
    return wrong


def mirror(module: str) -> str:
    """The path of a module's own test file: ``a/b.py`` is tested by ``tests/a/test_b.py``."""
    path = Path(module)
    return str(Path("tests") / path.parent / f"test_{path.stem.lstrip('_')}.py")


def unmirrored(root: Path, covered: Mapping[str, str], themes: Collection[str]) -> list[str]:
    """Modules without a test, tests without a module, and lines of the two lists that are not needed."""
    known = modules(root / "src" / "feddrm")
    tests = {str(path.relative_to(root)) for path in (root / "tests").rglob("test_*.py")}
    without_test = {module for module in known if mirror(module) not in tests}
    without_module = tests - {mirror(module) for module in known}
    wrong = [f"{module} has no {mirror(module)}" for module in without_test - set(covered)]
    wrong += [f"{test} mirrors no module" for test in without_module - set(themes)]
    wrong += [f"{module}: there is no {test}" for module, test in covered.items() if test not in tests]
    idle = [*(set(covered) - without_test), *(set(themes) - without_module)]
    return sorted(wrong) + [f"{line} needs no exception: delete its line" for line in sorted(idle)]


def glossary_mistakes(text: str, known_classes: Collection[str]) -> list[str]:
    """Terms (printed bold) that are defined twice, classes that do not exist, too few or too many rows."""
    terms = [term.lower() for term in re.findall(r"\*\*(.+?)\*\*", text)]
    mentioned = set(re.findall(r"`((?:[A-Z][a-z0-9]+)+)`", text))
    rows = len(re.findall(r"^\| \*\*", text, flags=re.MULTILINE))
    wrong = [f"'{term}' is defined {terms.count(term)} times" for term in sorted(set(terms)) if terms.count(term) > 1]
    wrong += [f"there is no class '{name}'" for name in sorted(mentioned - set(known_classes))]
    return wrong + ([] if rows in GLOSSARY_ROWS else [f"{rows} terms: give {GLOSSARY_ROWS[0]} to {GLOSSARY_ROWS[-1]}"])


def picture_mistakes(root: Path) -> list[str]:
    """Pictures in ``docs`` that no page shows, and pictures that a page shows although they are not there."""
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    shown = {
        (page.parent / target).resolve()
        for page in pages
        for target in re.findall(r"!\[[^]]*\]\(([^):]+)\)", page.read_text())
    }
    there = set((root / "docs").resolve().glob("*.png"))
    wrong = [f"no page shows {path.name}" for path in there - shown]
    return sorted(wrong + [f"there is no {path.name}" for path in shown if not path.exists()])


def assert_none(violations: list[str]) -> None:
    """Fail with one violation per line."""
    assert not violations, "\n" + "\n".join(violations)


def test_module_names_are_unique() -> None:
    assert_none(repeated_modules(PACKAGE, MODULE_NAMES))


def test_class_names_are_unique() -> None:
    assert_none(repeated_classes(PACKAGE, CLASS_NAMES))


def test_packages_are_small() -> None:
    assert_none(crowded_packages(PACKAGE))


def test_files_are_short() -> None:
    assert_none(long_files(PACKAGE))


def test_every_file_says_what_it_is() -> None:
    assert_none(undescribed_files(PACKAGE))


def test_tests_mirror_the_package() -> None:
    assert_none(unmirrored(ROOT, COVERED, THEMES))


def test_the_glossary_defines_each_term_once() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    assert_none(glossary_mistakes(text, classes(PACKAGE)))


def test_every_picture_is_shown() -> None:
    assert_none(picture_mistakes(ROOT))


@pytest.fixture
def made(tmp_path: Path) -> Make:
    """Write the files of a made-up project; returns its root."""

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return write


def test_a_repeated_module_name_is_found(made: Make) -> None:
    package = made({"a/same.py": "", "b/same.py": "", "cli/one.py": "", "a/one.py": "", "a/__init__.py": ""})
    assert repeated_modules(package, ()) == ["'same' occurs in a/same.py, b/same.py"]
    assert repeated_modules(package, ["same"]) == []
    assert repeated_modules(package, ["same", "one"]) == ["'one' is not repeated: delete its line"]


def test_a_repeated_class_name_is_found(made: Make) -> None:
    package = made({"a.py": "class Same: ...\nclass _Own: ...", "b.py": "class Same: ...\nclass _Own: ..."})
    assert repeated_classes(package, ()) == ["'Same' occurs in a.py, b.py"]
    assert repeated_classes(package, ["Same"]) == []


def test_a_crowded_package_is_found(made: Make) -> None:
    many = [f"m{number}.py" for number in range(MOST_MODULES + 1)]
    package = made({f"{folder}/{name}": "" for folder in ("full", "methods") for name in many})
    assert crowded_packages(package) == ["full has 13 modules"]
    (package / "full" / many[0]).unlink()
    assert crowded_packages(package) == []


def test_a_long_file_is_found(made: Make) -> None:
    assert long_files(made({"short.py": "\n" * 399, "long.py": "\n" * 400})) == ["long.py has 400 lines"]


def test_a_file_without_a_first_sentence_is_found(made: Make) -> None:
    package = made({
        "good.py": '"""Routes queries."""',
        "none.py": "import os",
        "open.py": '"""Routes queries"""',
        "wide.py": f'"""{"x" * 120}."""',
        "wrapped.py": '"""Routes\nqueries."""',
    })  # fmt: skip
    assert [line.split(":")[0] for line in undescribed_files(package)] == [
        "none.py",
        "open.py",
        "wide.py",
        "wrapped.py",
    ]


def test_a_module_or_test_without_its_counterpart_is_found(made: Make) -> None:
    files = ("src/feddrm/a/one.py", "src/feddrm/two.py", "tests/a/test_one.py", "tests/test_theme.py")
    root = made(dict.fromkeys(files, ""))
    assert unmirrored(root, {}, ()) == ["tests/test_theme.py mirrors no module", "two.py has no tests/test_two.py"]
    themes = ["tests/test_theme.py"]
    assert unmirrored(root, {"two.py": "tests/test_theme.py"}, themes) == []
    assert unmirrored(root, {"two.py": "tests/test_gone.py"}, themes) == ["two.py: there is no tests/test_gone.py"]
    stale = unmirrored(root, {"two.py": themes[0], "a/one.py": themes[0]}, [*themes, "tests/a/test_one.py"])
    assert stale == [f"{line} needs no exception: delete its line" for line in ("a/one.py", "tests/a/test_one.py")]


def test_a_mistake_in_the_glossary_is_found() -> None:
    rows = [f"| **t{number}** | Something. |" for number in range(GLOSSARY_ROWS.start)]
    assert glossary_mistakes("\n".join(rows), ()) == []
    assert glossary_mistakes("\n".join([*rows, "| **u** | A **T0**. |"]), ()) == ["'t0' is defined 2 times"]
    named = "\n".join([*rows, "| **u** | A `Router` or a `SiteClient`, `slot`. |"])
    assert glossary_mistakes(named, ["Router"]) == ["there is no class 'SiteClient'"]
    assert len(glossary_mistakes("\n".join(rows[1:]), ())) == 1


def test_a_picture_that_no_page_shows_is_found(made: Make) -> None:
    root = made({"README.md": "![a](docs/a.png)", "docs/b.md": "![gone](c.png)", "docs/a.png": "", "docs/b.png": ""})
    assert picture_mistakes(root) == ["no page shows b.png", "there is no c.png"]


def recipe(target: str) -> str:
    """What make does for a target."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert found
    return found[1]


def test_make_test_fast_leaves_out_slow_tests() -> None:
    assert "-m 'not slow'" in recipe("test-fast")
    assert "slow" not in recipe("test")


def test_a_process_is_refused_while_a_fast_test_runs() -> None:
    guard = NoProcesses()
    guard("subprocess.Popen", ("true",))  # a slow test, or no test at all
    guard.fast_test = "tests/test_made.py::test_made"
    guard("open", ("file",))
    for event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"):
        with pytest.raises(RuntimeError, match="test_made starts a process"):
            guard(event, ("true",))


def test_this_test_is_fast_and_cannot_start_a_process() -> None:
    with pytest.raises(RuntimeError, match="mark it slow"):
        importlib.import_module("subprocess").run(["true"], check=True)
