#!/bin/bash
# Diagnose a running job on one of its nodes, with the rights of its user:
#   srun --jobid 4242 --overlap --nodelist node007 --nodes 1 --ntasks 1 diagnose.sh --symptom "steps take twice as long"
# The options are those of `whystall diagnose`.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
[ -n "$job" ] || exit 2
found=$("$whystall" jobs "slurm job $job" --json) || exit 1
pid= # of this job: a number may also be found as that of a process
grep -q "\"id\": \"slurm:$job\"" <<<"$found" && pid=$(sed -n 's/^ "pid": \([0-9]\{1,\}\),\{0,1\}$/\1/p' <<<"$found" | head -n 1)
if [ -z "$pid" ]; then
    echo "whystall: no process of job $job was found on $(uname -n); see \`$whystall jobs\`" >&2
    exit 1
fi
exec "$whystall" diagnose --pid "$pid" "$@"
