"""A namespace is GONE only by proof. If this process cannot see the namespace, it is UNKNOWN, and fastcni keeps its
pod."""

import json
import os
import subprocess
import sys
import tempfile
import time

import namespace_files
import pytest

from fastcni.kernel import presence
from fastcni.kernel.presence import ALIVE, GONE, UNKNOWN, state_of
from fastcni.runtime import Attachment, collect
from fastcni.testing.namespaces import run

ABSENT_PID = 4194305            # one more than PID_MAX_LIMIT
OWN = "/proc/self/ns/net"
HELPER = """
import json, sys
from fastcni.kernel import presence
for line in sys.stdin:
    name, *args = json.loads(line)
    print(json.dumps(list(getattr(presence, name)(*args))), flush=True)
"""


def now():
    """Return the mtime that a file written now would have."""
    with tempfile.NamedTemporaryFile() as file:
        return os.fstat(file.fileno()).st_mtime


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "netns").mkdir()
    return tmp_path / "netns"


@pytest.fixture
def mounted(directory):
    """Return a function mounted(name). It mounts a network namespace on a file in the directory, and returns the file's
    path."""
    paths = []

    def mount(name):
        path = directory / name
        path.touch()
        run("mount", "--bind", OWN, path)
        paths.append(path)
        return str(path)

    yield mount
    for path in paths:
        if os.path.ismount(path):
            run("umount", path)


@pytest.fixture
def elsewhere():
    """Return a function elsewhere(*unshare_options, before="true") that starts a process in other namespaces. It
    returns a function ask(function of presence, ...) that calls the function in that process. before: a shell command
    that runs first."""
    started = []

    def start(*options, before="true"):
        process = subprocess.Popen(
            ["unshare", *options, "sh", "-c", f'{before} && exec "$0" "$@"', sys.executable, "-c", HELPER],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)

        def ask(*question):
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        ask("state_of", OWN)            # wait until the process runs
        return ask

    yield start
    for process in started:
        process.stdin.close()
        process.stdout.close()
        process.wait(30)


# -- namespaces that exist, and namespaces that do not ----------------------------------------------------------------

def test_a_namespace_that_is_there_is_alive():
    assert state_of(OWN) == (ALIVE, f"{OWN} exists")


def test_a_file_that_was_removed_after_its_add_is_gone(directory):
    since = now()
    namespace_files.end(directory / "pod")
    assert state_of(f"{directory}/pod", since) == (GONE, f"{directory}/pod does not exist any more")


@pytest.mark.parametrize("since", ["none", "later"])
def test_a_missing_file_of_a_directory_that_has_not_changed_since_the_add_is_unknown(directory, since):
    namespace_files.end(directory / "pod")
    state, why = state_of(f"{directory}/pod", time.time() + 100 if since == "later" else 0.0)
    assert (state, "nothing shows that" in why) == (UNKNOWN, True)


def test_a_directory_that_is_younger_than_the_add_is_not_the_one_of_the_add(directory, monkeypatch):
    """Once, in a container with its own /run/netns, each pod of the node counted as GONE."""
    since = now() - 5
    monkeypatch.setattr(presence, "boot_began", lambda: 0.0)
    namespace_files.end(directory / "pod")
    assert state_of(f"{directory}/pod", since)[0] == UNKNOWN


@pytest.mark.parametrize("others, state", [(True, GONE), (False, UNKNOWN)])
def test_without_a_time_of_birth_another_namespace_in_the_directory_has_to_be_seen(directory, monkeypatch, others,
                                                                                   state):
    since = now() - 5
    monkeypatch.setattr(presence, "boot_began", lambda: 0.0)
    monkeypatch.setattr(presence, "directory_times", lambda path: (None, os.stat(path).st_mtime))
    monkeypatch.setattr(presence, "has_namespaces", lambda path: others and path == str(directory))
    assert state_of(f"{directory}/pod", since)[0] == state


def test_a_plain_file_is_unknown(directory):
    (directory / "pod").touch()
    state, why = state_of(f"{directory}/pod", now())
    assert (state, "is a plain file here" in why) == (UNKNOWN, True)


@pytest.mark.parametrize("path, text", [
    ("", "does not name"), ("netns/pod", "is not absolute"), ("/run/\0", "cannot be named"),
    ("/nonexistent/netns/x", "there is no /nonexistent/netns here"), ("/etc/passwd/x", "not a directory"),
    ("/run/" + "x" * 300, "too long")])
