"""Who may see and change what: addresses, tokens, and where requests come from.

On loopback everybody on this machine may look; other addresses need the token for everything but the empty
page and the health checks.  A change needs the token always.  There are no cookies, so another site's page
cannot use a browser's rights here; requests that name another host (DNS rebinding) or come from another
site are refused as well.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping

LONGEST_BODY = 64 * 1024
"""Bytes of a request."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
FRAMED = {
    **HEADERS,
    "Content-Security-Policy": HEADERS["Content-Security-Policy"].replace(
        "frame-ancestors 'none'",
        "frame-ancestors 'self' http://localhost:* http://127.0.0.1:* https://localhost:* "
        "https://127.0.0.1:* vscode-webview:",
    ),
    "Cross-Origin-Resource-Policy": "cross-origin",
}
"""Of the page as a widget: notebooks on this machine may frame it."""
WIDGET = "/widget"
"""Where it is: the page itself, which has no token there, so a frame around it cannot have it clicked."""
LEAST_TOKEN = 16
"""The shortest token that a user may choose, in characters."""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Judges requests."""

    def __init__(self, host: str, token: str) -> None:
        self._local, self._token = is_loopback(host), token

    def refusal(
        self, method: str, path: str, headers: Mapping[str, str], *, public: bool
    ) -> tuple[int, str] | None:
        """Why a request is refused, as a status and a sentence; None if it may pass.

        ``public``: it says nothing about the application.
        """
        host = headers.get("host", "")
        if self._local and not is_loopback(_host(host)):
            return 403, "This page answers to its loopback address only."
        framed = path == WIDGET and self._local and method == "GET"
        if not framed and headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "The request comes from another site."
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return 403, "The request comes from another site."
        changes = method not in ("GET", "HEAD")
        if changes and headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return 415, "Send JSON."
        if (changes or not self._local) and not public and not self.knows(headers):
            return 401, "This needs the token that was printed when the application started."
        # A body in chunks says nothing true of its length, whatever the other header claims.
        if changes and ("transfer-encoding" in headers or not _small(headers.get("content-length"))):
            return 413, f"A request has at most {LONGEST_BODY:,} bytes, and says how many."
        return None

    def knows(self, headers: Mapping[str, str]) -> bool:
        """Whether a request has the token."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        known = hmac.compare_digest(given.strip().encode(), self._token.encode())
        return scheme.lower() == "bearer" and known


def _host(header: str) -> str:
    """The host of a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _small(length: str | None) -> bool:
    return length is not None and length.isdigit() and int(length) <= LONGEST_BODY
