#!/bin/bash
# Slurm's Prolog: start a watch of the job on this node. slurmd runs it as root (slurm.conf: Prolog=...).
# It always succeeds: a prolog that fails drains the node and requeues the job.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
[ -n "$job" ] || exit 0
if [ ! -x "$whystall" ]; then
    echo "whystall: no program $whystall: job $job is not watched" >&2
    exit 0
fi
umask 077
mkdir -p "$home" || exit 0
if [ -d /run/systemd/system ]; then
    # a unit of its own: slurmd ends the processes that a prolog leaves behind
    systemd-run --quiet --collect --unit="$unit" --nice=10 --setenv=WHYSTALL_HOME="$home" \
        "$whystall" watch --slurm-job "$job" ||
        echo "whystall: job $job is not watched" >&2
    exit 0
fi
WHYSTALL_HOME=$home setsid nice -n 10 "$whystall" watch --slurm-job "$job" </dev/null >"$home/watch.log" 2>&1 &
echo $! >"$home/watch.pid"
exit 0
