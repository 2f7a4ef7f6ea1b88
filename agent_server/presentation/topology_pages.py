"""The topology of cluster_topology as a page and a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from whystall.prompts.render import words
from whystall.tools.contract.registry import ArtifactContent, Judgement
from whystall.tools.views.topology_drawing import Gpu, HostView, Node
from whystall.tools.views.topology_page import Table, topology_page, topology_svg

if TYPE_CHECKING:
    from whystall.tools.host.cluster_topology.cluster import Cluster, Host
    from whystall.tools.host.cluster_topology.data import Data, DeviceRow, RankRow

Lang = Literal["en", "zh"]
_WHOLE_MS = 10
# the letter of a mark: an error before what follows from it
_LETTERS = (
    ("X", ("gpu.", "host.", "crash.")),
    ("L", ("link.", "port.")),
    ("T", ("topology.latency",)),
    ("A", ("topology.",)),
    ("S", ("rank.", "stage.")),
)


def topology_pages(judged: Judgement[Any], lang: Lang) -> list[ArtifactContent]:
    """Draw the cluster; `judged.basis`: the cluster and its whole data. Empty without a device."""
    cluster, data = cast("tuple[Cluster, Data]", judged.basis)
    if not any(host.devices for host in cluster.hosts.values()):
        return []
    texts: dict[str, Any] = words(lang)["topology_page"]
    views = [_Views(cluster, data, texts).host(host) for host in cluster.hosts.values()]
    heading = str(texts["heading"])
    gpus, nics = (sum(len(host.of_kind(kind)) for host in cluster.hosts.values()) for kind in ("gpu", "nic"))
    counts = {"hosts": len(cluster.hosts), "gpus": gpus, "nics": nics, "ranks": len(cluster.ranks)}
    facts = texts["between_facts"].join(
        texts["facts"][name]["one" if count == 1 else "other"].format(count) for name, count in counts.items()
    )
    if data.affinity:
        verdict = texts["far"].format(count=len({row.rank for row in data.affinity}))
    else:
        verdict = texts["none_far"] if any(data.judged.values()) else texts["not_judged"]
    page = topology_page(
        views, _tables(data, texts, lang), texts, lang=lang, heading=heading, verdict=verdict, notes=[facts]
    )
    svg = topology_svg(views, texts, heading=heading, notes=[f"{facts} · {verdict}", *texts["legend"].values()])
    return [
        ArtifactContent(name="topology.html", title=heading, media_type="text/html", text=page),
        ArtifactContent(name="topology.svg", title=str(texts["picture"]), media_type="image/svg+xml", text=svg),
    ]


class _Views:
    def __init__(self, cluster: Cluster, data: Data, texts: dict[str, Any]) -> None:
        self._texts = texts
        self._ranks: dict[tuple[str, str], list[RankRow]] = {}
        place = {rank.rank: (rank.host, rank.device) for rank in cluster.ranks}
        for rank in cluster.ranks:
            self._ranks.setdefault((rank.host, rank.device), []).append(rank)
        self._kinds: dict[tuple[str, str], list[str]] = {}
        for mark in data.marks:
            at = place.get(mark.rank) if mark.rank is not None else None
            key = at if at is not None and at[1] else (mark.host, mark.device)
            known = key[0] in cluster.hosts and key[1] in cluster.hosts[key[0]].devices
            self._kinds.setdefault(key if known else (key[0], ""), []).append(mark.kind)
        for row in data.affinity:
            self._kinds.setdefault((row.host, row.device), []).append("topology.")
        self._nvlink = {row.host: row.nvlink for row in data.hosts}

    def host(self, host: Host) -> HostView:
        nodes = []
        devices = [*host.of_kind("gpu"), *host.of_kind("nic")]
        known = sorted({one.numa_node for one in devices if one.numa_node is not None})
        for number in (*known, None):
            inside = [one for one in devices if one.numa_node == number]
            if not inside:
                continue
            label = self._texts["no_node"] if number is None else self._texts["node"].format(number)
            gpus, nics = (tuple(self._device(one) for one in inside if one.kind == kind) for kind in ("gpu", "nic"))
            nodes.append(Node(label, gpus, nics))
        links = self._nvlink.get(host.name, 0)
        return HostView(
            name=host.name,
            note=self._texts["nvlink"].format(links) if links else "",
            mark=_letter(self._kinds.get((host.name, ""), [])),
            nodes=tuple(nodes),
        )

    def _device(self, one: DeviceRow) -> Gpu:
        ranks = self._ranks.get((one.host, one.device), [])
        kinds = self._kinds.get((one.host, one.device), [])
        lines = tuple(self._rank(rank) for rank in ranks[:2])
        near = f"{one.relation} {one.nearest}" if one.nearest else ""
        about = [one.device, one.model, one.bus if one.bus != one.device else "", *map(self._rank, ranks), near, *kinds]
        return Gpu(one.device, lines, _letter(kinds), ", ".join(text for text in about if text))

    def _rank(self, rank: RankRow) -> str:
        text = str(self._texts["rank"].format(rank.rank))
        if rank.stage is not None:
            text += f" {self._texts['stage'].format(rank.stage)}"
        return f"({text})" if rank.placed == "order" else text


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value >= _WHOLE_MS else f"{value:.1f}"


def _letter(kinds: list[str]) -> str:
    return next((letter for letter, starts in _LETTERS if any(kind.startswith(starts) for kind in kinds)), "")


def _tables(data: Data, texts: dict[str, Any], lang: Lang) -> list[Table]:
    columns, severities = texts["columns"], words(lang)["severities"]

    def table(title: str, names: str, rows: list[list[str]]) -> Table:
        return Table(str(texts[title]), tuple(columns[name] for name in names.split()), rows)

    return [
        table(
            "affinity",
            "rank host device what own near",
            [[str(r.rank), r.host, r.device, texts["what"][r.what], r.own, r.near] for r in data.affinity],
        ),
        table(
            "marks",
            "host device rank kind severity",
            [
                [r.host, r.device, "" if r.rank is None else str(r.rank), r.kind, severities[r.severity]]
                for r in data.marks
            ],
        ),
        table(
            "hosts",
            "host gpus nics nodes links ranks found",
            [
                [r.host, str(r.gpus), str(r.nics), str(r.numa_nodes), str(r.nvlink or ""), r.ranks, r.marks]
                for r in data.hosts
            ],
        ),
        table(
            "latency",
            "host server requests p50 p90 peers",
            [[r.host, r.source, str(r.requests), _ms(r.p50_ms), _ms(r.p90_ms), _ms(r.peers_ms)] for r in data.latency],
        ),
        table("groups", "group spans ranks", [[r.name, str(r.hosts), r.ranks] for r in data.groups]),
    ]
