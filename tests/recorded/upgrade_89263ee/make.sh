#!/bin/bash
# Make ../knowledge_89263ee.db.gz, and shown.json.gz (what that version shows of it), by the commands of commit 89263ee:
# make.sh WHYSTALL
#   WHYSTALL: that version's command (git worktree add DIR 89263ee, its package in a virtual environment)
# Its checkout must be the working directory: the recordings that it diagnoses are its own.
set -euo pipefail
whystall=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
export WHYSTALL_HOME=$home WHYSTALL_CONFIG=$here/whystall.toml USER=ann LOGNAME=ann
export OLD_SECRET=an-old-secret-0123456789 OLD_HOOK="https://oapi.dingtalk.com/robot/send?access_token=x"
unset WHYSTALL_TOKEN
id_of() { python3 -c 'import json, sys; print(json.load(sys.stdin)["id"])'; }
recorded=tests/recorded
run() { "$whystall" "$@" >/dev/null; }

# 1: resolved, its card reviewed, seen again; 2: closed; 3 and 4: work orders, one a duplicate of the other's kind
run diagnose --from $recorded/checkpoint --symptom "steps take twice as long" --ticket
run tickets acknowledge 1 --by ann
run tickets comment 1 "it began with the new filer 自从换了文件服务器" --by ann
run tickets resolve 1 --because "checkpoints are written by a thread now" --by ann
run kb review ticket-1 --accept --by ann
again=$("$whystall" diagnose --from $recorded/checkpoint --symptom "slow again" --json | id_of)
run kb feedback ticket-1 helped --diagnosis "$again" --comment "the same"
run diagnose --from $recorded/quota --symptom "训练变慢" --ticket --lang zh
run tickets assign 2 mueller --by ann
run tickets close 2 --as wont_fix --because "the quota is wanted" --by ann
run diagnose --from $recorded/healthy
run diagnose --from $recorded/background
run tickets import "$here/work_orders.csv"
run tickets link 3 4 --by ann
run kb add "$here/card.yaml" --by ann
run silence add alertname=DiskSlow 'node=~gpu-.*' --for 2d --because "maintenance" --by ann
# those of 2040 are still to come when the file is read
run silence add alertname=StepTimeHigh --from 2040-01-01T00:00 --to 2040-01-08T00:00 --because "move" --by ann
run oncall override add --replace wang --with mueller --from 2040-01-01T00:00 --to 2040-01-08T00:00 --because "leave" --by ann

# alerts, as Alertmanager posts them, while the server runs
WHYSTALL_TOKEN=0123456789abcdef0123 "$whystall" serve --transport http --port 8391 2>"$home/serve.log" &
server=$!
until curl -fs http://127.0.0.1:8391/healthz >/dev/null; do sleep 0.2; done
post() { curl -fsS -H "Authorization: Bearer $OLD_SECRET" -H 'Content-Type: application/json' -d @- http://127.0.0.1:8391/alerts/"$1" >/dev/null; }
alert() { # NAME STATUS NODE
    ended=0001-01-01T00:00:00Z
    [ "$2" = firing ] || ended=2026-11-22T10:30:00Z
    printf '{"status": "%s", "labels": {"alertname": "%s", "job": "llama", "node": "%s", "severity": "critical"}, "annotations": {"summary": "%s on %s 告警"}, "startsAt": "2026-11-22T10:00:00Z", "endsAt": "%s", "fingerprint": "%s"}' "$2" "$1" "$3" "$1" "$3" "$ended" "$(printf '%s%s' "$1" "$3" | sha256sum | cut -c1-16)"
}
message() { # STATUS ALERT...
    status=$1; shift; IFS=,
    printf '{"version": "4", "groupKey": "{}:{alertname=x}", "truncatedAlerts": 0, "status": "%s", "receiver": "whystall", "groupLabels": {}, "commonLabels": {}, "commonAnnotations": {}, "externalURL": "http://127.0.0.1:9", "alerts": [%s]}' "$status" "$*"; unset IFS
}
message firing "$(alert StepTimeHigh firing gpu-1)" "$(alert StepTimeHigh firing gpu-2)" "$(alert GpuLost firing gpu-3)" | post alertmanager
message firing "$(alert DiskSlow firing gpu-4)" | post alertmanager
sleep 8
message resolved "$(alert GpuLost resolved gpu-3)" | post alertmanager
sleep 8
kill $server; wait $server || true
# what that version shows of it
{
    for each in "tickets list" "alerts list" "silence list" "oncall override list" "audit --limit 1000" \
        "config show" "kb show ticket-1" "kb show our-nfs-home" "tickets show "{1..6} "tickets history "{1..6}; do
        # shellcheck disable=SC2086
        printf '"%s": %s,\n' "$each" "$("$whystall" $each --json)"
    done
} | sed '1s/^/{/; $s/,$/}/' | python3 -c 'import json, sys; json.dump(json.load(sys.stdin), sys.stdout, ensure_ascii=False)' |
    gzip -9n >"$here/shown.json.gz"
gzip -9nc "$home/knowledge.db" >"$here/../knowledge_89263ee.db.gz"
