#!/bin/bash
# Slurm's Epilog: end the watch of the job, and delete states of jobs that ended long ago (slurm.conf: Epilog=...).
# It always succeeds: an epilog that fails drains the node.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
[ -n "$job" ] || exit 0
if [ -d /run/systemd/system ]; then
    systemctl stop "$unit.service" 2>/dev/null
elif read -r pid 2>/dev/null <"$home/watch.pid" && is_watch "$pid"; then
    kill -TERM "$pid"
    for _ in {1..100}; do # it finishes the case that it works on
        is_watch "$pid" || break
        sleep 0.1
    done
    ! is_watch "$pid" || kill -KILL "$pid"
fi
rm -f "$home/watch.pid"
case $keep_days in
"" | *[!0-9]*) ;;
*) find "$jobs" -mindepth 1 -maxdepth 1 -type d -regex '.*/[0-9]+' -mtime "+$keep_days" -exec rm -rf {} + ;;
esac
exit 0
