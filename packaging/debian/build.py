"""Write the plugin files and units of the Debian package. The package fastcni must be importable.

    build.py PLUGIN_FOLDER UNIT_FOLDER
"""

import sys
from pathlib import Path

from fastcni.launcher import interpreters, systemd
from fastcni.launcher.install import install_plugins

PACKAGE = "/usr/lib/python3/dist-packages/fastcni/launcher"     # once it is installed

plugins, units = sys.argv[1:]
core = interpreters.core_of("/usr/bin/python3")         # none for Python 3.13, see setup.py
install_plugins(plugins, core=core, core_path=f"{PACKAGE}/{interpreters.CORE}")
Path(units).mkdir(parents=True)
texts = {"fastcni.socket": systemd.SOCKET,
         "fastcni.service": systemd.service(["/usr/bin/python3", "-I", "-m", "fastcni", "serve"])}
for name, text in texts.items():
    Path(units, name).write_text(f"# Put changes into /etc/systemd/system/{name}.d/*.conf.\n{text}", encoding="utf-8")
