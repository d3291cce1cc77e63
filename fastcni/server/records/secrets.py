"""Secrets in what is shown to people: configurations, CNI_ARGS and errors."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "(hidden)"
SECRET = re.compile(r"token|passw|secret|credential|auth|private|kubeconfig|cert|key(s|data|_?file)?$", re.IGNORECASE)
IN_URL = re.compile(r"(://)[^/@\s\"]+@")         # user:password@


def hide(value: Any, secret: bool = False) -> Any:
    """A value of JSON, with HIDDEN for all texts and numbers below a key that names a secret, and passwords in URLs.
    Flags stay. secret: the value is below such a key."""
    if isinstance(value, dict):
        return {key: hide(each, secret or names_secret(key)) for key, each in value.items()}
    if isinstance(value, list):
        return [hide(each, secret) for each in value]
    if secret and not isinstance(value, bool) and value not in (None, ""):
        return HIDDEN
    return IN_URL.sub(rf"\1{HIDDEN}@", value) if isinstance(value, str) else value


def hide_arguments(text: str) -> str:
    """CNI_ARGS without the values of keys that name a secret."""
    pairs = (pair.partition("=") for pair in text.split(";"))
    return ";".join(key + equals + hide(value, names_secret(key)) for key, equals, value in pairs)


def names_secret(key: str) -> bool:
    return bool(SECRET.search(key))
