"""The table of firewall backends is complete, and each backend module implements its Protocol in contract.py."""

import inspect
from pathlib import Path

import pytest

from fastcni.kit.firewall import backends, contract
from fastcni.kit.firewall.elements import Store

DIRECTORY = Path(backends.__file__).parent
BACKENDS = [(subject, backend) for subject, modules in backends.TABLE.items() for backend in modules]
ELSEWHERE = {"contract"}         # for type checkers


def methods_of(subject):
    return dict(inspect.getmembers(contract.CONTRACTS[subject], inspect.isfunction))


def test_every_subject_has_a_contract():
    assert [*contract.CONTRACTS] == [*backends.TABLE]


@pytest.mark.parametrize("subject, backend", BACKENDS)
def test_a_backend_has_every_function_of_its_contract_with_the_same_parameters(subject, backend):
    module = backends.load(subject, backend)
    for name, method in methods_of(subject).items():
        promised = [*inspect.signature(method).parameters][1:]          # without self
        assert [*inspect.signature(getattr(module, name)).parameters] == promised, name


def test_type_checkers_compare_every_backend_with_its_contract():
    """contract.py assigns each module to a list of its Protocol."""
    text = Path(contract.__file__).read_text()
    for subject, modules in backends.TABLE.items():
        wanted = f"list[{contract.CONTRACTS[subject].__name__}] = [{', '.join(modules.values()).replace('.', '_')}]"
        assert wanted in text


def test_every_module_that_is_named_for_a_subject_and_a_backend_is_in_the_table():
    names = {f"{subject}.{backend}" for subject in backends.TABLE for backend in ("nftables", "iptables", "firewalld")}
    present = {f"{path.parent.name}.{path.stem}" for path in DIRECTORY.rglob("*.py")} & names
    assert present
    assert present <= {module for modules in backends.TABLE.values() for module in modules.values()}


def test_stores_have_every_set_of_the_own_tables_once():
    found = backends.stores()
    assert all(isinstance(store, Store) for store in found)
    sets = [(store.family, store.table, name) for store in found for name in store.sets]
    assert len(sets) == len({*sets})
    assert {table for _, table, _ in sets} == {"fastcni"}
