"""README and docs name files, tests and log events that exist."""

import ast
import re
import shlex
from pathlib import Path

import click

from fastcni.cli.commands import cli

ROOT = Path(__file__).parents[2]
DOCS = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "index.md"]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "deploy/README.md", ROOT / "docs/index.md", *DOCS]
MAX_WORDS = 2000        # of one page


def named(page):
    """Return the local files that a page links to, and the benchmarks that it names."""
    text = page.read_text(encoding="utf-8")
    links = {target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target}
    benchmarks = re.findall(r"benchmarks/[\w./-]*\w", text)
    return {page.parent / link for link in links if link} | {ROOT / name for name in benchmarks}


def read(path):
    return path.read_text(encoding="utf-8") if path.exists() else ""


def test_files_and_figures_that_a_page_names_exist():
    assert [(page.name, str(path)) for page in PAGES for path in sorted(named(page)) if not path.exists()] == []


def tables(page):
    """Yield (the line before the table, the rows) of each table of a page, without lines in code blocks."""
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    before, rows = "", []
    for line in [*text.split("\n"), ""]:
        if line.lstrip().startswith("|") and not line.startswith("    "):
            rows.append(line.strip())
            continue
        if rows:
            yield before, rows
        before, rows = line, []


def test_each_table_of_a_page_renders():
    """Each row must be one line, with as many cells as the table's head. A program that wraps lines had joined rows."""
    for where, before, rows in ((page.name, *table) for page in PAGES for table in tables(page)):
        cells = [len(re.findall(r"(?<!\\)\|", row)) for row in rows]
        assert set(cells) == {cells[0]} and all(row.endswith("|") for row in rows), (where, rows)
        assert re.fullmatch(r"\|(:?-+:?\|)+", rows[1].replace(" ", "")) and not before.strip(), (where, rows)


def test_tests_that_the_page_on_reliability_names_exist():
    text = (ROOT / "docs/reliability-promises.md").read_text(encoding="utf-8")
    tests = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    campaigns = [(file, "campaign") for file in re.findall(r"`(faults/\w+\.py)`", text)]
    assert tests and campaigns
    assert [(file, name) for file, name in tests + campaigns if f"def {name}(" not in read(ROOT / "tests" / file)] == []


def logged_events():
    """Return the names of the server's log events: the first argument of each call that logs."""
    calls = (node for package in ("server", "daemon") for path in (ROOT / "fastcni" / package).rglob("*.py")
             for node in ast.walk(ast.parse(read(path))) if isinstance(node, ast.Call) and node.args
             and isinstance(node.args[0], ast.Constant))
    logs = {"accept_failed", "user_refused", "debug", "info", "warning", "error", "exception", "level", "failed",
            "announce"}
    return {str(call.args[0].value) for call in calls if re.search(r"\w+$", ast.unparse(call.func))[0] in logs}


def test_the_page_on_the_server_has_all_log_events():
    pages = read(ROOT / "docs/server-log.md") + read(ROOT / "docs/server-cluster-ipam.md")
    tables = [part.partition("\n\n")[0] for part in pages.split("| event | level |")[1:]]
    rows = [row for table in tables for row in table.splitlines()[2:]]
    named = {event for row in rows for event in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == logged_events()


def test_the_page_on_speed_shows_figures():
    assert {"latency.svg", "rate.svg", "density.svg"} <= {path.name for path in named(ROOT / "docs/speed.md")}


def headings(page):
    """Return the headings of level 2."""
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^## (.*)$", text, re.MULTILINE)


def contents(page):
    """Return the line below the title that lists the page's headings, or "" for a page with two headings or less."""
    links = [(title.replace("`", ""), re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"))
             for title in headings(page)]
    return "On this page: " + " · ".join(f"[{title}](#{anchor})" for title, anchor in links) if len(links) > 2 else ""


def test_each_page_of_docs_is_short_and_has_its_contents_on_top():
    assert [(page.name, count) for page in DOCS if (count := len(read(page).split())) > MAX_WORDS] == []
    wrong = {page.name: line for page in DOCS if (line := contents(page)) not in ("", read(page).split("\n")[2])}
    assert wrong == {}, "the third line is the page's contents"


def test_the_index_of_docs_lists_each_page():
    listed = re.findall(r"^([a-z-]+)$", read(ROOT / "docs/index.md"), re.MULTILINE)
    assert sorted(f"{name}.md" for name in listed) == [page.name for page in DOCS]


def test_the_readme_has_900_words():
    assert len(read(ROOT / "README.md").split()) <= 900


def commands_of(page):
    """Yield (words after "fastcni", whether the line stands alone) of each command line that a page shows."""
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^(?: {4})?(?:\$ |sudo |python -m )*(fastcni [a-z].*)$", code_of(text), re.MULTILINE)
    # The lines that `fastcni top` prints
    lines = [line for line in lines if not line.startswith("fastcni top  version ")]
    inline = [one.replace("\n", " ") for one in re.findall(r"(?<!`)`(fastcni [a-z][^`]*)`", text)]
    for line, alone in [(line, True) for line in lines] + [(line, False) for line in inline]:
        words = shlex.split(line, comments=True)[1:]
        end = next((at for at, word in enumerate(words) if re.match(r"[0-9]?[|&;><]", word)), len(words))
        yield words[:end], alone


def code_of(text):
    """Return the code blocks of a page: fenced, or indented."""
    fenced = "".join(re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    return fenced + "".join(re.findall(r"^ {4}.*\n", text, re.MULTILINE))


def refusal(words, alone):
    """Return why the command line rejects these words, or "". A command in a sentence may lack arguments."""
    command = cli
    while isinstance(command, click.Group) and words:
        command, words = command.commands.get(words[0]), words[1:]
    try:
        if command is None:
            return "there is no such command"
        command.make_context("fastcni", ["/run/it.sock" if word == "ADDRESS" else word for word in words])
    except click.UsageError as e:
        incomplete = isinstance(command, click.Group) or isinstance(e, click.MissingParameter)
        return "" if incomplete and not alone else e.format_message()
    return ""


def test_the_command_line_takes_each_command_that_a_page_shows():
    """Check that the options exist and that no argument is missing. The test does not run the commands."""
    refused = {(page.name, " ".join(words)): why for page in PAGES for words, alone in commands_of(page)
               if (why := refusal(list(words), alone))}
    assert refused == {}


def test_the_page_on_the_command_names_each_command():
    text = (ROOT / "docs" / "command.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z][\w-]*)", text))
    assert [name for name in cli.commands if name not in named] == []
