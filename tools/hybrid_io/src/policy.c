/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy: whether a request is direct or buffered, and why. A pure function, to be tested and explained by itself.
 *
 * Sources of the numbers:
 * - autoIO (Qian et al., FAST'24): below 32 KiB always buffered, from 2 MiB always direct, in between by memory
 *   pressure and lock contention;
 * - Lustre 2.17 (hybrid I/O): by size alone, writes from 2 MiB, reads from 8 MiB;
 * - the defaults: benchmarks/hybrid_io.py on a virtual disk of some 2 GB/s, under a memory cgroup: from 1 MiB (reads) and
 *   512 KiB (writes) on, direct took no longer than buffered and a half to a fifth of the CPU.
 */
#include "internal.h"

#define KIB 1024ull
#define MIB (1024ull * KIB)

void hy_policy_default(struct hy_policy *policy)
{
	*policy = (struct hy_policy){
		.abi = HY_ABI,
		.mode = HY_AUTO,
		.read_direct_bytes = 1 * MIB,
		.write_direct_bytes = 512 * KIB,
		.pressure_direct_bytes = 256 * KIB,
		.limit_share = 0.80,
		.direct_share = 0.95,
		.refresh_ns = 20 * 1000 * 1000,
		.refresh_bytes = 16 * MIB,
		.keep_reread = 1,
		.keep_file_bytes = 64 * MIB,
	};
}

bool hy_policy_ok(const struct hy_policy *policy)
{
	return policy->abi == HY_ABI && policy->mode <= HY_ALWAYS_DIRECT &&
	       policy->limit_share > 0 && policy->limit_share <= 1 &&
	       policy->direct_share > 0 && policy->direct_share <= 1;
}

bool hy_under_pressure(const struct hy_policy *policy, const struct hy_pressure *pressure)
{
	return (double)pressure->cached_bytes >= policy->direct_share * (double)pressure->limit_bytes;
}

/*
 * Whether a file that is read again can stay in the cache, in place of pages that were used once: pages used more than
 * once, and those that this process keeps already, must not be evicted.
 */
static bool fits(const struct hy_request *request, const struct hy_policy *policy, const struct hy_pressure *pressure)
{
	double room = policy->direct_share * (double)pressure->limit_bytes;
	double used = (double)pressure->active_bytes + (double)pressure->own_bytes;

	if (used > (double)pressure->cached_bytes)
		used = (double)pressure->cached_bytes;
	return (double)request->file_bytes <= room && used + (double)request->bytes <= room;
}

/*
 * Whether a file is so small compared with the free space that it can be kept at its first read: a second read from the
 * device would cost more than the copies.
 */
static bool small_file(const struct hy_request *request, const struct hy_policy *policy,
		       const struct hy_pressure *pressure)
{
	double room = policy->direct_share * (double)pressure->limit_bytes - (double)pressure->cached_bytes;

	return request->file_bytes <= policy->keep_file_bytes && 2 * (double)request->rest_bytes <= room;
}

static struct hy_choice choice(enum hy_reason reason)
{
	return (struct hy_choice){ .way = hy_way_of(reason), .reason = reason };
}

struct hy_choice hy_choose(const struct hy_policy *policy, const struct hy_request *request,
			   const struct hy_pressure *pressure)
{
	bool read = request->op == HY_READ;
	uint64_t threshold = read ? policy->read_direct_bytes : policy->write_direct_bytes;

	if (request->flags & HY_F_UNSUPPORTED)
		return choice(HY_UNSUPPORTED);
	if (!read && (request->flags & HY_F_APPEND))
		return choice(HY_APPEND);
	if (request->flags & HY_F_SHARED)
		return choice(HY_SHARED);
	if (request->flags & HY_F_MAPPED)
		return choice(HY_MAPPED);
	if (policy->mode == HY_ALWAYS_BUFFERED)
		return choice(HY_OFF);
	if (request->flags & HY_F_CALLER_DIRECT)
		return choice(HY_CALLER);
	if (policy->mode == HY_ALWAYS_DIRECT)
		return choice(HY_SIZE);
	if (request->bytes < threshold && request->bytes < policy->pressure_direct_bytes)
		return choice(HY_SMALL);
	/* Data that is read again is cached, if that evicts nothing in use. */
	if (read && policy->keep_reread && request->reread_bytes * 2 > request->bytes &&
	    fits(request, policy, pressure))
		return choice(HY_REREAD);
	if (read && small_file(request, policy, pressure))
		return choice(HY_ROOM);
	if (request->bytes >= threshold)
		return choice(HY_SIZE);
	if (hy_under_pressure(policy, pressure))
		return choice(HY_PRESSURE);
	return choice(HY_SMALL);
}
