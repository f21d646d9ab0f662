"""The files of a report: whole without a network, escaped, in both languages, and made as far as the machine can."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

import oelm as package
from oelm.errors import UserError
from oelm.reporting import paper, words
from oelm.reporting import report as reporting
from oelm.reporting.content import SENTENCES
from oelm.reporting.report import report, up_to_date
from oelm.runfolder import RunFolder, find_runs
from oelm.wording import Said
from tests.conftest import needs, oelm

SOURCE = Path(package.__file__).parent


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self._open: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = None

    def handle_data(self, data: str) -> None:
        if self._open in ("h1", "h2", "h3", "th", "dt", "figcaption", "title"):
            self.headings.append(data.strip())


@pytest.fixture(scope="module")
def html(runs: list[RunFolder], tmp_path_factory: pytest.TempPathFactory) -> str:
    (path,) = report(runs, tmp_path_factory.mktemp("page") / "page.html").paths
    return path.read_text()


def test_the_page_needs_nothing_else(html: str) -> None:
    assert len(html.encode()) < 3_000_000
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.tags}
    links = [value for _, attributes in page.tags for name, value in attributes.items() if name in LINKS]
    assert links
    assert all(value is not None and value.startswith("#") for value in links)
    assert "url(http" not in html
    assert "@import" not in html


LINKS = ("href", "src", "xlink:href", "action", "srcset", "data")


def test_the_page_is_for_dark_rooms_phones_and_paper(html: str) -> None:
    for sign in ("prefers-color-scheme: dark", "@media print", 'name="viewport"', "currentColor"):
        assert sign in html
    assert "#010203" not in html  # the figures' own ink


def test_every_figure_can_be_heard(html: str) -> None:
    figures = [attributes for tag, attributes in Page(html).tags if tag == "svg" and attributes.get("role") == "img"]
    assert len(figures) == 11
    assert all(attributes["aria-label"] for attributes in figures)


HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(2)>\"'`|[x](javascript:alert(3))"


def test_what_a_stranger_wrote_is_shown_and_does_nothing(copied: Path, tmp_path: Path) -> None:
    for run in find_runs([copied]):
        path = run.path / "manifest.json"
        manifest = json.loads(path.read_text())
        manifest["learning_rate"]["how"] = HOSTILE
        manifest["sessions"][0] |= {"device": HOSTILE, "command": [HOSTILE], "versions": {HOSTILE: HOSTILE}}
        path.write_text(json.dumps(manifest))
        timing = run.path / "timing_stats.json"
        content = json.loads(timing.read_text())
        timing.write_text(json.dumps({**content, "seconds_by_part": {**content["seconds_by_part"], HOSTILE: 1.0}}))
        (run.path / "samples" / "step-10.txt").write_text(f"{HOSTILE}\n```\n# not a heading\n````\n")
    failed = copied / "oelm_v2" / "seed-1" / "status.json"
    failed.write_text(json.dumps({**json.loads(failed.read_text()), "state": "failed", "message": HOSTILE}))
    page = report(find_runs([copied]), tmp_path / "a.html").paths[0].read_text()
    parsed = Page(page)
    assert "script" not in {tag for tag, _ in parsed.tags}
    assert "img" not in {tag for tag, _ in parsed.tags}
    assert not [name for _, attributes in parsed.tags for name in attributes if name.startswith("on")]
    assert page.count("&lt;script&gt;alert(1)") >= 5
    assert "default-src 'none'" in page
    markdown = report(find_runs([copied]), tmp_path / "a.md").paths[0].read_text()
    fences = re.compile(r"^(`{3,})text\n.*?^\1$", flags=re.DOTALL | re.MULTILINE)
    outside = fences.sub("", markdown)
    assert "not a heading" not in outside
    assert "<script" not in outside
    assert "<img" not in outside
    assert not re.search(r"(?<!\\)\]\(javascript", outside)
    for path in (tmp_path / "a-figures").iterdir():
        assert "<script" not in path.read_text()


def test_markdown_has_its_figures_beside_it(runs: list[RunFolder], tmp_path: Path) -> None:
    (path,) = report(runs, tmp_path / "docs" / "results.md").paths
    named = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", path.read_text())
    assert len(set(named)) == 11 + 2  # and a swatch per variant
    assert {path.parent / name for name in named} == set((path.parent / "results-figures").iterdir())
    for name in named:
        svg = (path.parent / name).read_text()
        assert "currentColor" not in svg
        assert 'fill="#ffffff"' in svg  # it cannot know whether the page around is dark


def test_a_report_says_the_same_each_time(runs: list[RunFolder], tmp_path: Path) -> None:
    first, again = (report(runs, tmp_path / f"{i}.html").paths[0].read_bytes() for i in (1, 2))
    assert first == again


def test_the_pdf_has_the_verdict_on_its_first_page(runs: list[RunFolder], tmp_path: Path) -> None:
    needs("pango")
    (path,) = report(runs, tmp_path / "report.pdf").paths
    assert path.read_bytes().startswith(b"%PDF")
    assert path.stat().st_size > 20_000


def test_without_a_system_library_one_line_names_it_and_the_page_is_there(
    runs: list[RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weasyprint.py").write_text(
        "print('-----')\n"
        "raise OSError(\"cannot load library 'libpango-1.0-0': no such file.  Additionally, …\\nand more lines\")"
    )
    monkeypatch.delitem(sys.modules, "weasyprint", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    written = report(runs, tmp_path)
    assert [path.name for path in written.paths] == ["report.html", "report.md"]
    (note,) = written.notes
    packages = paper.PACKAGES["pango"]
    assert note == f"no PDF: the system library pango-1.0-0 is missing (Debian: apt install {packages})"


def test_a_chinese_report_has_no_english_headings(runs: list[RunFolder], tmp_path: Path) -> None:
    written = report(runs, tmp_path / "zh.html", lang="zh")
    page = written.paths[0].read_text()
    assert 'lang="zh-Hans"' in page
    headings = Page(page).headings
    assert len(headings) > 40
    names = {"OELM-Freeze", "storybook", "nano", "OELM", "sha256", "s"}
    for heading in headings:
        english = set(re.findall(r"[A-Za-z][\w-]+", heading)) - names
        assert not english, heading
    notes = re.findall(r'<p class="note">(.*?)</p>', page)
    assert len(notes) == 7
    assert all(re.search("[\u4e00-\u9fff]", note) for note in notes)
    labels = re.findall(r"<text[^>]*>([^<]*[A-Za-z\u4e00-\u9fff][^<]*)</text>", page)
    assert "已训练词元数" in labels
    assert not {label for label in labels if re.search("[A-Za-z]{3}", label) and label not in names}


def test_every_sentence_has_its_chinese() -> None:
    """With the same places to fill."""
    nodes = [node for path in SOURCE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    named: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            named.setdefault(getattr(node.targets[0], "id", ""), set()).add(node.value.value)
    templates = set(SENTENCES.values())
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Said":
            first = node.args[0]
            assert not isinstance(first, ast.JoinedStr), ast.unparse(first)  # nobody could translate it
            templates |= {str(first.value)} if isinstance(first, ast.Constant) else named.get(ast.unparse(first), set())
    chinese = words.chinese()
    assert len(templates) > 50
    assert templates <= set(chinese)
    for english, translated in chinese.items():
        assert sorted(re.findall(r"\{[^}]*\}", english)) == sorted(re.findall(r"\{[^}]*\}", translated)), english
    lines = (SOURCE / "reporting" / "chinese.yaml").read_text().splitlines()
    assert len(chinese) == sum(line.startswith('"') for line in lines)  # none stands there twice
    assert yaml.safe_load("\n".join(lines)) == chinese


def test_sentences_are_said_in_chinese() -> None:
    say = words.translator("zh")
    ran = [Said("{title} ran with {what}", title=name, what="engine eager") for name in ("Baseline", "OELM-Freeze")]
    assert say(Said("step times are not comparable: {ran}", ran=ran)) == (
        "每步用时不可比较：基线 使用 engine eager；OELM-Freeze 使用 engine eager"
    )
    assert say("Baseline (max_lr 0.003)") == "基线 (max_lr 0.003)"
    assert say("a word of a stranger") == "a word of a stranger"


def test_where_no_chinese_font_is_one_line_says_which_to_install(
    runs: list[RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matplotlib.font_manager.findSystemFonts", lambda: ["/usr/share/fonts/DejaVuSans.ttf"])
    written = report(runs, tmp_path / "zh.html", lang="zh")
    assert written.paths[0].exists()
    (note,) = written.notes
    assert "fonts-noto-cjk" in note
    assert not report(runs, tmp_path / "en.html").notes


def test_a_report_is_up_to_date_until_a_run_is_younger(copied: Path, tmp_path: Path) -> None:
    runs = find_runs([copied])
    page = tmp_path / "report.html"
    assert not up_to_date([page], runs)
    page.write_text("")
    assert up_to_date([page], runs)
    later = page.stat().st_mtime + 10
    os.utime(runs[0].evals, (later, later))
    assert not up_to_date([page], runs)


def test_wrong_wishes_are_named(runs: list[RunFolder], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown language 'cn'.*There are: en, zh"):
        report(runs, tmp_path, lang="cn")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="there is a file of that name"):
        report(runs, tmp_path / "file" / "below")


def test_the_command_writes_beside_the_runs_what_it_names(copied: Path) -> None:
    result = oelm("report", "outputs/baseline", "outputs/oelm_v2", "--criterion", "1.1", cwd=copied.parent)
    assert result.returncode == 0, result.stderr
    names = result.stdout.split()
    assert names[0] == "outputs/report/report.html"
    assert names[-1] == "outputs/report/report.md"
    for name in names:
        assert (copied.parent / name).exists()
    page = (copied / "report" / "report.html").read_text()
    assert "1.1 ×" in page
    result = oelm("report", "--out", "only.md", cwd=copied.parent)
    assert result.stdout == "only.md\n"
    assert result.returncode == 0, result.stderr


def test_python_has_it_too(outputs: Path, tmp_path: Path) -> None:
    written = package.report(outputs, tmp_path / "report.html")
    assert str(written) == str(tmp_path / "report.html")
    assert reporting.common_folder(find_runs([outputs])) == outputs
