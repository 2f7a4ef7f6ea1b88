"""Build a self-contained HTML page: style, script and data inline, nothing fetched, only our own script executed.

The content security policy names script and style by their SHA-256 (W3C CSP3, hash sources), so that text injected into
the markup cannot become code. Data are a JSON block, which browsers do not execute.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ASSETS = Path(__file__).parent / "assets"
# What could end the element or start a comment in it, and the line separators of older engines.
_UNSAFE = re.compile("[<>&\u2028\u2029]")


def escape(text: object) -> str:
    """Escape `text` for element content and for attributes in quotes."""
    return html.escape(str(text), quote=True)


def data_block(data: Any) -> str:
    """Return `data` (JSON types) as text that is inert within a script element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def page(
    *,
    lang: str,
    title: str,
    body: str,
    data: Any,
    name: str,
    also: Sequence[str] = (),
    scripts: Sequence[str] = (),
    images: bool = False,
    frames: bool = False,
) -> str:
    """Return the document. `body`: markup, already escaped; `data`: input of the script; `name`: of the style and the
    script in assets; `also`: styles before it; `scripts`: scripts before it. `images`: the markup holds pictures as
    ``data:`` URIs. `frames`: the script shows other pages of ours in frames; their policies apply in addition to this
    one (HTML, policy container of ``srcdoc``), which therefore allows every script in assets."""
    style = "".join(asset(f"{one}.css") for one in (*also, name))
    code = [asset(f"{one}.js") for one in (*scripts, name)]
    runnable = [path.read_text("utf-8") for path in sorted(_ASSETS.glob("*.js"))] if frames else code
    styles = "'unsafe-inline'" if frames else _hash(style)
    policy = f"default-src 'none'; style-src {styles}; script-src {' '.join(map(_hash, runnable))}; base-uri 'none'"
    if images or frames:
        policy += "; img-src data:"
    return f"""<!DOCTYPE html>
<html lang="{escape(lang)}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
<script type="application/json" id="data">{data_block(data)}</script>
{"".join(f"<script>{one}</script>" for one in code)}
</body>
</html>
"""


def asset(name: str) -> str:
    """Return the text of a style or script in assets."""
    return (_ASSETS / name).read_text("utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