def test_a_path_that_cannot_be_followed_is_unknown(path, text):
    state, why = state_of(path, now())
    assert (state, text in why) == (UNKNOWN, True)


def test_symbolic_links_are_followed_to_what_is_missing(directory, tmp_path):
    """/var/run is a symbolic link to /run. Runtimes may make /run/netns/ID a symbolic link to /proc/PID/ns/net."""
    (tmp_path / "var").symlink_to(tmp_path)
    (directory / "process").symlink_to(f"/proc/{ABSENT_PID}/ns/net")
    (directory / "elsewhere").symlink_to("/nonexistent/netns/x")
    (directory / "round").symlink_to(directory / "round")
    since = now()
    namespace_files.end(directory / "pod")
    assert state_of(f"{tmp_path}/var/netns/pod", since)[0] == GONE
    assert state_of(f"{directory}/process", since)[0] == (GONE if presence.sees_processes() else UNKNOWN)
    assert [state_of(f"{directory}/{name}", since)[0] for name in ("elsewhere", "round")] == [UNKNOWN, UNKNOWN]


def test_what_is_from_before_the_last_boot_is_gone(directory):
    (directory / "pod").touch()
    assert state_of(f"{directory}/pod", 1.0) == (GONE, "it is from before the last boot")
    assert state_of(OWN, 1.0)[0] == ALIVE


def test_a_clock_that_was_set_forward_since_the_boot_makes_no_pod_older_than_the_boot(directory, monkeypatch):
    """A node without a hardware clock starts its pods in 1970, and sets its clock later."""
    (directory / "pod").touch()
    since = now()
    monkeypatch.setattr(presence.time, "time", lambda: since + 1e9)
    assert state_of(f"{directory}/pod", since)[0] == UNKNOWN


# -- processes ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("on_the_node, state", [(True, GONE), (False, UNKNOWN)])
@pytest.mark.parametrize("path", ["ns/net", "task/7/ns/net", "fd/7"])
def test_a_process_that_does_not_exist_is_gone_where_all_processes_are_seen(monkeypatch, path, on_the_node, state):
    """In a container with its own PID namespace, the error "no such process" proves nothing about the node's
    processes."""
    monkeypatch.setattr(presence, "sees_processes", lambda proc: on_the_node)
    assert state_of(f"/proc/{ABSENT_PID}/{path}")[0] == state


def test_all_processes_are_seen_in_the_first_pid_namespace_alone():
    assert presence.sees_processes() is (os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC)     # PROC_PID_INIT_INO


def test_a_procfs_that_hides_processes_proves_nothing(tmp_path):
    """A procfs with hidepid=2 hides other users' processes, also PID 1."""
    assert not presence.sees_processes(str(tmp_path))


@pytest.mark.parametrize("stat, sees", [("2 (kthreadd) S 0 0 0 0 -1 2129984 0", True),
                                        ("2 (a b) c) S 1 2 2 0 -1 4194304 0", False)])
def test_a_process_2_of_a_container_is_no_thread_of_the_kernel(tmp_path, stat, sees):
    """Otherwise, each process of the node would count as ended in a container."""
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "stat").write_text(stat)
    assert presence.sees_processes(str(tmp_path)) is sees


def test_a_process_that_has_ended_but_is_not_reaped_is_not_gone(monkeypatch):
    """The process's main thread has ended, but other threads may still run in the namespace."""
    monkeypatch.setattr(presence, "sees_processes", lambda proc: True)
    child = subprocess.Popen(["true"])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not os.path.exists(f"/proc/{child.pid}/ns/net")
        assert state_of(f"/proc/{child.pid}/ns/net")[0] == UNKNOWN
    finally:
        child.wait()
    assert state_of(f"/proc/{child.pid}/ns/net")[0] == GONE


@pytest.mark.needs("root")
def test_in_another_pid_namespace_no_process_is_gone(elsewhere):
    ask = elsewhere("--pid", "--fork", "--mount-proc")
    state, why = ask("state_of", f"/proc/{ABSENT_PID}/ns/net")
    assert (state, presence.MOUNTS in why) == (UNKNOWN, True)


