"""Read the commands of docs/runtimes.md, which the tests run."""

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "runtimes.md"


def commands(heading):
    """Return the code blocks below a heading of the page, up to the next heading."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.lstrip("#").strip() == heading and line.startswith("#"))
    blocks, inside = [], False
    for line in lines[start + 1:]:
        if line.startswith("#"):
            break
        if line.startswith("    "):
            if not inside:
                blocks.append([])
            blocks[-1].append(line[4:])
        inside = line.startswith("    ")
    return ["\n".join(block) for block in blocks]
