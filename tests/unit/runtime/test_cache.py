"""The result cache: it reads the Go library's files, reports damaged files, and writes complete files."""

import errno
import os
from base64 import b64encode

import pytest
from unit.kit.call import not_files

from fastcni.node.attachments.caches import read_cache
from fastcni.runtime import CNI, CniError, RuntimeConf, parse_list
from fastcni.runtime import cache as cache_files
from fastcni.runtime.cache import Cache
from fastcni.spec.result import encode

RT = RuntimeConf("ctr", "/run/netns/c", "eth0", [("own", "arg")], {"mine": 1})
NET = parse_list(b'{"name":"net","cniVersion":"1.0.0"}')

# A file as containerd writes it: capabilities as structs without JSON tags, and a 0.4.0 result with sorted keys.
GO = (b'{"kind":"cniCacheV1","containerId":"ctr","config":"' + b64encode(b'{"the":"list"}') + b'",'
      b'"ifName":"eth0","networkName":"net","netns":"/var/run/netns/c","cniArgs":[["IgnoreUnknown","1"],["K","V"]],'
      b'"capabilityArgs":{"portMappings":[{"HostPort":80,"ContainerPort":8080,"Protocol":"tcp","HostIP":""}]},'
      b'"result":{"cniVersion":"0.4.0","dns":{},"interfaces":[{"name":"eth0"}],'
      b'"ips":[{"address":"10.1.2.3/24","interface":0,"version":"4"}]}}')


@pytest.fixture
def cache(tmp_path):
    (tmp_path / "results").mkdir()
    return Cache(tmp_path)


def put(cache, content, name="net-ctr-eth0"):
    with open(os.path.join(cache.directory, "results", name), "wb") as file:
        file.write(content)


def test_a_file_of_the_go_library_gives_its_result_in_the_lists_version(cache):
    put(cache, GO)
    assert encode(cache.read_result("net", "1.0.0", RT), indent=0) == (
        b'{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}],'
        b'"ips":[{"address":"10.1.2.3/24","interface":0}]}')


def test_a_file_of_the_go_library_gives_its_config_and_args(cache):
    put(cache, GO)
    config, rt = cache.read_config("net", RT)
    assert config == b'{"the":"list"}'
    assert rt.args == (("IgnoreUnknown", "1"), ("K", "V"))
    assert rt.capability_args["portMappings"][0]["HostPort"] == 80
    assert (rt.container_id, rt.netns, rt.ifname) == (RT.container_id, RT.netns, RT.ifname)


def test_args_that_the_file_lacks_are_the_callers_and_capability_args_are_gone(cache):
    put(cache, b'{"kind":"cniCacheV1","containerId":"ctr","config":"e30=",'
               b'"ifName":"eth0","networkName":"net"}')
    config, rt = cache.read_config("net", RT)
    assert (config, rt.args, rt.capability_args) == (b"{}", RT.args, {})


def test_a_bare_result_of_older_libraries_is_read(cache):
    put(cache, b'{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}')
    assert cache.read_result("net", "1.0.0", RT)["ips"] == [{"address": "10.0.0.2/24"}]
    assert cache.read_result("net", "", RT)["cniVersion"] == "0.1.0"


def test_a_file_without_a_result_is_an_empty_one(cache):
    put(cache, b'{"kind":"cniCacheV1"}')
    assert encode(cache.read_result("net", "1.0.0", RT), indent=0) == b'{"cniVersion":"1.0.0"}'


def test_a_missing_cache_file_gives_none(cache):
    assert cache.read_result("net", "1.0.0", RT) is None
    assert cache.read_config("net", RT) is None


DAMAGED = [
    (b"garbage", "1.0.0", "decoding version from network config: "),
    (b'{"cniVersion":5}', "1.0.0", "decoding version from network config: "),
    (b'{"cniVersion":"9.0.0"}', "1.0.0", 'unsupported CNI result version "9.0.0"'),
    (b'{"cniVersion":"1.0.0"}', "0.2.0", 'failed to convert cached result to config version "0.2.0": '
                                         'cannot convert: no valid IP addresses'),
]


@pytest.mark.parametrize("content, version, message", DAMAGED, ids=[str(row[0]) for row in DAMAGED])
def test_the_error_of_a_damaged_result_gives_the_reason(cache, content, version, message):
    put(cache, content)
    with pytest.raises(CniError) as caught:
        cache.read_result("net", version, RT)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("content, message", [
    (b"garbage", 'failed to unmarshal cached network "net" config: '),
    (b'{"cniArgs":[["a"]]}', 'failed to unmarshal cached network "net" config: '),
    (b'{"kind":"cniCacheV1","config":"%"}', 'failed to unmarshal cached network "net" config: '),
    (b'{"kind":"cniCacheV2"}', 'read cached network "net" config has wrong kind: cniCacheV2'),
    (b"{}", 'read cached network "net" config has wrong kind: '),
])
def test_the_error_of_a_damaged_config_gives_the_reason(cache, content, message):
    put(cache, content)
    with pytest.raises(CniError) as caught:
        cache.read_config("net", RT)
    assert str(caught.value).startswith(message)


