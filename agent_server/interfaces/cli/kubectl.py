"""``kubectl whystall``: a plugin of kubectl (https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Optional

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.main import end_with, run_tree
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption, checked, command, underscores
from whystall.agent_server.interfaces.signals import signals
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.extras import extra

if TYPE_CHECKING:
    from whystall.agent_server.fleet.kubernetes import Access

_NAME = "kubectl whystall"
# The pod is the target; paths would be those of the agent's own file system.
_NOT_HERE = (
    *("pid", "comm", "cgroup", "children", "traces", "baseline", "topology", "before", "log"),
    *("scheduler", "jobs", "profile", "calibrate"),
)
_KINDS = ("pod", "pods", "po")

NamespaceOption = Annotated[
    Optional[str],  # noqa: UP045  typer reads this at run time, also on Python 3.10
    typer.Option("--namespace", "-n", metavar="NAMESPACE", help="of the pod; default: that of the context"),
]
ContainerOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--container", "-c", metavar="NAME", help="this container only; default: all of the pod"),
]
KubeconfigOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--kubeconfig", metavar="FILE", help="default: KUBECONFIG, ~/.kube/config, the own service account"),
]
ContextOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--context", metavar="NAME", help="a context of the kubeconfig; default: its current one"),
]
ServerOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--server", "-s", metavar="URL", help="of `kubectl proxy` on this machine: http://127.0.0.1:8001"),
]


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: the entry point of ``kubectl-whystall``."""
    end_with(lambda words: run_tree(_tree, words or ["--help"], _NAME), argv)


def _tree() -> Callable[..., Any]:
    from whystall.agent_server.diagnosis.params import DiagnoseParams

    app = typer.Typer(
        name=_NAME,
        help="Diagnose pods by the whystall agent of their node.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": underscores},
    )
    app.callback()(lambda: None)  # keeps `diagnose` a word of the command, also while it is the only one
    about = "Report what stalls a pod, where, for how long, and what to do."
    app.command("diagnose")(command(diagnose, DiagnoseParams, doc=about, skip=_NOT_HERE))
    return app


def diagnose(
    given: dict[str, Any],
    pod: Annotated[str, typer.Argument(metavar="pod/NAME", help="the pod")],
    namespace: NamespaceOption = None,
    container: ContainerOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    server: ServerOption = None,
    agent_namespace: Annotated[
        str, typer.Option("--agent-namespace", metavar="NAMESPACE", help="where the agents run")
    ] = "whystall",
    agent_name: Annotated[
        str, typer.Option("--agent-name", metavar="NAME", help="of their DaemonSet and Secret (a release of the chart)")
    ] = "whystall",
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Diagnose a pod."""
    from whystall.agent_server.diagnosis.params import DiagnoseParams
    from whystall.agent_server.presentation.results import diagnosis_text
    from whystall.agent_server.settings.load import load

    params, name = checked(DiagnoseParams, given), _pod(pod)
    with extra("fleet"):
        from whystall.agent_server.fleet.node_agent import Agents, diagnose_pod
    access = _access(kubeconfig, context, server)
    agents = Agents(agent_namespace, agent_name)
    where = namespace or access.namespace
    work = diagnose_pod(name, where, params, access, load().fleet, container=container, agents=agents)
    diagnosis = signals.run(work)
    if as_json:
        console.say_json(diagnosis)
    else:
        console.say(diagnosis_text(diagnosis, lang))


def _pod(given: str) -> str:
    """Return ``NAME`` of ``pod/NAME`` or ``NAME``."""
    kind, slash, name = given.rpartition("/")
    if slash and kind not in _KINDS:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{kind[:100]!r} is no kind that can be diagnosed", "write pod/NAME")
    return name


def _access(kubeconfig: Path | None, context: str | None, server: str | None) -> Access:
    """Return the access that the options name, else the own one (`own_access`)."""
    from whystall.agent_server.fleet.kubernetes import config_path, of_kubeconfig, of_proxy, own_access

    if server is not None:
        return of_proxy(server)
    if kubeconfig is not None or context is not None:
        return of_kubeconfig(kubeconfig or config_path(), context)
    return own_access()
