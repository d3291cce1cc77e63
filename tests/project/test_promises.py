"""Compare the table of mutants with docs/reliability-promises.md and with the source. `make test-mutants` runs the
mutants."""

import ast
import re

import pytest
from mutants import promises, tree

PAGE = (tree.ROOT / "docs/reliability-promises.md").read_text()


def test_each_promise_that_a_mutant_breaks_is_on_the_page_and_its_text_is_in_the_source():
    for promise in promises.PROMISES:
        assert f"`{promise.test}`" in PAGE, promise.test
        ast.parse(promise.mutant())


def test_each_test_on_the_page_exists():
    for file, name in re.findall(r"`([a-z_/0-9]+\.py)::(\w+)`", PAGE):
        assert f"def {name}(" in (tree.ROOT / "tests" / file).read_text(), f"{file}::{name}"


def test_a_mutant_of_a_text_that_is_not_there_once_is_refused():
    with pytest.raises(ValueError, match="0 times"):
        promises.Promise("", "handle.py", "no such text", "").mutant()
