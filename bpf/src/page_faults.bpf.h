/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Pages requested or mapped by faults, and the pages of a folio. */
#ifndef WHYSTALL_PAGE_FAULTS_H
#define WHYSTALL_PAGE_FAULTS_H

#include "page_reads.bpf.h"

#define XA_LEVELS 12

struct pages {
	struct inode *inode;
	struct file_key file;
	__u64 first, number;
};

/* Reads the file and pages of a folio (before 5.16: a page); false if it is not of a file in the page cache. */
static __always_inline bool pages_of(void *object, struct pages *pages)
{
	struct address_space *mapping = folio_place(object, &pages->first, &pages->number);

	if (!mapping || (__u64)mapping & 3)	/* anonymous or movable */
		return false;
	pages->inode = BPF_CORE_READ(mapping, host);
	return pages->inode && page_key(pages->inode, &pages->file);
}

struct lookup {
	__u64 index, entry;
};

/* Goes one level down the xarray (lib/xarray.c). Tag 2 marks a node, or a sibling entry with the number of its slot. */
static long descend(__u32 i, struct lookup *lookup)
{
	struct xa_node *node = (struct xa_node *)(lookup->entry - 2);
	__u64 at, entry = 0;
	__u8 shift;

	if ((lookup->entry & 3) != 2 || lookup->entry < 4096)
		return 1;
	shift = BPF_CORE_READ(node, shift);
	at = lookup->index >> (shift & 63) & 63;
	bpf_probe_read_kernel(&entry, sizeof(entry), (void *)node + bpf_core_field_offset(node->slots) + at * 8);
	if ((entry & 3) == 2 && entry < 64 << 2)
		bpf_probe_read_kernel(&entry, sizeof(entry),
				      (void *)node + bpf_core_field_offset(node->slots) + (entry >> 2) * 8);
	lookup->entry = entry;
	return !shift;
}

/* Returns how many pages of the folio at `index` lie before that page, and << 16 after it; 0 without a folio. */
__noinline __u64 folio_around(__u64 inode_address, __u64 index)
{
	struct inode *inode = (struct inode *)inode_address;
	struct lookup lookup = { .index = index };
	__u64 first = 0, number = 0;

	lookup.entry = (__u64)BPF_CORE_READ(inode, i_mapping, i_pages.xa_head);
	for (__u32 i = 0; i < XA_LEVELS; i++)
		if (descend(i, &lookup))
			break;
	if (!lookup.entry || lookup.entry & 3)	/* empty, or the shadow entry of an evicted folio */
		return 0;
	folio_place((void *)lookup.entry, &first, &number);
	if (number < 2 || index < first || index - first >= number)
		return 0;
	return (index - first) | (first + number - 1 - index) << 16;
}

static __noinline int count_mapped(struct file_key *file, __u64 inode, struct actor *actor, __u64 first, __u64 last)
{
	struct page_use *use;

	if (!file || !actor)
		return 0;
	use = use_of(file, (struct inode *)inode, actor);
	if (!use)
		return 0;
	__sync_fetch_and_add(&use->mapped, last - first + 1);
	__sync_fetch_and_add(&use->again, touch(file, first, last, actor->target, false));
	return 0;
}

/*
 * Counts the pages first..last of a fault: the one requested, or the cached ones `around` it that are mapped, too. A
 * fault may be reported several times, before its page is read and after: only new pages count.
 */
static __always_inline void mapped_pages(struct address_space *mapping, __u64 first, __u64 last, bool around)
{
	struct inode *inode = BPF_CORE_READ(mapping, host);
	struct page_state *state;
	struct file_key file;
	struct actor actor;
	__u64 most, before_first = 0, before_last = 0;
	bool again = false;

	find_actor(&actor);
	if (actor.self || !inode || !page_key(inode, &file))
		return;
	count(SEEN_PAGES);
	if (around && config.maps_folios) {
		__u64 folio = folio_around((__u64)inode, first);

		if (folio)
			first -= folio & 0xffff;
		folio = folio_around((__u64)inode, last);
		if (folio)
			last += folio >> 16;
	}
	most = last_page(inode);
	if (last > most && most >= first)
		last = most;
	state = make_page_state(actor.task, actor.tid);
	if (state) {
		if (state->fault && state->inode == (__u64)inode && state->first <= last && state->last >= first) {
			if (!around && !was_evicted(&file, first))
				return;
			again = around;
			before_first = state->first;
			before_last = state->last;
		}
		state->inode = (__u64)inode;
		state->calls = read_calls(actor.task);
		state->asked = last;
		state->index = first;
		state->first = first;
		state->last = last;
		state->fault = 1;
	}
	if (!again) {
		count_mapped(&file, (__u64)inode, &actor, first, last);
		return;
	}
	if (first < before_first)
		count_mapped(&file, (__u64)inode, &actor, first, before_first - 1);
	if (last > before_last)
		count_mapped(&file, (__u64)inode, &actor, before_last + 1, last);
}

/* (mapping, index): a fault on a page that could not be mapped at once; most often it is not cached. */
SEC("tp_btf/mm_filemap_fault")
int on_page_fault(__u64 *ctx)
{
	struct address_space *mapping = (struct address_space *)ctx[0];

	if (!window_open())
		return 0;
	mapped_pages(mapping, ctx[1], ctx[1], false);
	return 0;
}

/* (mapping, first, last): a fault mapped the cached ones of these pages; huge mappings (PMD) are not reported. */
SEC("tp_btf/mm_filemap_map_pages")
int on_pages_mapped(__u64 *ctx)
{
	struct address_space *mapping = (struct address_space *)ctx[0];

	if (!window_open())
		return 0;
	mapped_pages(mapping, ctx[1], ctx[2], true);
	return 0;
}

#endif
