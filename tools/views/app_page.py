"""The page that an MCP host opens for a result: it gets the result by ``postMessage``, and shows our pages of it.

Protocol: MCP Apps, ``specification/2026-01-26/apps.mdx`` of github.com/modelcontextprotocol/ext-apps (SEP-1865). The
page itself contains nothing of a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from whystall.tools.views.page import page

PROTOCOL = "2026-01-26"
WORDS = frozenset({"title", "waiting", "failed", "cancelled", "no_page", "no_host", "unreadable", "text", "wide"})
"""The words the caller passes, for each language."""
_BODY = """<nav id="bar" hidden><div id="pages"></div><button id="wide" hidden></button></nav>
<p id="note" role="status"></p>
<div id="shown"></div>
<details id="whole" hidden><summary id="summary"></summary><pre id="text"></pre></details>"""


def app_page(
    shows: Literal["pages", "ticket"],
    texts: Mapping[str, Mapping[str, str]],
    *,
    lang: str,
    version: str,
    tickets: str,
    page_chars: int,
) -> str:
    """Return the page that shows the HTML artifacts of a result, or the ticket that a result is.

    `texts`: the words by language; `lang`: until the host has named its own; `tickets`: a ticket's URI up to its id;
    `page_chars`: characters that ``artifact_read`` returns at a time.
    """
    data = {
        "shows": shows,
        "words": {name: {key: str(words[key]) for key in sorted(WORDS)} for name, words in texts.items()},
        "version": version,
        "protocol": PROTOCOL,
        "tickets": tickets,
        "page_chars": page_chars,
    }
    return page(
        lang=lang, title=texts[lang]["title"], body=_BODY, data=data, name="app", also=("page_frame",), frames=True
    )
