/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The LD_PRELOAD shim: reading and writing, and how it starts.
 *
 * A small request costs the test of a byte, the call itself, and two additions to counters. Only requests of at least the
 * smallest size that can be direct by the policy are examined further (shim_large.c).
 */
#include "shim.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>

struct shim shim = { .large = UINT64_MAX, .off = true };
struct shim_next shim_next;
__thread struct shim_thread shim_thread __attribute__((tls_model("initial-exec")));

void shim_resolve(void)
{
	int saved = errno;

#define X(name)                                                                                                       \
	if (!shim_next.name)                                                                                          \
		shim_next.name = (__typeof__(shim_next.name))dlsym(RTLD_NEXT, #name);
	SHIM_NEXT(X)
#undef X
	errno = saved;
}

/* Parses options as tools/hybrid_io/run.py writes them: "name=number", separated by commas. Unknown ones are skipped. */
static void options(const char *text)
{
	const struct { const char *name; uint64_t *whole; double *millionths; } known[] = {
		{ "read_direct", &shim.policy.read_direct_bytes, NULL },
		{ "write_direct", &shim.policy.write_direct_bytes, NULL },
		{ "pressure_direct", &shim.policy.pressure_direct_bytes, NULL },
		{ "limit", &shim.policy.limit_bytes, NULL },
		{ "keep_file", &shim.policy.keep_file_bytes, NULL },
		{ "limit_ppm", NULL, &shim.policy.limit_share },
		{ "direct_ppm", NULL, &shim.policy.direct_share },
	};

	while (*text) {
		size_t name = strcspn(text, "=,"), value = 0;
		uint64_t number = 0;

		if (text[name] == '=')
			for (const char *digit = text + name + 1; *digit >= '0' && *digit <= '9'; digit++, value++)
				number = number * 10 + (uint64_t)(*digit - '0');
		for (size_t i = 0; value && i < sizeof(known) / sizeof(known[0]); i++) {
			if (strlen(known[i].name) != name || strncmp(known[i].name, text, name))
				continue;
			if (known[i].whole)
				*known[i].whole = number;
			else
				*known[i].millionths = (double)number / 1e6;
		}
		if (value && name == 4 && !strncmp(text, "mode", 4))
			shim.policy.mode = (uint32_t)number;
		if (value && name == 6 && !strncmp(text, "follow", 6))
			shim.follow = number;
		text += strcspn(text, ",");
		text += *text == ',';
	}
}

static uint64_t smallest(const struct hy_policy *policy)
{
	uint64_t least = policy->pressure_direct_bytes;

	if (policy->mode == HY_ALWAYS_BUFFERED)
		return UINT64_MAX;
	if (policy->mode == HY_ALWAYS_DIRECT)
		return 1;
	if (policy->read_direct_bytes < least)
		least = policy->read_direct_bytes;
	if (policy->write_direct_bytes < least)
		least = policy->write_direct_bytes;
	return least ? least : 1;
}

/* Copies a variable of ours from the environment, which the program may clear. */
static const char *setting(int number, const char *name)
{
	size_t length = strlen(name);

	for (char **at = environ; at && *at; at++) {
		if (strncmp(*at, name, length) || strlen(*at) >= sizeof(shim.settings[0]))
			continue;
		strcpy(shim.settings[number], *at);
		return shim.settings[number] + length;
	}
	return "";
}

__attribute__((constructor)) static void start(void)
{
	const char *folder = setting(0, "WHYSTALL_HYBRID_COUNTERS=");
	const char *policy = setting(1, "WHYSTALL_HYBRID_POLICY=");
	int saved = errno;
	Dl_info about;

	shim_resolve();
	hy_policy_default(&shim.policy);
	options(policy);
	shim.library = dladdr(&shim, &about) && about.dli_fname ? about.dli_fname : "";
	if (strlen(folder) < sizeof(shim.folder) - 40)
		strcpy(shim.folder, folder);
	shim.pid = (int)syscall(SYS_getpid);
	shim_count_start();
	shim_started();
	shim.large = smallest(&shim.policy);
	shim.off = false;
	errno = saved;
}

__attribute__((destructor)) static void finish(void)
{
	int saved = errno;

	if (shim_active())
		shim_count_final();
	errno = saved;
}

static const enum hy_reason small_reason[] = {
	[SHIM_UNKNOWN] = HY_OFF, [SHIM_FILE] = HY_SMALL, [SHIM_OTHER] = HY_UNSUPPORTED, [SHIM_DIRECT] = HY_CALLER,
};

/*
 * Makes one request; `next`: the program's call in the next library. For a large request on a descriptor known as no file
 * the descriptor is examined again, since it may have been reused.
 */
#define REQUEST(operation, vectors_, count_, total, where, next)                                                      \
	do {                                                                                                          \
		ssize_t got;                                                                                          \
		enum hy_reason reason;                                                                                \
		if (unlikely((total) >= shim.large)) {                                                                \
			const struct shim_request request = { fd, operation, vectors_, count_, total, where };        \
			if (shim_large(&request, &got, &reason))                                                      \
				return got;                                                                           \
		} else {                                                                                              \
			reason = shim.off ? HY_OFF : small_reason[shim_class(fd)];                                    \
		}                                                                                                     \
		got = (next);                                                                                         \
		if (likely(got >= 0))                                                                                 \
			shim_count(operation, reason, got);                                                           \
		if (reason == HY_SMALL && got > 0)                                                                    \
			shim_passed(fd, operation, where, got);                                                       \
		return got;                                                                                           \
	} while (0)

#define ONE(memory, length) (&(const struct iovec){ (void *)(uintptr_t)(memory), length })

SHIM_API ssize_t read(int fd, void *data, size_t bytes)
{
	REQUEST(HY_READ, ONE(data, bytes), 1, bytes, HY_POSITION,
		shim_next.read ? shim_next.read(fd, data, bytes) : k_read(fd, data, bytes));
}

SHIM_API ssize_t write(int fd, const void *data, size_t bytes)
{
	REQUEST(HY_WRITE, ONE(data, bytes), 1, bytes, HY_POSITION,
		shim_next.write ? shim_next.write(fd, data, bytes) : k_write(fd, data, bytes));
}

/* A negative offset does not mean the position here: the kernel returns EINVAL. */
#define AT(offset, bytes) ((offset) < 0 ? 0 : (bytes))

SHIM_API ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
	REQUEST(HY_READ, ONE(data, bytes), 1, AT(offset, bytes), offset,
		shim_next.pread ? shim_next.pread(fd, data, bytes, offset) : k_pread(fd, data, bytes, offset));
}

