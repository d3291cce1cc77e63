"""Network configurations. Comments such as C9 number the cases of libcni's behaviour."""

import json
import os

import pytest

from fastcni.runtime import (
    CniError,
    ConfError,
    NoConfigsFound,
    NotFound,
    list_of_plugin,
    load_list_file,
    load_network,
    parse_list,
    parse_plugin,
)
from fastcni.runtime.inject import inject

LIST = "error parsing configuration list: "
ONE = [{"type": "a"}]


def parsed(**content):
    return parse_list(json.dumps({"name": "net", **content}).encode())


REFUSED = [
    ("C1", {"plugins": ONE}, f"{LIST}no name"),
    ("C2", {"name": 5}, f"{LIST}invalid name type float64"),
    ("C2-null", {"name": None}, f"{LIST}invalid name type <nil>"),
    ("C2-object", {"name": {}}, f"{LIST}invalid name type map[string]interface {{}}"),
    ("version-type", {"name": "n", "cniVersion": [1]}, f"{LIST}invalid cniVersion type []interface {{}}"),
    ("C7", {"name": "n", "cniVersion": "abc", "cniVersions": []}, f"{LIST}invalid cniVersion abc: *"),
    ("C8", {"name": "n", "cniVersions": "1.0.0"}, f"{LIST}invalid type for cniVersions: []interface {{}}"),
    ("C8-null", {"name": "n", "cniVersions": None}, f"{LIST}invalid type for cniVersions: []interface {{}}"),
    ("versions-entry-type", {"name": "n", "cniVersions": ["1.0.0", 1]},
     f"{LIST}invalid type for cniVersions index 1: float64"),
    ("versions-entry", {"name": "n", "cniVersions": ["x"]},
     f"{LIST}invalid cniVersions entry x at index 0: *"),
    ("C10", {"name": "n", "disableGC": "Yes"}, f'{LIST}invalid value "yes" for disableGC'),
    ("C11", {"name": "n", "disableCheck": None}, f"{LIST}invalid type <nil> for disableCheck"),
    ("C12", {"name": "n", "plugins": []}, f"{LIST}no plugins in list"),
    ("C13", {"name": "n", "loadOnlyInlinedPlugins": True},
     f"{LIST}`loadOnlyInlinedPlugins` is true, and no 'plugins' key"),
    ("plugins-type", {"name": "n", "plugins": {}}, f"{LIST}invalid 'plugins' type map[string]interface {{}}"),
    ("C25", {"name": "n", "plugins": [{"type": "a", "capabilities": {"x": "true"}}]},
     "failed to parse plugin config 0: error parsing configuration: *"),
    ("plugin-null", {"name": "n", "plugins": [{"type": "a"}, None]},
     "failed to parse plugin config 1: error parsing configuration: missing 'type'"),
]


