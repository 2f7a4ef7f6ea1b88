"""The layers: packages import only those below them, and the distribution contains every package."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
from setuptools.config.pyprojecttoml import load_file

ROOT = Path(__file__).parents[1]
# In each list a package or module may import itself and those after it. `tools` itself (the toolbox) gathers all tools.
_AGENT_SERVER = [
    "agent_server.__main__",
    "agent_server.interfaces",
    "agent_server.worker",
    "agent_server.otlp",
    "agent_server.profile_push",
    "agent_server.doctor",
    "agent_server.watch",
    "agent_server.integrations",
    "agent_server.app",
    "agent_server.fleet",
    "agent_server.diagnosis",
    "agent_server.ticketing",
    "agent_server.presentation",
    "agent_server.conversion",
    "agent_server.inputs",
    "agent_server.job_lookup",
    "agent_server.incident_search",
    "agent_server.llm",
    "agent_server.outbound",
    "agent_server.settings",
    "agent_server.metrics",
    "agent_server.task_handler",
    "agent_server.stores",
    "agent_server.journal",
    "agent_server.version",
]
_TOOLS = [
    "tools",
    "tools.host",
    "tools.ranks",
    "tools.profiles",
    "tools.crashes",
    "tools.history",
    "tools.collect",
    "tools.timeline",
    "tools.stacks",
    "tools.views",
    "tools.recording",
    "tools.node",
    "tools.known_fixes",
    "tools.files",
    "tools.contract",
    "tools.hybrid_io",
]
_LAYERS = [*_AGENT_SERVER, "knowledge_base", *_TOOLS, "bpf"]
# The packages of one set may not import each other.
_SAME_LAYER = [
    {"tools.host", "tools.ranks", "tools.profiles"},
    {"tools.timeline", "tools.stacks", "tools.views"},
]
# In these, a tool's module or package may import `common` and itself, and no other tool.
_TOOL_PACKAGES = ("tools.host", "tools.profiles")
ROOTS = ("agent_server", "knowledge_base", "tools", "bpf", "prompts")


def package_of(module: str) -> str:
    """Return the entry of `_LAYERS` that contains `module` (without ``whystall.``), or its first name."""
    parts = module.split(".")
    second = ".".join(parts[:2])
    return second if second in _LAYERS else parts[0]


def tool_of(module: str) -> str:
    """Return the name after ``tools.host.`` or ``tools.profiles.``: a tool, or ``common``."""
    return ".".join(module.split(".")[2:3])


def may_import(importer: str, imported: str) -> bool:
    """Return whether module `importer` may import module `imported`; both without ``whystall.``."""
    own, other = package_of(importer), package_of(imported)
    if own == other:
        return own not in _TOOL_PACKAGES or tool_of(imported) in ("common", tool_of(importer))
    if own == "prompts":
        return False
    if other == "prompts":
        return own.partition(".")[0] in ("agent_server", "knowledge_base")
    if any(own in layer and other in layer for layer in _SAME_LAYER):
        return False
    return own in _LAYERS and other in _LAYERS and _LAYERS.index(own) < _LAYERS.index(other)


def imports(tree: ast.Module, package: str, names: bool = False) -> Iterator[str]:
    """Yield the modules below ``whystall`` that the code imports when it runs, without ``whystall.``.

    With `names`, what is imported from a package too: it may be a module.
    """
    for node in _running(tree):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, *([node.module] if node.module else [])])
            found = [base, *(f"{base}.{a.name}" for a in node.names if names or base == "whystall")]
        yield from (n.removeprefix("whystall.") for n in found if n.startswith("whystall."))


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements but the bodies of ``if TYPE_CHECKING``, which no program executes."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += reversed(node.orelse)
        elif not isinstance(node, ast.expr):  # no import stands in an expression
            waiting += reversed([*ast.iter_child_nodes(node)])


@functools.cache
def imports_of(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the modules that a file imports when it runs, and these with the names that it imports from packages.

    The syntax trees are not kept: in later tests, garbage collections would scan them.
    """
    tree = ast.parse(path.read_text("utf-8"))
    package = ".".join(("whystall", *path.relative_to(ROOT).parent.parts))
    return frozenset(imports(tree, package)), frozenset(imports(tree, package, names=True))


def sources() -> list[Path]:
    return sorted(path for root in ROOTS for path in (ROOT / root).rglob("*.py"))


