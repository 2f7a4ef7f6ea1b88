"""The skills of ``skills/``, as resources and by the MCP extension ``io.modelcontextprotocol/skills`` (SEP-2640).

A skill is a directory with a ``SKILL.md``: YAML between two lines ``---`` with `name` and `description`, then Markdown
(https://agentskills.io/specification). Ours consist of this file alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mcp_types as types
import yaml
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

EXTENSION = "io.modelcontextprotocol/skills"
SCHEME = "skill://"
MEDIA_TYPE = "text/markdown"
_DIRECTORY = Path(__file__).parents[3] / "skills"
_CACHEABLE_SINCE = "2026-07-28"  # the revision that introduced ttlMs and cacheScope
_FRESH_MS = 3_600_000  # they change with the program only
_Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True)
class Skill:
    """A skill: the `content` of its file, and the fields at the head of it."""

    uri: str
    frontmatter: dict[str, Any]
    content: bytes

    @property
    def entry(self) -> dict[str, Any]:
        """Return its entry in ``skills/list``, with a digest of each file."""
        digest = f"sha256:{hashlib.sha256(self.content).hexdigest()}"
        file = {"uri": self.uri, "digest": digest, "size": len(self.content)}
        return {"uri": self.uri, "frontmatter": self.frontmatter, "resources": [file]}

    @property
    def resource(self) -> types.Resource:
        """Return its listing as a resource."""
        name, description = self.frontmatter["name"], self.frontmatter["description"]
        return types.Resource(
            uri=self.uri, name=name, description=description, mime_type=MEDIA_TYPE, size=len(self.content)
        )


class GetSkillParams(types.RequestParams):
    """Parameters of ``skills/get``."""

    uri: str


@cache
def skills() -> dict[str, Skill]:
    """Return the skills by URI (``skill://hang/SKILL.md``)."""
    found = {}
    for path in sorted(_DIRECTORY.glob("*/SKILL.md")):
        content = path.read_bytes()
        uri = f"{SCHEME}{path.parent.name}/{path.name}"
        found[uri] = Skill(uri, yaml.safe_load(content.decode().split("---\n", 2)[1]), content)
    return found


def offer(server: Server[Any]) -> None:
    """Declare the extension on `server`, and answer its methods."""
    server.extensions[EXTENSION] = {}
    server.add_request_handler("skills/list", types.PaginatedRequestParams, _list)
    server.add_request_handler("skills/get", GetSkillParams, _get)


async def _list(ctx: _Context, _params: types.PaginatedRequestParams) -> dict[str, Any]:
    return _cacheable(ctx, {"skills": [skill.entry for skill in skills().values()]})


async def _get(ctx: _Context, params: GetSkillParams) -> dict[str, Any]:
    skill = skills().get(params.uri)
    if skill is None:
        message = f"no skill is at {params.uri!r}; valid: {', '.join(skills())}"
        raise MCPError(code=types.INVALID_PARAMS, message=message)
    return _cacheable(ctx, {"skill": skill.entry})


def _cacheable(ctx: _Context, result: dict[str, Any]) -> dict[str, Any]:
    hints = {"ttlMs": _FRESH_MS, "cacheScope": "public"} if ctx.protocol_version >= _CACHEABLE_SINCE else {}
    return result | hints
