"""Add the Python that a wheel contains as python_core.elf to a list of components (CycloneDX).

    add_interpreter.py FILE WHEEL

Without python_core.elf in the wheel, the list stays as it is. This runs on the Python that built the wheel.
"""

import json
import platform
import sys
import zipfile
from pathlib import Path

path, wheel = map(Path, sys.argv[1:])
with zipfile.ZipFile(wheel) as archive:
    is_linked = "fastcni/launcher/python_core.elf" in archive.namelist()
if is_linked:
    document = json.loads(path.read_text(encoding="utf-8"))
    version = platform.python_version()
    document["components"].append({
        "type": "library", "bom-ref": f"cpython=={version}", "name": "cpython", "version": version,
        "description": "Linked statically into fastcni/launcher/python_core.elf",
        "licenses": [{"license": {"id": "Python-2.0"}}], "purl": f"pkg:generic/python@{version}"})
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
