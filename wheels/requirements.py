"""Print the requirements of an extra of pyproject.toml, one a line, or with "build" those of the build."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
extra = sys.argv[1]
needed = project["build-system"]["requires"] if extra == "build" else project["project"]["optional-dependencies"][extra]
print(*(text.replace(" ", "") for text in needed), sep="\n")
