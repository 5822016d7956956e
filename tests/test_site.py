"""The documentation site: it is built strictly, has all pages and files, and asks no other host for anything."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import feddrm
from browsing import browser, needs_browser, wait, webdriver
from documentation import ROOT
from feddrm.io.page_files import ICON

assert browser, "the fixture of this module"
from selenium.webdriver.common.by import By  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.documented]
FOREIGN = re.compile(r"(?:https?:)?//(?!127\.0\.0\.1)")


def build(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    words = ["mkdocs", "build", "--strict", "--config-file", str(config), "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


class Requests(HTMLParser):
    """What a browser fetches to show a page: scripts, styles, pictures; not what a reader may click."""

    PLACES = ("src", "srcset", "poster", "data")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.found += [named[place] for place in self.PLACES if place in named]
        if tag == "link" and named.get("rel") != "canonical":
            self.found.append(named.get("href", ""))
        self.found += re.findall(r"url\(['\"]?([^)'\"]+)", named.get("style", ""))


def fetched(page: Path) -> list[str]:
    parser = Requests()
    parser.feed(page.read_text())
    return parser.found


def test_no_page_and_no_style_asks_another_host(site: Path) -> None:
    pages, styles = list(site.rglob("*.html")), list(site.rglob("*.css"))
    assert len(pages) > 45
    assert styles
    places = {(page.name, place) for page in pages for place in fetched(page)}
    places |= {
        (style.name, place)
        for style in styles
        for place in re.findall(r"(?:@import\s*|url\()\s*['\"]?([^)'\";]+)", style.read_text())
        if not place.startswith("data:")
    }
    assert len(places) > 100
    assert [place for place in sorted(places) if FOREIGN.match(place[1])] == []
    assert not [page.name for page in pages if 'class="mermaid"' in page.read_text()]  # its script comes from elsewhere


def test_pages_have_the_icon_of_the_project(site: Path) -> None:
    assert (site / "icon.svg").read_bytes() == ICON.read_bytes()
    assert '<link rel="icon" href="icon.svg">' in (site / "index.html").read_text()


def test_a_foreign_script_style_or_font_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        '<a href="https://a.org"></a><script src="https://b.org/x.js"></script><link rel="icon" href="//c.org/y.ico">'
        '<p style="background: url(http://d.org/z.png)"></p><img src="own.png">'
    )
    assert [place for place in fetched(page) if FOREIGN.match(place)] == [
        *("https://b.org/x.js", "//c.org/y.ico", "http://d.org/z.png")
    ]


def test_files_outside_docs_are_published_with_the_pages_that_name_them(site: Path) -> None:
    for name in ("results/bench/engine.json", "src/feddrm/serve/oip/open_inference.proto"):
        assert (site / name).read_bytes() == (ROOT / name).read_bytes()
    assert 'href="results/bench/engine.json"' in (site / "performance.html").read_text()
    for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY"):
        assert (site / f"{name}.html").exists()
    assert 'href="glossary.html"' in (site / "ARCHITECTURE.html").read_text()
    listed = (site / "results" / "paper" / "index.html").read_text()
    assert all(f'href="{cell.name}"' in listed for cell in (ROOT / "results" / "paper").glob("*.json"))


def test_references_are_those_of_the_program(site: Path) -> None:
    assert 'id="feddrm-fit-router"' in (site / "reference" / "cli.html").read_text()
    python = (site / "reference" / "python.html").read_text()
    assert [name for name in feddrm.__all__ if f'id="feddrm.{name}"' not in python] == ["__version__", "drm", "router"]
    assert "check_sizes" not in python  # feddrm.fit is the function, not its module
    assert "/v1/predict" in json.loads((site / "reference" / "gateway.json").read_text())["paths"]
    assert json.loads((site / "reference" / "predictor.json").read_text())["info"]["title"] == "feddrm client oslo"


def test_formulas_are_shown_without_a_script(site: Path) -> None:
    theory = (site / "theory.html").read_text()
    assert theory.count("<math") > 100
    assert "arithmatex" not in theory
    assert "xi_l" not in re.sub(r"<(code|pre).*?</\1>", "", theory, flags=re.DOTALL)


def test_notebooks_are_pages_with_their_pictures(site: Path) -> None:
    page = (site / "notebooks" / "first_federation.html").read_text()
    pictures = re.findall(r'src="(first_federation-\d\.png)"', page)
    assert len(pictures) == 3
    assert all((site / "notebooks" / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert (site / "notebooks" / "first_federation.ipynb").exists()


MISTAKES = {
    "[gone](gone.md)": "gone.md",
    "[gone](../results/gone.json)": "results/gone.json",
    "[no anchor](other.md#nowhere)": "#nowhere",
    "[absolute](/other.md)": "/other.md",
}


@pytest.mark.parametrize("link", MISTAKES)
def test_a_broken_link_or_anchor_fails_the_build(link: str, tmp_path: Path) -> None:
    done = build_small(tmp_path, {"index.md": f"# A\n{link}\n", "other.md": "# B\n"}, ["index.md", "other.md"])
    assert done.returncode != 0
    assert MISTAKES[link] in done.stderr


def test_a_page_that_is_not_in_the_navigation_fails_the_build(tmp_path: Path) -> None:
    pages = {"index.md": "# A\n", "orphan.md": "# B\n"}
    done = build_small(tmp_path, pages, ["index.md"])
    assert done.returncode != 0
    assert "orphan.md" in done.stderr
    assert build_small(tmp_path, pages, ["index.md", "orphan.md"]).returncode == 0


def build_small(folder: Path, pages: dict[str, str], nav: list[str]) -> subprocess.CompletedProcess[str]:
    """Build a few pages by the rules of this site, without its hooks."""
    (folder / "docs").mkdir(exist_ok=True)
    for name, text in pages.items():
        (folder / "docs" / name).write_text(text)
    settings = {"INHERIT": str(ROOT / "mkdocs.yml"), "docs_dir": "docs", "hooks": [], "plugins": [], "nav": nav}
    (folder / "mkdocs.yml").write_text(json.dumps(settings | {"theme": {"name": "mkdocs"}, "extra_css": []}))
    return build(folder / "mkdocs.yml", folder / "site")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def screenshot(browser: webdriver.Chrome, name: str, folder: Path) -> None:
    """Save what the window shows in the folder, or in the one that FEDDRM_SCREENSHOTS names."""
    place = Path(os.environ.get("FEDDRM_SCREENSHOTS") or folder)
    place.mkdir(parents=True, exist_ok=True)
    browser.save_screenshot(str(place / f"{name}.png"))


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("name", "page"), [("home", "index.html"), ("guide", "theory.html#2-the-model")])
def test_pages_look_right_in_light_and_dark(
    browser: webdriver.Chrome, url: str, tmp_path: Path, scheme: str, name: str, page: str
) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.set_window_size(1300, 900)  # wide enough for the navigation at the left
    browser.get("about:blank")
    browser.get(f"{url}/{page}")
    body = browser.find_element(By.TAG_NAME, "body")
    wait(browser, lambda: body.get_attribute("data-md-color-scheme") == {"light": "default", "dark": "slate"}[scheme])
    wait(
        browser, lambda: all(picture.get_property("complete") for picture in browser.find_elements(By.TAG_NAME, "img"))
    )
    screenshot(browser, f"site-{name}-{scheme}", tmp_path)
    hosts = browser.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert len(hosts) > 3
    assert [host for host in hosts if not host.startswith(url)] == []
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []


@needs_browser
def test_the_search_finds_a_page(browser: webdriver.Chrome, url: str) -> None:
    browser.get(f"{url}/index.html")
    browser.find_element(By.CSS_SELECTOR, ".md-search__input").send_keys("Woodruff")
    wait(browser, lambda: browser.find_elements(By.CSS_SELECTOR, ".md-search-result__link[href*='theory.html']"))
