"""Write an image archive for ctr and podman, made from Debian's busybox-static."""

import hashlib
import io
import json
import platform
import subprocess
import tarfile

BUSYBOX = "/bin/busybox"
NAME, PAUSE = "localhost/fastcni-test:1", "localhost/fastcni-pause:1"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_archive(path):
    """Write the archive with two images: NAME, whose command is a shell, and PAUSE, whose command sleeps."""
    layer = _layer()
    digest = hashlib.sha256(layer).hexdigest()
    files, manifest = {"layer.tar": layer}, []
    for name, command in ((NAME, ["/bin/sh"]), (PAUSE, ["/bin/sleep", "1000000"])):
        config = json.dumps({
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": command}, "rootfs": {"type": "layers",
                                                                       "diff_ids": [f"sha256:{digest}"]}}).encode()
        file = f"{hashlib.sha256(config).hexdigest()}.json"
        files[file] = config
        manifest.append({"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]})
    files["manifest.json"] = json.dumps(manifest).encode()
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            _add(archive, name, data)


def _layer():
    """Return the bytes of a layer: busybox, a hard link for each busybox command, and the directories on which runtimes
    mount."""
    commands = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as layer:
        for directory in ("bin", "dev", "etc", "proc", "sys", "tmp", "run", "var", "root"):
            _add(layer, directory, kind=tarfile.DIRTYPE)
        with open(BUSYBOX, "rb") as file:
            _add(layer, "bin/busybox", file.read())
        for command in commands:
            if command != "busybox":
                _add(layer, f"bin/{command}", kind=tarfile.LNKTYPE, link="bin/busybox")
        _add(layer, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
        _add(layer, "etc/group", b"root:x:0:\n")
    return out.getvalue()


def _add(archive, name, data=b"", kind=tarfile.REGTYPE, link=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size, member.mode = kind, link, len(data), 0o755
    archive.addfile(member, io.BytesIO(data))
