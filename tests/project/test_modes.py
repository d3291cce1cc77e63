"""Each mode implements the contract kit.call.mode.Mode. No plugin and no kit module reads in which mode it runs."""

import inspect
from pathlib import Path

import pytest

import fastcni
from fastcni.kit.call.mode import Mode
from fastcni.launcher.one_shot import OneShotMode
from fastcni.runtime.iptables_batch import BatchMode
from fastcni.runtime.mode import InProcessMode, SharedMode
from fastcni.server.requests.mode import WarmMode

# Methods that only the entry points call
OF_THE_ENTRY_POINT = {WarmMode: {"begin", "forget_request"}, BatchMode: {"carry_out"}}
PACKAGE = Path(fastcni.__file__).parent


@pytest.mark.parametrize("mode", [OneShotMode, InProcessMode, SharedMode, BatchMode, WarmMode])
def test_a_mode_overrides_methods_of_the_contract_with_their_parameters(mode):
    for name, method in vars(mode).items():
        if not inspect.isfunction(method) or name == "__init__" or name in OF_THE_ENTRY_POINT.get(mode, ()):
            continue
        assert hasattr(Mode, name), f"{mode.__name__}.{name} is not in the contract"
        assert [*inspect.signature(method).parameters] == [*inspect.signature(getattr(Mode, name)).parameters]


@pytest.mark.parametrize("layer", ["kernel", "clients", "kit", "plugins"])
def test_nothing_below_the_entry_points_names_a_mode(layer):
    names = ("OneShotMode", "InProcessMode", "SharedMode", "BatchMode", "WarmMode", "isinstance(req.mode")
    for path in (PACKAGE / layer).rglob("*.py"):
        if path != PACKAGE / "kit/call/mode.py":            # mode.py names the modes in its docstring
            assert not [name for name in names if name in path.read_text()], path
