"""Hide secrets in configurations, CNI_ARGS and errors that are shown to people."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "(hidden)"
SECRET = re.compile(r"token|passw|secret|credential|auth|private|kubeconfig|cert|key(s|data|_?file)?$", re.IGNORECASE)
IN_URL = re.compile(r"(://)[^/@\s\"]+@")         # user:password@


def hide(value: Any, secret: bool = False) -> Any:
    """Return a JSON value in which HIDDEN replaces passwords in URLs, and all texts and numbers below a key that names
    a secret. Booleans stay unchanged. secret: whether the value is below such a key."""
    if isinstance(value, dict):
        return {key: hide(each, secret or names_secret(key)) for key, each in value.items()}
    if isinstance(value, list):
        return [hide(each, secret) for each in value]
    if secret and not isinstance(value, bool) and value not in (None, ""):
        return HIDDEN
    return IN_URL.sub(rf"\1{HIDDEN}@", value) if isinstance(value, str) else value


def hide_arguments(text: str) -> str:
    """Return CNI_ARGS without the values of keys that name a secret."""
    pairs = (pair.partition("=") for pair in text.split(";"))
    return ";".join(key + equals + hide(value, names_secret(key)) for key, equals, value in pairs)


def names_secret(key: str) -> bool:
    return bool(SECRET.search(key))
