# First process of a guest, run by busybox over the root that virtme-ng's initramfs mounted (9p, read-only).
#
# virtme-ng's own init runs udev's coldplug and systemd-tmpfiles, which take two thirds of an emulated boot and which
# nothing here needs. The root made instead: an overlay in memory over the image of what is hot (`image.py`) over the
# host's root by 9p with a cache (the kernel of 5.10 reads 9p a page at a time, and looks every name up again).

# busybox finds its own programs through /proc
set -e
"$1" mount -t proc proc /proc
for word in $(cat /proc/cmdline); do
    case $word in
    whystall.kernel=*) kernel=${word#*=} ;;
    whystall.shared=*) shared=${word#*=} ;;
    esac
done
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mkdir /run/host /run/image /run/memory /run/root
"$2" -d "$kernel" -a virtio_blk squashfs overlay 9p loop
mount -t devtmpfs devtmpfs /dev
mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000,access=any whystall.host /run/host
mount -t squashfs -o ro /dev/vda /run/image
mount -t tmpfs tmpfs /run/memory
mkdir /run/memory/upper /run/memory/work
mount -t overlay -o lowerdir=/run/image:/run/host,upperdir=/run/memory/upper,workdir=/run/memory/work root /run/root

root=/run/root
mkdir -p $root/usr/lib/modules $root/usr/src "$root$shared" $root/mnt
mount --bind "$root$kernel/lib/modules" $root/usr/lib/modules
mount --bind "$root$kernel/usr/src" $root/usr/src
mount -t 9p -o rw,trans=virtio,version=9p2000.L,msize=512000,access=any whystall.shared "$root$shared"
mount -t tmpfs tmpfs $root/run
mount --move /dev $root/dev
mount --move /sys $root/sys
mount --move /proc $root/proc
cd $root
pivot_root . mnt
umount -l /mnt

set +e
mkdir -p /dev/pts /dev/shm /run/lock
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mount -t securityfs securityfs /sys/kernel/security
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
hostname whystall-guest
ip link set lo up

for port in /sys/class/virtio-ports/*; do
    case $(cat "$port/name") in
    virtme.stdout) out=/dev/${port##*/} ;;
    esac
done
cut -d ' ' -f 1 /proc/uptime >"$shared/booted"
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8
setsid bash "$shared/command.sh" </dev/null >"${out:-/dev/console}" 2>&1
echo $? >"$shared/code"
sync
reboot -f
