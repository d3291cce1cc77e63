"""Parts of a plugin file. A part has modules that are imported late and together."""

import subprocess
import sys

from fastcni.kit.firewall import backends
from fastcni.launcher import modules
from fastcni.launcher.needs import common, groups, in_one_part, late_groups, needed

NEEDS = {"nftables": ["elements"], "iptables": ["program", "names"], "both": ["elements", "program"],
         "elements": ["names"], "names": [], "program": []}
ENDS = ["nftables", "iptables", "both"]

# A file of two parts: one has `low`, the other has `high` and `other`. `high` imports `low`. `low` raises while
# sys.broken is true.
LOAD = """
import marshal, os, sys
from fastcni.launcher.bootstrap import Finder

def part(*named):
    data = marshal.dumps([(name, "", "", False, compile(text, name, "exec")) for name, text in named])
    at = os.fstat(fd).st_size
    os.pwrite(fd, data, at)
    return at, len(data)

fd = os.memfd_create("file")
low = part(("low", "import sys; sys.ran.append(__name__); assert not sys.broken; value = 1"))
high = part(("other", "import sys; sys.ran.append(__name__)"), ("high", "from low import value; import other"))
late = {"low": ("group", [low], 0), "other": ("group", [high], 0), "high": ("group", [low, high], 0)}
sys.meta_path.insert(0, Finder(fd, {}, marshal.dumps(late)))
sys.ran, sys.broken = [], BROKEN
try:
    import high
except AssertionError:
    print("failed", *sys.ran)
    sys.broken, sys.ran = False, []
import high
import low
print(high.value, high.other is sys.modules["other"], low.value, *sys.ran)
"""


def load(broken):
    done = subprocess.run([sys.executable, "-c", LOAD.replace("BROKEN", str(broken))], capture_output=True, text=True,
                          check=True, timeout=60)
    return done.stdout.splitlines()


def test_the_import_of_one_module_runs_its_parts_once():
    assert load(False) == ["1 True 1 low other"]


def test_an_import_that_failed_can_be_repeated():
    """A rollback may need a module whose import failed before, for example for lack of memory."""
    assert load(True) == ["failed low", "1 True 1 low other"]


def test_modules_that_the_same_ends_need_are_a_group():
    assert sorted(map(sorted, groups(ENDS, NEEDS))) == [
        ["both"], ["elements"], ["iptables"], ["names"], ["nftables"], ["program"]]
    assert sorted(map(sorted, groups(["nftables"], NEEDS))) == [["elements", "names", "nftables"]]


def test_groups_are_in_an_order_in_which_they_can_be_run():
    order = [name for group in groups(ENDS, NEEDS) for name in group]
    assert all(order.index(each) < order.index(name) for name in order for each in NEEDS[name])


def test_the_part_of_another_distributions_plugin_has_the_modules_that_its_modules_import():
    own = modules.own({})
    imports = {"sample": ("sample.more", "sample"), "sample.more": ("fastcni.kit.ovs.cache",)}
    theirs = {name: modules.Module(name, False, b"", None, names) for name, names in imports.items()}
    found = needed(own, {"sample": theirs})["sample"]
    assert {"fastcni.handle", "fastcni.kit.ovs.cache", "fastcni.kit.call.files"} <= {*found} <= {
        *own, *(f"fastcni.{leaf}" for leaf in modules.LEAVES)}


def test_each_firewall_backend_is_in_a_group_with_the_groups_that_it_needs():
    own = modules.own({})
    every = common(needed(own, {}).values())
    found = late_groups(own, every)
    of = {name: numbers for group, numbers in found for name in group}
    names = [f"fastcni.kit.firewall.{module}" for subject in backends.TABLE.values() for module in subject.values()]
    assert {*names} <= {*of} <= own.keys() - every
    needs = of["fastcni.kit.firewall.masquerade.nftables"]
    assert "fastcni.kernel.nft" in {name for number in needs for name in found[number][0]}
    assert needs == sorted(needs)


def test_modules_of_one_part_are_found_if_equal_parts_count_as_one():
    assert in_one_part({"cluster": ["grid", "find"], "whereabouts": ["grid", "find"], "bridge": ["find", "vlans"]}) == {
        "grid": "whereabouts", "vlans": "bridge"}