SHIM_API ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
	REQUEST(HY_WRITE, ONE(data, bytes), 1, AT(offset, bytes), offset,
		shim_next.pwrite ? shim_next.pwrite(fd, data, bytes, offset) : k_pwrite(fd, data, bytes, offset));
}

SHIM_API ssize_t pread64(int fd, void *data, size_t bytes, off64_t offset)
{
	return pread(fd, data, bytes, offset);
}

SHIM_API ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset)
{
	return pwrite(fd, data, bytes, offset);
}

/* Called for read with -D_FORTIFY_SOURCE; `room`: size of the buffer known to the compiler. */
ssize_t __read_chk(int fd, void *data, size_t bytes, size_t room);
ssize_t __pread_chk(int fd, void *data, size_t bytes, off_t offset, size_t room);
ssize_t __pread64_chk(int fd, void *data, size_t bytes, off64_t offset, size_t room);

void shim_overrun(void)
{
	void (*fail)(void) = (void (*)(void))dlsym(RTLD_NEXT, "__chk_fail");

	if (fail)
		fail();
	abort();
}

SHIM_API ssize_t __read_chk(int fd, void *data, size_t bytes, size_t room)
{
	if (bytes > room)
		shim_overrun();
	return read(fd, data, bytes);
}

SHIM_API ssize_t __pread_chk(int fd, void *data, size_t bytes, off_t offset, size_t room)
{
	if (bytes > room)
		shim_overrun();
	return pread(fd, data, bytes, offset);
}

SHIM_API ssize_t __pread64_chk(int fd, void *data, size_t bytes, off64_t offset, size_t room)
{
	if (bytes > room)
		shim_overrun();
	return pread(fd, data, bytes, offset);
}

/* Returns the bytes of an array of buffers; 0 if it is invalid, which is left to the kernel. */
static size_t total_of(const struct iovec *vectors, int count)
{
	size_t total = 0;

	if (count <= 0 || count > IOV_MAX || (uintptr_t)vectors < SHIM_PAGE)
		return 0;
	for (int i = 0; i < count; i++)
		if (vectors[i].iov_len > SSIZE_MAX - total)
			return 0;
		else
			total += vectors[i].iov_len;
	return total;
}

