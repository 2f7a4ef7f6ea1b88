"""Check claims about what a thread does or waits for against the cited rows of critical paths. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from whystall.agent_server.diagnosis.grounding.clauses import CLAUSES, DENIED
from whystall.knowledge_base.components import path_codes_of
from whystall.tools.contract.findings import Finding

# Patterns of words for a state, and the codes of rows of which one must be cited.
_STATES: tuple[tuple[re.Pattern[str], frozenset[str]], ...] = tuple(
    (re.compile(words, re.I), frozenset(codes.split()))
    for words, codes in (
        (r"\bgil\b|interpreter(?:['’]s)? lock|解释器锁", "interpreter_lock"),
        (
            r"\b(?:wait\w*|blocked|contend\w*|acquir\w*)\b[^,;]{0,30}\b(?:locks?|mutex(?:es)?)\b|等[^，。]{0,6}锁",
            "lock interpreter_lock file_lock",
        ),
        (r"(?<!uninterruptible )\b(?:sleeps?|asleep|sleeping|slept)\b|(?<!不可中断)睡眠|休眠", "sleep poll timeout"),
        (r"\bgarbage[ -]collect\w*|垃圾回收", "garbage_collection"),
        (r"\b(?:polls|polling)\b|轮询", "poll events timeout"),
        (
            r"\b(?:network|connections?|sockets?|peers?)\b|网络|连接|套接字|对端",
            "socket socket_full connect dns events collective network_client",
        ),
        (r"\bpipes?\b|管道", "pipe pipe_full"),
        (r"\bwait\w* for (?:a|its|the) child\b|等[^，。]{0,4}子进程", "child start_process subprocess"),
        (r"\b(?:all-?reduce|collectives?)\b|集合通信", "collective"),
        (r"\b(?:gpus?|npus?|accelerators?)\b|加速卡|显卡", "device"),
        (r"\bquotas?\b|\bthrottl\w*|配额|限流", "quota"),
        (
            r"\b(?:runnable|ready to run|preempted|wait\w* for (?:a|the|its) (?:cpu|core))\b|等[^，。]{0,3} ?CPU|抢占",
            "cpu quota",
        ),
        (r"\b(?:debugger|frozen|freezer)\b|调试器|冻结", "stopped traced frozen"),
        (r"\bpage[ -]faults?\b|缺页", "page_fault swap fault"),
        (r"\b(?:name server|dns)\b|域名", "dns"),
        (
            r"\b(?:computes|computing|burns?|burning|spins|spinning|on (?:the|a|its) cpu)\b|在计算|空转|自旋",
            "running spin",
        ),
    )
)


def contradiction(prose: str, findings: Sequence[Finding]) -> str | None:
    """Return the first words in `prose` that claim a state that no cited row has; None if other findings are cited
    too."""
    if not findings or any(not f.kind.startswith("path.") for f in findings):
        return None
    known = set().union(*map(path_codes_of, findings))
    for clause in CLAUSES.split(prose):
        for words, codes in _STATES:
            match = words.search(clause)
            if match and not codes & known and not DENIED.search(clause):
                return match.group(0)
    return None