def test_a_file_needs_all_three_names(cache):
    with pytest.raises(CniError) as caught:
        cache.path("net", RuntimeConf("", "", "eth0"))
    assert str(caught.value) == ('cache file path requires network name ("net"), container ID (""), '
                                 'and interface name ("eth0")')


@pytest.mark.parametrize("rt", [RuntimeConf("../x", "", "e"), RuntimeConf("c", "", "e/../../x"),
                                RuntimeConf("c\0", "", "e")])
def test_no_name_leads_out_of_the_cache(cache, rt):
    with pytest.raises(CniError, match=r"no cache file can be named after"):
        cache.path("net", rt)


def test_attachments_skip_files_that_are_not_results(cache, tmp_path):
    put(cache, GO)
    put(cache, b"garbage", "net-ctr-eth1")
    put(cache, b'{"cniVersion":"1.0.0"}', "net-ctr-eth2")
    put(cache, GO.replace(b'"ifName":"eth0"', b'"ifName":""'), "net-ctr-eth3")
    put(cache, GO, "net-other-eth0")
    (tmp_path / "results" / "net-ctr-directory").mkdir()
    assert [it.ifname for it in cache.attachments("ctr")] == ["eth0"]
    assert cache.attachments("other") == []
    assert len(cache.attachments()) == 2


# The cache files of libcni's versions. 0.7 writes only the result. 0.8 and later write an object with a kind, at first
# without containerId, and before 1.2 without netns.
INSIDE = (b'{"cniVersion":"1.0.0","interfaces":[{"name":"cni0","mac":"02:00:00:00:00:01"},{"name":"veth1"},'
          b'{"name":"net1","sandbox":"/run/netns/other"},{"name":"eth0","sandbox":"/run/netns/c"}],'
          b'"ips":[{"address":"10.1.2.3/24","interface":3}]}')
KINDS = {
    "0.8, without containerId": b'{"kind":"cniCacheV1","config":"e30=","ifName":"eth0","networkName":"net",'
                                b'"result":' + INSIDE + b"}",
    "1.1.2": b'{"kind":"cniCacheV1","containerId":"ctr","config":"e30=","ifName":"eth0","networkName":"net",'
             b'"cniArgs":[["K","V"]],"capabilityArgs":{"mac":"x"},"result":' + INSIDE + b"}",
    "1.2": b'{"kind":"cniCacheV1","containerId":"ctr","config":"e30=","ifName":"eth0","networkName":"net",'
           b'"netns":"/run/netns/c","result":' + INSIDE + b"}",
}


@pytest.mark.parametrize("version", KINDS)
def test_cache_files_of_every_libcni_give_the_namespace_and_the_links(cache, version):
    put(cache, KINDS[version])
    it, = cache.attachments()
    assert (it.network, it.container_id, it.ifname) == ("net", "ctr", "eth0")
    assert (it.netns, it.host_links, it.config) == ("/run/netns/c", ("cni0", "veth1"), b"{}")


def test_a_bare_result_is_an_attachment_only_for_callers_that_need_no_configuration(cache):
    put(cache, INSIDE, "my-net-ctr-eth0")
    put(cache, b'{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}', "net-old-eth0")
    assert cache.attachments() == []
    it, = cache.attachments(without_config=True)
    assert (it.network, it.container_id, it.ifname, it.netns) == ("my-net", "ctr", "eth0", "/run/netns/c")


@pytest.mark.parametrize("interfaces", [b"5", b"[5]", b'[{"name":5,"sandbox":["x"]}]', b"null", b'[{"sandbox":""}]'])
def test_malformed_interfaces_leave_the_namespace_unknown(cache, interfaces):
    put(cache, b'{"kind":"cniCacheV1","containerId":"ctr","config":"e30=","ifName":"eth0","networkName":"net",'
               b'"result":{"cniVersion":"1.0.0","interfaces":' + interfaces + b"}}")
    it, = cache.attachments()
    assert (it.netns, it.host_links) == ("", ())


def test_without_a_directory_there_are_no_attachments(tmp_path):
    assert Cache(tmp_path / "absent").attachments() == []


def test_a_failed_write_leaves_the_old_file_and_no_other(cache, tmp_path, monkeypatch):
    cache.write("net", b"{}", RT, None)
    before = (tmp_path / "results" / "net-ctr-eth0").read_bytes()

    def refuse(old, new):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match=r"No space"):
        cache.write("net", b"{}", RT, {"cniVersion": "1.0.0"})
    assert (tmp_path / "results" / "net-ctr-eth0").read_bytes() == before
    assert os.listdir(tmp_path) == ["results"]


