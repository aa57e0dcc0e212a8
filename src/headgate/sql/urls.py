"""Parts of URLs, and text made safe for them."""

from __future__ import annotations

import re
import urllib.parse

from headgate.sql import types as t
from headgate.sql.node import Node, forgiving
from headgate.sql.registry import FUNCTIONS, Call, function, valued

_URI = re.compile(
    r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.DOTALL
)
_LEGAL = re.compile(r"(?:[A-Za-z0-9\-_.!~*'();:@&=+$,/?\[\]]|%[0-9A-Fa-f]{2}|[^\x00-\xa0\u2028\u2029])*")
_SERVER = re.compile(r"(?:[^@]*@)?([A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::\d*)?")


@valued("parse_url", takes=(t.STRING, t.STRING, t.STRING), gives=t.STRING, optional=1)
def _parse_url(url: str, part: str, key: str | None = None) -> str | None:
    if key is not None and part != "QUERY":
        return None
    match = _URI.fullmatch(url)
    if match is None or any(p is not None and not _LEGAL.fullmatch(p) for p in match.groups()):
        raise ValueError(url)
    scheme, authority, path, query, fragment = match.groups()
    if (scheme is not None and authority is None and not path) or (authority == "" and not path):
        raise ValueError(url)
    opaque = scheme is not None and authority is None and not path.startswith("/")
    if opaque:
        path, query = None, None
    if key is not None:
        if query is None:
            return None
        found = re.search(f"(?:&|^){key}=([^&]*)", query)
        return None if found is None else found[1]
    server = None if authority is None else _SERVER.fullmatch(authority)
    if part == "HOST":
        return (server[1] or None) if server else None
    if part == "FILE":
        return None if path is None else path if query is None else f"{path}?{query}"
    if part == "USERINFO":
        return authority.rpartition("@")[0] if authority and "@" in authority and server else None
    parts = {
        "PATH": path,
        "QUERY": query,
        "REF": fragment,
        "PROTOCOL": scheme,
        "AUTHORITY": authority or None,
    }
    return parts.get(part)


@valued("url_encode", takes=(t.STRING,), gives=t.STRING)
def _url_encode(text: str) -> str:
    return urllib.parse.quote_plus(text, safe="*-._").replace("~", "%7E")


@valued("url_decode", takes=(t.STRING,), gives=t.STRING)
def _url_decode(text: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise ValueError(text)
    return urllib.parse.unquote_plus(text, errors="replace")


def _try(name: str) -> None:
    made = FUNCTIONS[name]

    def build(call: Call) -> Node:
        return forgiving(made.build(call))

    function(f"try_{name}", args=(made.least, made.most), per_row=True)(build)


_try("parse_url")
_try("url_decode")
