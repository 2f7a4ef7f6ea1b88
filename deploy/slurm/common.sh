# shellcheck shell=bash disable=SC2034 # the scripts use what is set here
# Sourced by the other scripts: where things are, and which job. Other values: /etc/whystall/slurm.conf, in shell syntax.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin # slurmd sets none
whystall=/opt/whystall/bin/whystall
jobs=/var/lib/whystall/jobs # the state of each job's watch: its log of waits, tickets, diagnoses
keep_days=14                # that states of jobs are kept
# shellcheck source=/dev/null
if [ -r "${WHYSTALL_SLURM_CONF:-/etc/whystall/slurm.conf}" ]; then
    . "${WHYSTALL_SLURM_CONF:-/etc/whystall/slurm.conf}"
fi

job=${SLURM_JOB_ID:-}
case $job in
"" | *[!0-9]*)
    echo "whystall: SLURM_JOB_ID is not the number of a job" >&2
    job=
    ;;
esac
home=$jobs/$job
unit=whystall-job-$job

# Return whether process $1 is the watch of the job: its number may be that of another process by now.
is_watch() {
    tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline" | grep -q -- " watch --slurm-job $job "
}