def test_every_package_of_the_agent_server_has_a_layer() -> None:
    entries = {p.stem for p in (ROOT / "agent_server").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert {f"agent_server.{name}" for name in entries - {"__init__"}} == set(_AGENT_SERVER)


def test_imports_go_only_downward() -> None:
    files = sources()
    assert len(files) > 40
    wrong = []
    for path in files:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for imported in sorted(imports_of(path)[0]):
            if not may_import(module, imported):
                wrong.append(f"{module} imports {imported}")
    assert wrong == []


@functools.cache
def imported_names() -> dict[str, frozenset[str]]:
    """Return every module, and the names that it imports when it runs."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): imports_of(path)[1]
        for path in sources()
        if path.name != "__init__.py"
    }


def graph_of(package: str) -> dict[str, set[str]]:
    """Return the modules below `package`, and for each those of them that it imports when it runs."""
    modules = {name: imported for name, imported in imported_names().items() if name.startswith(f"{package}.")}
    return {name: imported & modules.keys() for name, imported in modules.items()}


def packages() -> list[str]:
    """Return every package with code."""
    folders = {path.parent.relative_to(ROOT) for path in sources()}
    return sorted({".".join(part.parts) for folder in folders for part in (folder, *folder.parents) if part.parts})


@pytest.mark.parametrize("package", packages())
def test_modules_and_sub_packages_import_each_other_without_cycles(package: str) -> None:
    graph = graph_of(package)
    assert package not in ROOTS or package == "prompts" or sum(map(len, graph.values())) > 10
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules
    depth = package.count(".") + 2
    units: dict[str, set[str]] = {}  # a sub-package stands for its modules
    for module, imported in graph.items():
        unit = ".".join(module.split(".")[:depth])
        units.setdefault(unit, set()).update({".".join(one.split(".")[:depth]) for one in imported} - {unit})
    TopologicalSorter(units).prepare()


@pytest.mark.parametrize("package", ["agent_server.diagnosis.grounding"])
def test_a_sub_package_imports_nothing_of_its_parent(package: str) -> None:
    parent = package.rpartition(".")[0]
    wrong = [
        f"{module} imports {one}"
        for module, imported in graph_of(parent).items()
        for one in imported
        if module.startswith(f"{package}.") and not one.startswith(f"{package}.")
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("agent_server.app", "knowledge_base.store", True),
        ("agent_server.app", "agent_server.interfaces.signals", False),
        ("agent_server.settings.load", "agent_server.ticketing.ticket_service", False),
        ("agent_server.diagnosis.case", "agent_server.diagnosis.rules", True),
        ("agent_server.diagnosis.case", "agent_server.app", False),
        ("agent_server.diagnosis.case", "prompts.render", True),
        ("agent_server.interfaces.cli.main", "agent_server.worker.service", True),
        ("agent_server.new.module", "agent_server.settings.load", False),
        ("knowledge_base.store", "agent_server.app", False),
        ("knowledge_base.store", "tools.recording.home", True),
        ("agent_server.presentation.texts", "prompts.render", True),
        ("tools.host.fileslower", "knowledge_base.causes", False),
        ("tools.host.fileslower", "prompts.render", False),
        ("tools.host.fileslower", "tools.recording.store", True),
        ("tools.recording.store", "tools.collect.tables", False),
        ("tools.contract.result", "tools.recording.store", False),
        ("tools.collect.tables", "tools.host.common.latency", False),
        ("tools.host.fileslower", "tools.ranks.anything", False),
        ("tools.host.fileslower.tool", "tools.host.fileslower.totals", True),
        ("tools.host.fileslower.tool", "tools.host.common.latency", True),
        ("tools.host.fileslower.tool", "tools.host.biolatency", False),
        ("tools.host.common.latency", "tools.host.biolatency", False),
        ("tools.profiles.heat_map.tool", "tools.profiles.flame_graph.data", False),
        ("tools.toolbox", "tools.host.fileslower", True),
        ("tools.host.fileslower", "tools.toolbox", False),
        ("tools.collect.ebpf_engine", "bpf.session", True),
        ("bpf.session", "tools.contract.errors", False),
        ("prompts.render", "knowledge_base.models", False),
        ("prompts.render", "tools.contract.text", False),
        ("prompts.render", "prompts.escape", True),
    ],
)
def test_the_rule(importer: str, imported: str, allowed: bool) -> None:
    assert may_import(importer, imported) is allowed


def test_every_form_of_import_is_found() -> None:
    code = """
import whystall.tools.host
from whystall.prompts import render
from whystall import bpf
from .models import x
from .. import agent_server
def late():
    from whystall.knowledge_base.store import KnowledgeBase
if TYPE_CHECKING:
    from whystall.tools.recording.store import Recording
else:
    import whystall.tools.views
"""
    assert list(imports(ast.parse(code), "whystall.knowledge_base")) == [
        "tools.host",
        "prompts",
        "bpf",
        "knowledge_base.models",
        "agent_server",
        "knowledge_base.store",
        "tools.views",
    ]


def distribution() -> dict[str, Any]:
    settings: dict[str, Any] = load_file(str(ROOT / "pyproject.toml"))["tool"]["setuptools"]
    return settings


def test_the_distribution_lists_every_package() -> None:
    there = {
        "whystall." + ".".join(init.parent.relative_to(ROOT).parts)
        for root in ROOTS
        for init in (ROOT / root).rglob("__init__.py")
    }
    assert set(distribution()["packages"]) == there | {"whystall.deploy", "whystall.skills"}  # files only


def test_the_distribution_holds_all_data() -> None:
    shipped = {
        path
        for package, globs in distribution().get("package-data", {}).items()
        for pattern in globs
        for path in ROOT.joinpath(*package.split(".")[1:]).glob(pattern)
    }
    data = {
        p
        for root in ("knowledge_base", "prompts", "tools")
        for end in ("yaml", "j2", "css", "js")
        for p in (ROOT / root).rglob(f"*.{end}")
    }
    data |= set((ROOT / "skills").rglob("*.*"))
    assert len(data) > 20
    assert data - shipped == set()


def test_every_directory_with_code_is_a_package() -> None:
    bare = {path.parent for path in sources() if not (path.parent / "__init__.py").exists()}
    assert bare == set()