SHIM_API ssize_t readv(int fd, const struct iovec *vectors, int count)
{
	REQUEST(HY_READ, vectors, count, total_of(vectors, count), HY_POSITION,
		shim_next.readv ? shim_next.readv(fd, vectors, count) : k_readv(fd, vectors, count));
}

SHIM_API ssize_t writev(int fd, const struct iovec *vectors, int count)
{
	REQUEST(HY_WRITE, vectors, count, total_of(vectors, count), HY_POSITION,
		shim_next.writev ? shim_next.writev(fd, vectors, count) : k_writev(fd, vectors, count));
}

SHIM_API ssize_t preadv(int fd, const struct iovec *vectors, int count, off_t offset)
{
	REQUEST(HY_READ, vectors, count, AT(offset, total_of(vectors, count)), offset,
		shim_next.preadv ? shim_next.preadv(fd, vectors, count, offset) :
				   k_preadv(fd, vectors, count, offset));
}

SHIM_API ssize_t pwritev(int fd, const struct iovec *vectors, int count, off_t offset)
{
	REQUEST(HY_WRITE, vectors, count, AT(offset, total_of(vectors, count)), offset,
		shim_next.pwritev ? shim_next.pwritev(fd, vectors, count, offset) :
				    k_pwritev(fd, vectors, count, offset));
}

SHIM_API ssize_t preadv64(int fd, const struct iovec *vectors, int count, off64_t offset)
{
	return preadv(fd, vectors, count, offset);
}

SHIM_API ssize_t pwritev64(int fd, const struct iovec *vectors, int count, off64_t offset)
{
	return pwritev(fd, vectors, count, offset);
}

/* With flags the request is passed on unchanged; offset -1 is the position. */
#define FLAGGED(offset, flags, bytes) ((flags) || (offset) < -1 ? 0 : (bytes))

SHIM_API ssize_t preadv2(int fd, const struct iovec *vectors, int count, off_t offset, int flags)
{
	REQUEST(HY_READ, vectors, count, FLAGGED(offset, flags, total_of(vectors, count)), offset,
		SHIM_CALL(preadv2)(fd, vectors, count, offset, flags));
}

SHIM_API ssize_t pwritev2(int fd, const struct iovec *vectors, int count, off_t offset, int flags)
{
	REQUEST(HY_WRITE, vectors, count, FLAGGED(offset, flags, total_of(vectors, count)), offset,
		SHIM_CALL(pwritev2)(fd, vectors, count, offset, flags));
}

SHIM_API ssize_t preadv64v2(int fd, const struct iovec *vectors, int count, off64_t offset, int flags)
{
	return preadv2(fd, vectors, count, offset, flags);
}

SHIM_API ssize_t pwritev64v2(int fd, const struct iovec *vectors, int count, off64_t offset, int flags)
{
	return pwritev2(fd, vectors, count, offset, flags);
}

/* Copies within the kernel go through the page cache; only their bytes are counted. */
static ssize_t copied(ssize_t bytes)
{
	if (bytes > 0 && !shim.off)
		__atomic_fetch_add(&shim_counters->copied_bytes, (uint64_t)bytes, __ATOMIC_RELAXED);
	return bytes;
}

SHIM_API ssize_t sendfile(int out, int in, off_t *offset, size_t bytes)
{
	return copied(SHIM_CALL(sendfile)(out, in, offset, bytes));
}

SHIM_API ssize_t sendfile64(int out, int in, off64_t *offset, size_t bytes)
{
	return copied(SHIM_CALL(sendfile)(out, in, offset, bytes));
}

SHIM_API ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t bytes, unsigned int flags)
{
	return copied(SHIM_CALL(copy_file_range)(in, from, out, to, bytes, flags));
}

SHIM_API ssize_t splice(int in, off64_t *from, int out, off64_t *to, size_t bytes, unsigned int flags)
{
	return copied(SHIM_CALL(splice)(in, from, out, to, bytes, flags));
}

SHIM_API int fsync(int fd)
{
	return shim_sync(fd, false, shim_next.fsync);
}

SHIM_API int fdatasync(int fd)
{
	return shim_sync(fd, true, shim_next.fdatasync);
}

SHIM_API int ftruncate(int fd, off_t bytes)
{
	return shim_truncate(fd, bytes);
}

SHIM_API int ftruncate64(int fd, off64_t bytes)
{
	return shim_truncate(fd, bytes);
}
