"""Fixtures that several test files of this directory share."""

import os

import pytest
from unit.kit.ipam.index import Directory


@pytest.fixture
def directory(tmp_path):
    d = Directory(tmp_path)
    yield d
    os.close(d.fd)
