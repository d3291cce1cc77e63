"""Suggest the name that a user meant, for errors about a name that does not exist."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

CLOSE = 0.7                     # similarity of a suggested name: "isGatway" and "isGateway" have 0.94


def meant(text: str, known: Iterable[str]) -> str:
    """Return 'did you mean "bridge"?' if one of the known names is similar to the text, else ""."""
    from difflib import get_close_matches  # difflib imports re, which takes time: only errors import it

    spelled = {name.lower(): name for name in known}
    close = get_close_matches(text.lower(), spelled, 1, CLOSE)
    return f'did you mean "{spelled[close[0]]}"?' if close else ""


def meant_id(text: str, known: Iterable[str]) -> str:
    """Return meant() for container ids; `text` may be the beginning of an id."""
    cut: dict[str, str] = {}
    for name in known:
        cut.setdefault(name[:len(text)], name)
        cut[name] = name
    found = meant(text, cut)
    beginning = found.partition('"')[2].rpartition('"')[0]
    return found.replace(beginning, cut[beginning]) if found else ""