@pytest.mark.needs("root")
def test_the_nodes_procfs_at_another_place_shows_its_processes(elsewhere, tmp_path):
    """In a container with -hostprefix /host, the node's /proc is at /host/proc."""
    if not presence.sees_processes():
        pytest.skip("this is not the first PID namespace")
    (tmp_path / "proc").mkdir()
    ask = elsewhere("--mount", "--pid", "--fork", before=f"mount --bind /proc {tmp_path}/proc && mount -t proc p /proc")
    assert ask("state_of", f"{tmp_path}/proc/{ABSENT_PID}/ns/net")[0] == GONE
    assert ask("state_of", f"{tmp_path}/proc/{os.getpid()}/ns/net")[0] == ALIVE
    assert ask("state_of", f"/proc/{os.getpid()}/ns/net")[0] == UNKNOWN


@pytest.mark.needs("root")
def test_in_a_time_namespace_nothing_is_from_before_the_boot(elsewhere, directory):
    """In a time namespace, CLOCK_BOOTTIME may have any value."""
    (directory / "pod").touch()
    ask = elsewhere("--time", "--fork", "--boottime", "100000")
    assert ask("state_of", f"{directory}/pod", 1.0)[0] == UNKNOWN


# -- mounts ------------------------------------------------------------------------------------------------------------

@pytest.mark.needs("root")
def test_a_namespace_that_is_mounted_after_a_private_mount_is_unknown_there(elsewhere, mounted, directory):
    """A container has -v /run/netns:/run/netns without rslave. Once, `fastcni gc` deleted attachments of pods that were
    added later and still ran."""
    early, since = mounted("early"), now()
    ask = elsewhere("--mount", "--propagation", "private")
    late = mounted("late")
    assert ask("state_of", early, since)[0] == ALIVE
    assert ask("state_of", late, since)[0] == UNKNOWN
    assert state_of(late, since)[0] == ALIVE
    run("umount", late)
    os.unlink(late)
    assert ask("state_of", late, since)[0] == state_of(late, since)[0] == GONE


@pytest.mark.needs("root")
def test_below_an_unmounted_file_system_nothing_is_gone(elsewhere, directory):
    """The directory below the mount exists and is empty."""
    ask = elsewhere("--mount", "--propagation", "private", before=f"mount -t tmpfs none {directory} && "
                    f"touch {directory}/pod && mount --bind {OWN} {directory}/pod && umount --lazy {directory}")
    assert ask("state_of", f"{directory}/pod", now())[0] == UNKNOWN


@pytest.mark.needs("root")
def test_a_directory_of_another_file_system_proves_nothing(elsewhere, mounted, directory):
    """For example, a container has its own /run/netns with its own namespaces."""
    pod, since = mounted("pod"), now()
    ask = elsewhere("--mount", "--propagation", "private", before=f"sleep 0.1 && mount -t tmpfs none {directory} && "
                    f"touch {directory}/own && mount --bind {OWN} {directory}/own")
    assert ask("state_of", pod, since)[0] == UNKNOWN


@pytest.mark.needs("root")
def test_a_directory_in_which_pods_cannot_be_seen_is_named(elsewhere, mounted, directory):
    early = mounted("early")
    ask = elsewhere("--mount", "--propagation", "private")
    assert [str(directory), "is a private mount: namespaces that are made from now on do not appear here"] in \
        ask("unseen", [early, OWN])
    mounted("late")
    assert [str(directory), "has 1 plain file, where namespaces may be mounted"] in ask("unseen", [early])
    assert ["/nonexistent", "does not exist here"] in ask("unseen", ["/nonexistent/netns"])


@pytest.mark.needs("root")
def test_a_mount_that_receives_mounts_is_not_named(elsewhere, mounted, directory):
    run("mount", "--bind", directory, directory)
    try:
        run("mount", "--make-shared", directory)
        early = mounted("early")
        ask = elsewhere("--mount", "--propagation", "slave")
        late = mounted("late")
        assert ask("state_of", late)[0] == ALIVE
        assert str(directory) not in dict(ask("unseen", [early]))
    finally:
        run("umount", "--recursive", directory)


# -- GC uses the state of the namespace -------------------------------------------------------------------------------

def test_gc_deletes_only_what_is_gone(directory):
    (directory / "plain").touch()
    since = now()
    namespace_files.end(directory / "gone")
    paths = {"own": OWN, "plain": f"{directory}/plain", "gone": f"{directory}/gone", "unseen": "/nonexistent/netns/x",
             "not-remembered": ""}
    plan = collect.make_plan([Attachment(key, "net", "eth0", netns=path, since=since) for key, path in paths.items()],
                             "net")
    assert [it.attachment.container_id for it in plan.stale] == ["gone"]
    assert [it.attachment.container_id for it in plan.kept] == ["own", "plain", "unseen", "not-remembered"]
