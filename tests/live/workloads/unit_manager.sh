# A manager of systemd's own, run beside whatever is process 1 here, applies a unit's sandbox as the system's would:
# capabilities, mounts, seccomp, hidden processes. (Of cgroups it has only the hierarchy given to it.)
#
#   unit_manager.sh FOLDER UNIT
#
# To be run by root in mounts of its own (unshare -m). FOLDER/user: its units; FOLDER/etc/passwd, FOLDER/etc/group:
# the users there are; FOLDER/whystall: becomes /etc/whystall; FOLDER/opt: /opt. What the manager logs comes out.
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=0755 whystall-test /run
mount --make-rshared /
mkdir -p /run/systemd/system /run/systemd/inaccessible /run/lock "/run/test"
(
	cd /run/systemd/inaccessible
	mkdir -m 0 dir && install -m 0 /dev/null reg && mkfifo -m 0 fifo
	mknod -m 0 chr c 0 0 && mknod -m 0 blk b 0 0
)
for file in passwd group; do mount --bind "$1/etc/$file" /etc/$file; done
mkdir -p /etc/whystall /opt
mount --bind "$1/whystall" /etc/whystall
mount --bind "$1/opt" /opt
for cgroup in $(sed -n 's/^[^ ]* \([^ ]*\) cgroup2 .*/\1/p; s/^[^ ]* \([^ ]*\) cgroup .*name=systemd.*/\1/p' /proc/mounts); do
	mkdir -p "$cgroup/whystall-test/manager"
	echo $$ >"$cgroup/whystall-test/manager/cgroup.procs"
done
export XDG_RUNTIME_DIR=/run/test XDG_CONFIG_HOME=/run/test/config HOME=/root SYSTEMD_LOG_TARGET=kmsg
mkdir -p $XDG_CONFIG_HOME/systemd
cp -r "$1/user" $XDG_CONFIG_HOME/systemd/user
chmod -R a+rX $XDG_RUNTIME_DIR
exec /lib/systemd/systemd --user --unit="$2"