@pytest.mark.parametrize("content, message", [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_the_error_of_a_refused_list_gives_the_reason(content, message):
    with pytest.raises(ConfError) as caught:
        parse_list(json.dumps(content).encode())
    if message.endswith("*"):
        assert caught.value.msg.startswith(message[:-1])
    else:
        assert caught.value.msg == message


@pytest.mark.parametrize("raw", [
    b"", b"{", b"[]", b'{"name":"n"} x', b'{"name":"n",}', b"\xef\xbb\xbf{}", b"NaN"])
def test_bytes_that_are_no_object_are_refused(raw):
    with pytest.raises(ConfError, match=r"^error parsing configuration list: "):
        parse_list(raw)
    with pytest.raises(ConfError, match=r"^error parsing configuration: "):
        parse_plugin(raw)


SELECTED = [
    ("C3", None, ["1.1.0", "0.4.0", "99.0.0"], "1.1.0"),
    ("C4", "1.0.0", ["0.1.0", "0.4.0"], "1.0.0"),
    ("C5", "1.3.0", ["0.4.0"], "0.4.0"),
    ("C6", "1.3.0", ["1.2.0"], "1.3.0"),
    ("C7-alone", "abc", None, "abc"),
    ("nothing", None, None, ""),
    ("as-written", None, ["1.0", "0.4.0"], "1.0"),
    ("empty-list", "0.4.0", [], "0.4.0"),
]


@pytest.mark.parametrize("given, versions, selected", [row[1:] for row in SELECTED],
                         ids=[row[0] for row in SELECTED])
def test_the_version_is_the_newest_that_is_known_here(given, versions, selected):
    content = {"cniVersion": given, "cniVersions": versions}
    assert parsed(**{key: value for key, value in content.items() if value is not None}).version == selected


def test_flags_may_be_strings_in_any_case():                                      # C9
    net = parsed(disableCheck="True", disableGC="FALSE")
    assert (net.disable_check, net.disable_gc, net.only_inlined_plugins) == (True, False, False)


def test_the_keys_of_a_list_are_matched_exactly_and_those_of_a_plugin_in_any_case():
    with pytest.raises(ConfError, match=r"no name"):
        parse_list(b'{"Name":"n"}')
    plugin = parse_plugin(b'{"TYPE":"a","Name":"n","CNIVERSION":"1.0.0","Capabilities":{"mac":true}}')
    assert (plugin.type, plugin.name, plugin.version) == ("a", "n", "1.0.0")
    assert plugin.capabilities == {"mac": True}


@pytest.mark.parametrize("extra", [
    {"name": 5}, {"cniVersion": 1.0}, {"type": 1}, {"capabilities": []}, {"capabilities": {"a": 1}},
    {"ipam": "x"}, {"ipam": {"type": 5}}, {"dns": []}, {"dns": {"search": "x"}},
    {"dns": {"nameservers": [1]}}, {"prevResult": 5},
], ids=str)
def test_the_typed_keys_of_a_plugin_are_typed(extra):
    with pytest.raises(ConfError, match=r"^error parsing configuration: "):
        parse_plugin(json.dumps({"type": "a", **extra}).encode())


def test_null_and_unknown_keys_of_a_plugin_are_ignored():
    plugin = parse_plugin(b'{"type":"a","name":null,"dns":null,"capabilities":null,"mtu":"whatever"}')
    assert (plugin.name, plugin.capabilities) == ("", {})


# Files ------------------------------------------------------------------------------------------

def test_a_list_without_plugins_and_directory_is_refused(stage):                     # C14
    stage.conf("net.conflist", {"name": "net"})
    with pytest.raises(ConfError, match=r"/net\.conflist: no plugin configs found$"):
        load_network(stage.net_d, "net")


def directory_stage(stage, **extra):
    stage.conf("net.conflist", {"name": "net", "plugins": [{"type": "inl"}], **extra})
    for name, kind in (("20-b.conf", "20-b"), ("10-a.conf", "10-a"), (".conf", ".conf"),
                       ("05.conflist", "no"), ("05.json", "no")):
        stage.conf(f"net/{name}", {"type": kind, "f": 1.0})
    (stage.net_d / "net" / "sub.conf").mkdir()
    return load_network(stage.net_d, "net")


def test_plugins_of_the_directory_come_after_the_inlined_ones_sorted(stage):         # C15
    net = directory_stage(stage)
    assert [plugin.type for plugin in net.plugins] == ["inl", ".conf", "10-a", "20-b"]
    assert net.plugins[1].raw == (stage.net_d / "net" / ".conf").read_bytes()
    assert net.raw == (stage.net_d / "net.conflist").read_bytes()


def test_load_only_inlined_plugins_ignores_the_directory(stage):                     # C16
    assert [plugin.type for plugin in directory_stage(stage, loadOnlyInlinedPlugins=True).plugins] == ["inl"]


def test_a_bad_plugin_in_the_directory_fails_the_load(stage):                        # C17
    stage.conf("net/x.conf", {"mtu": 1})
    with pytest.raises(ConfError, match=r"/net/x\.conf: error parsing configuration: missing 'type'$"):
        directory_stage(stage)


def test_a_missing_directory_is_the_same_as_an_empty_one(stage):                           # C18
    for where in (stage.net_d, stage.where / "absent"):
        with pytest.raises(NoConfigsFound) as caught:
            load_network(where, "net")
        assert str(caught.value) == f"no net configurations found in {where}"


def test_a_network_without_a_file_is_not_found(stage):                                                 # C19
    stage.conf("a.conflist", {"name": "a", "plugins": ONE})
    stage.conf("b.conf", {"name": "b", "type": "b"})
    with pytest.raises(NotFound) as caught:
        load_network(stage.net_d, "net")
    assert str(caught.value) == f'no net configuration with name "net" in {stage.net_d}'


@pytest.mark.parametrize("name, content", [
    ("1.conflist", "{"), ("3.conflist", "{"), ("1.conflist", '{"name": "other", "plugins": []}'),
    ("1.conflist", '{"name": "other"'), ("1.conflist", b"\xff\xfe"), ("1.conflist", "")])
def test_a_broken_file_does_not_keep_another_network_from_being_used(stage, name, content):      # C20
    # Unlike fastcni, the Go library rejects each network whose file comes later, without the bad file's name.
    stage.conf("2.conflist", {"name": "net", "plugins": ONE})
    stage.conf(name, content)
    warnings = []
    assert load_network(stage.net_d, "net", warnings.append).name == "net"
    assert [f"{stage.net_d}/1.conflist" in text for text in warnings] == [True] * (name == "1.conflist")


@pytest.mark.parametrize("name, content", [
    ("1.conflist", '{"name": "net", "plugins": [{"type": "a",}]}'),
    ("1.conflist", '{"name": "net", "plugins": []}'),
    ("1.conf", '{"name": "net", "mtu": 1}'),
])
@pytest.mark.parametrize("more", [False, True])
def test_the_broken_file_of_the_network_itself_is_the_error(stage, name, content, more):
    # A second file with this network's name must not be used without an error.
    stage.conf(name, content)
    if more:
        stage.conf("2.conf", {"name": "net", "type": "a"})
    with pytest.raises(ConfError, match=rf"/{name}: "):
        load_network(stage.net_d, "net", pytest.fail)


def test_a_network_that_is_not_found_beside_a_broken_file_names_the_file(stage):
    stage.conf("1.conflist", "{")
    with pytest.raises(NotFound) as caught:
        load_network(stage.net_d, "net", lambda text: None)
    assert caught.value.details == f"broken files were skipped: {stage.net_d}/1.conflist"


def test_a_broken_file_is_logged_if_no_caller_takes_the_warning(stage, caplog):
    stage.conf("1.conflist", "{")
    stage.conf("2.conflist", {"name": "net", "plugins": ONE})
    load_network(stage.net_d, "net")
    assert f"skipped a broken network configuration: {stage.net_d}/1.conflist: " in caplog.text


def test_a_fifo_among_the_files_is_skipped_and_not_waited_for(stage):
    os.mkfifo(stage.net_d / "1.conflist")
    stage.conf("2.conflist", {"name": "net", "plugins": ONE})
    warnings = []
    assert load_network(stage.net_d, "net", warnings.append).name == "net"
    assert "1.conflist: not a regular file" in warnings[0]


def test_a_plugin_knows_its_place_and_its_file(stage):
    net = directory_stage(stage)
    assert [plugin.index for plugin in net.plugins] == [0, 1, 2, 3]
    assert [plugin.file for plugin in net.plugins] == [
        f"{stage.net_d}/{name}" for name in ("net.conflist", "net/.conf", "net/10-a.conf", "net/20-b.conf")]
    single = stage.conf("1.conf", {"name": "single", "type": "a"})
    assert load_network(stage.net_d, "single").plugins[0].file == str(single)


def test_the_first_of_two_lists_with_one_name_is_used(stage):                    # C21
    stage.conf("2.conflist", {"name": "net", "plugins": [{"type": "second"}]})
    stage.conf("1.conflist", {"name": "net", "plugins": [{"type": "first"}]})
    assert load_network(stage.net_d, "net").plugins[0].type == "first"


def test_a_conflist_comes_before_a_conf(stage):                                   # C22
    stage.conf("1.conf", {"name": "net", "type": "single"})
    stage.conf("2.conflist", {"name": "net", "plugins": [{"type": "listed"}]})
    stage.conf("0.CONFLIST", {"name": "net", "plugins": [{"type": "wrong case"}]})
    assert load_network(stage.net_d, "net").plugins[0].type == "listed"


def test_conf_and_json_files_are_sorted_together(stage):
    stage.conf("2.conf", {"name": "net", "type": "two"})
    stage.conf("1.json", {"name": "net", "type": "one"})
    assert load_network(stage.net_d, "net").plugins[0].type == "one"


def test_the_flags_of_a_single_configuration_stay_in_it(stage):                   # C23
    stage.conf("1.conf", {"name": "net", "type": "a", "cniVersion": "0.4.0", "disableCheck": True,
                          "cniVersions": ["1.0.0"], "f": 1.0})
    net = load_network(stage.net_d, "net")
    assert (net.version, net.disable_check) == ("0.4.0", False)
    assert net.raw == (b'{"cniVersion":"0.4.0","name":"net","plugins":[{"cniVersion":"0.4.0",'
                       b'"cniVersions":["1.0.0"],"disableCheck":true,"f":1,"name":"net","type":"a"}]}')


def test_a_list_in_a_conf_file_is_no_plugin(stage):                               # C24
    stage.conf("1.conf", {"name": "net", "plugins": ONE})
    with pytest.raises(ConfError, match=r"/1\.conf: error parsing configuration: missing 'type'$"):
        load_network(stage.net_d, "net")


def test_a_dangling_link_before_the_match_is_skipped_with_a_warning(stage):
    (stage.net_d / "1.conflist").symlink_to("nowhere")
    stage.conf("2.conflist", {"name": "net", "plugins": ONE})
    warnings = []
    assert load_network(stage.net_d, "net", warnings.append).name == "net"
    assert f"error reading {stage.net_d}/1.conflist: no such file or directory" in warnings[0]


def test_a_file_in_the_place_of_the_directory_is_an_error(stage):
    with pytest.raises(ConfError, match=r"not a directory"):
        load_network(stage.conf("file", "x"), "net")


@pytest.mark.parametrize("name", ["", "..", "../net.d", "a/b"])
def test_an_invalid_name_never_becomes_a_directory(stage, name):
    # Unlike fastcni, the Go library follows this path.
    stage.conf("a.conf", {"type": "from outside"})
    path = stage.conf("1.conflist", {"name": name, "plugins": ONE})
    with pytest.raises(CniError) as caught:
        load_list_file(path)
    assert caught.value.code == 7
    with pytest.raises(CniError):
        load_network(stage.net_d, name)


def test_a_bad_name_does_not_hide_the_other_networks(stage):
    stage.conf("1.conflist", {"name": "a b", "plugins": ONE})
    stage.conf("2.conflist", {"name": "net", "plugins": ONE})
    assert load_network(stage.net_d, "net").name == "net"


def test_a_huge_file_is_not_read(stage, monkeypatch):
    monkeypatch.setattr("fastcni.runtime.discover.MAX_CONF_BYTES", 100)
    path = stage.conf("1.conflist", b" " * 101)
    with pytest.raises(ConfError, match=r"more than 100 bytes"):
        load_list_file(path)


# Injection --------------------------------------------------------------------------------------

def test_injected_numbers_are_those_of_go():                                      # C26
    plugin = parse_plugin(b'{"type":"a","n":12345678901234567890,"f":1.0}')
    assert inject(plugin, {"name": "x"}) == b'{"f":1,"n":12345678901234567000,"name":"x","type":"a"}'


def test_injection_refuses_empty_keys_and_values():                                            # C27
    plugin = parse_plugin(b'{"type":"a"}')
    with pytest.raises(ConfError, match=r"^keys cannot be empty$"):
        inject(plugin, {"": 1})
    with pytest.raises(ConfError, match=r"^key 'test' value must not be nil$"):
        inject(plugin, {"test": None})


def test_injected_keys_are_matched_exactly():
    plugin = parse_plugin('{"type":"a","Name":"old","x":"<é>"}'.encode())
    assert inject(plugin, {"name": "n"}).decode() == (
        '{"Name":"old","name":"n","type":"a","x":"\\u003cé\\u003e"}')


def test_a_single_plugin_becomes_a_list_with_its_own_name():
    net = list_of_plugin(parse_plugin(b'{"type":"a","name":"n"}'))
    assert (net.name, net.version, [plugin.type for plugin in net.plugins]) == ("n", "", ["a"])
