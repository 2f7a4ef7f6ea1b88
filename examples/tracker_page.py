"""The pages of `tracker`: the issues of its project, and one issue. All text is escaped."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from tracker import Issue, Tracker

_STYLE = """
:root { color-scheme: light dark; --line: #d0d7de; --quiet: #59636e; --card: #fff; --page: #f6f8fa; --link: #0b62c4;
  --code: #eef1f4; --open: #1a7f37; --closed: #7d3fc4; }
@media (prefers-color-scheme: dark) { :root { --line: #3a424c; --quiet: #9aa5b1; --card: #161b22; --page: #0d1117;
  --link: #6cb0ff; --code: #262d36; --open: #3fb950; --closed: #b083f0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
a { color: var(--link); text-decoration: none; } a:hover { text-decoration: underline; }
h1 { font-size: 1.4rem; margin: .5rem 0 1rem; overflow-wrap: anywhere; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 1rem 1.25rem;
  margin: 0 0 1rem; }
.row { display: block; padding: .75rem 1.25rem; border-top: 1px solid var(--line); } .row:first-child { border: 0; }
.list { padding: 0; } .quiet { color: var(--quiet); font-size: .85rem; }
.state { color: #fff; background: var(--open); border-radius: 1rem; padding: .1rem .7rem; font-size: .8rem;
  font-weight: 600; }
.closed { background: var(--closed); }
.label { border: 1px solid var(--line); border-radius: 1rem; padding: 0 .6rem; font-size: .78rem; margin-right: .25rem;
  display: inline-block; }
.text { overflow-wrap: anywhere; } .text h2, .text h3, .text h1 { font-size: 1.05rem; margin: 1rem 0 .3rem; }
.text ul, .text ol { padding-left: 1.4rem; margin: .3rem 0; } .text p { margin: .4rem 0; }
code, pre { background: var(--code); border-radius: 4px; padding: .1em .35em; font-size: .87em; }
pre { padding: .6rem .8rem; overflow-x: auto; white-space: pre-wrap; } pre code { padding: 0; }
.warn { border-color: #bf8700; }
form { display: flex; flex-wrap: wrap; gap: .5rem; } textarea { flex: 1 1 100%; min-height: 4rem; }
textarea, input { font: inherit; padding: .4rem .6rem; color: inherit; background: var(--page);
  border: 1px solid var(--line); border-radius: 6px; }
button { font: inherit; padding: .35rem .9rem; border: 1px solid var(--line); border-radius: 6px; cursor: pointer;
  background: var(--code); color: inherit; }
"""


def document(title: str, body: str) -> str:
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style><main>{body}</main></html>"
    )


def _state(issue: Issue) -> str:
    return f"<span class='state{' closed' if issue.state == 'closed' else ''}'>{issue.state}</span>"


def listing(tracker: Tracker) -> str:
    """Return the issues, newest first."""
    base = f"/{quote(tracker.project)}/-/issues"
    rows = "".join(
        f"<div class=row>{_state(i)} <a href='{base}/{i.iid}'><b>{html.escape(i.title)}</b></a>"
        f"<div class=quiet>#{i.iid} · created {i.created_at[:19]}Z · changed {i.updated_at[:19]}Z · "
        f"{len(i.notes)} comment{'s' * (len(i.notes) != 1)}</div>{_labels(i)}</div>"
        for i in reversed(tracker.issues)
    )
    empty = "<div class=row>No issues yet. Reload this page once whystall has filed one.</div>"
    count = f"{len(tracker.issues)} issue{'s' * (len(tracker.issues) != 1)}"
    return f"<h1>{html.escape(tracker.project)}: {count}</h1><div class='card list'>{rows or empty}</div>"


def detail(tracker: Tracker, issue: Issue) -> str:
    """Return one issue, with a form for comments."""
    base = f"/{quote(tracker.project)}/-/issues"
    names = {id: name for name, id in tracker.users.items()}
    assignees = ", ".join(html.escape(names[id]) for id in issue.assignees) or "no one"
    done = [*(f"quick action {action}" for action in issue.actions), *(f"mentioned @{name}" for name in issue.mentions)]
    effects = f"<div class='card warn'><b>Its text caused:</b> {html.escape('; '.join(done))}</div>" if done else ""
    notes = "".join(
        f"<div class=card><div class=quiet><b>{html.escape(n['author']['username'])}</b> · {n['created_at'][:19]}Z"
        f"</div><div class=text>{rendered(n['body'])}</div></div>"
        for n in issue.notes
    )
    other = "reopen" if issue.state == "closed" else "close"
    return (
        f"<a href='{base}'>&larr; all issues</a>"
        f"<h1>{html.escape(issue.title)} <span class=quiet>#{issue.iid}</span></h1>"
        f"<p>{_state(issue)} <span class=quiet>opened by {html.escape(issue.author)} {issue.created_at[:19]}Z"
        f" · assigned to {assignees}</span></p><p>{_labels(issue)}</p>{effects}"
        f"<div class='card text'>{rendered(issue.description)}</div>{notes}"
        f"<div class=card><form method=post action='{base}/{issue.iid}/act'><textarea name=text placeholder='Comment'>"
        f"</textarea><input name=by value=alice aria-label='your name'><button name=what value=comment>Comment</button>"
        f"<button name=what value={other}>{other.title()} issue</button></form></div>"
    )


def _labels(issue: Issue) -> str:
    return "".join(f"<span class=label>{html.escape(label)}</span>" for label in issue.labels)


def rendered(text: str) -> str:
    """Return the Markdown that issues use as HTML, everything else escaped."""
    out: list[str] = []
    open_list = ""
    fence = ""
    for line in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).splitlines():
        mark = re.match(r"(`{3,})", line)
        if mark and (not fence or mark[1] == fence):
            out.append("</code></pre>" if fence else "<pre><code>")
            fence = "" if fence else mark[1]
            continue
        if fence:
            out.append(html.escape(line) + "\n")
            continue
        item = re.match(r"\s*(?:([-*])|\d+\.) (.*)", line)
        kind = ("ul" if item[1] else "ol") if item else ""
        if kind != open_list:
            out.append((f"</{open_list}>" if open_list else "") + (f"<{kind}>" if kind else ""))
            open_list = kind
        heading = re.match(r"#{1,6} (.*)", line)
        if item:
            out.append(f"<li>{_inline(item[2])}</li>")
        elif heading:
            out.append(f"<h2>{_inline(heading[1])}</h2>")
        elif line.strip():
            out.append(f"<p>{_inline(line)}</p>")
    out.append((f"</{open_list}>" if open_list else "") + ("</code></pre>" if fence else ""))
    return "".join(out)


def _inline(text: str) -> str:
    """Return a line with its code spans and bold text as HTML."""
    parts = re.split(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", text)
    codes = [f"<code>{html.escape(code.strip())}</code>" for code in parts[2::3]]
    plain = "\0".join(html.escape(re.sub(r"\\([/*_`])", r"\1", part)) for part in parts[::3])
    bold = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", plain)
    return re.sub("\0", lambda _: codes.pop(0) if codes else "", bold)