def test_an_interrupt_after_the_rename_ends_the_write(cache, tmp_path, monkeypatch):
    """Once, the write went on: it did not find the temporary file, and wrote another one. `fastcni selftest` continued
    after Ctrl-C."""
    def rename(old, new):
        os.replace(old, new)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        cache.write("net", b"{}", RT, None)
    assert (os.listdir(tmp_path), os.listdir(tmp_path / "results")) == (["results"], ["net-ctr-eth0"])


def test_an_interrupt_after_the_temporary_file_was_made_leaves_no_file(cache, tmp_path, monkeypatch):
    def make(path, flags):
        os.close(os.open(path, flags, 0o600))
        raise KeyboardInterrupt

    monkeypatch.setattr(cache_files, "open_private", make)
    with pytest.raises(KeyboardInterrupt):
        cache.write("net", b"{}", RT, None)
    assert (os.listdir(tmp_path), os.listdir(tmp_path / "results")) == (["results"], [])


def test_results_on_a_file_system_of_their_own_are_written(cache, tmp_path, monkeypatch):
    """The directory is a mount, or a symbolic link to another file system. Once, each ADD failed there with EXDEV."""
    def rename(old, new):
        if os.path.dirname(old) != os.path.dirname(new):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        os.replace(old, new)

    monkeypatch.setattr(os, "rename", rename)
    for config in (b"{}", b'{"a":1}'):
        cache.write("net", config, RT, None)
    assert [it.config for it in cache.attachments()] == [b'{"a":1}']
    assert (os.listdir(tmp_path), os.listdir(tmp_path / "results")) == (["results"], ["net-ctr-eth0"])


def test_a_temporary_file_of_a_killed_write_is_no_attachment(cache):
    put(cache, GO)
    put(cache, GO, ".fastcni-k1ll3d")
    put(cache, GO[:50], ".fastcni-h4lf")
    unread, unseen = [], []
    assert len(cache.attachments(unread=unread)) == len(list(read_cache(cache, unseen))) == 1
    assert (unread, unseen) == ([], [])


def test_an_unread_file_has_advice(cache):
    put(cache, b"")
    assert list(read_cache(cache, unseen := [])) == []
    assert unseen == [f"result cache {cache.directory}/results/net-ctr-eth0: unexpected end of JSON input; remove "
                      "the file when the container has ended: libcni before 1.2.0 sends no DEL as long as the file is "
                      "there, and DEL works without the file"]


def test_a_file_of_a_later_kind_is_reported(cache):
    """Once, `fastcni restore` restored nothing and reported no failure, and doctor reported nothing."""
    put(cache, GO.replace(b"cniCacheV1", b"cniCacheV2"))
    unread, unseen = [], []
    assert cache.attachments(unread=unread) == list(read_cache(cache, unseen)) == []
    for (text,) in ([why for _, why in unread], unseen):
        assert "unknown kind cniCacheV2" in text


def test_the_directory_is_the_objects_then_the_callers_then_the_default(tmp_path):
    rt = RuntimeConf("c", "", "e", cache_dir="/from/rt")
    assert Cache("/own").path("n", rt) == "/own/results/n-c-e"
    assert Cache().path("n", rt) == "/from/rt/results/n-c-e"
    assert Cache().results() == "/var/lib/cni/results"


def test_cached_values_through_the_public_object(cache):
    put(cache, GO)
    cni = CNI([], cache_dir=cache.directory)
    assert cni.cached_result(NET, RT)["cniVersion"] == "1.0.0"
    assert cni.cached_config(NET, RT)[0] == b'{"the":"list"}'
    assert [it.container_id for it in cni.attachments()] == ["ctr"]


@pytest.mark.parametrize("kind", [kind for kind in not_files.KINDS if kind != "link"])
def test_a_pipe_or_directory_among_the_results_is_skipped(cache, kind):
    """open() waits for a FIFO. Once, restore, replay and gc hung."""
    put(cache, GO)
    not_files.KINDS[kind](os.path.join(cache.directory, "results", "net-other-eth0"))
    assert [it.container_id for it in cache.attachments()] == ["ctr"]
    assert cache.read("net", RuntimeConf("other", "", "eth0")) is None


def test_a_directory_that_cannot_be_made_is_an_error():
    """Below /proc, the kernel says that the parent directory is missing, although it exists. Once, fastcni tried for
    ever to make it."""
    with pytest.raises(FileNotFoundError):
        Cache("/proc/fastcni").write("net", b"{}", RT, None)


def test_directories_and_files_of_the_cache_are_private(tmp_path):
    before = os.umask(0)
    try:
        Cache(tmp_path / "above" / "cni").write("net", b"{}", RT, None)
    finally:
        os.umask(before)
    for directory in ("above", "above/cni", "above/cni/results"):
        assert (tmp_path / directory).stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "above/cni/results/net-ctr-eth0").stat().st_mode & 0o777 == 0o600
