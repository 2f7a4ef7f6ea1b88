/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The page cache as its own tracepoints tell it: what each process reads, faults in, adds and dirties, per file, and
 * what leaves it again. Pages are base pages: a folio of order n is 2^n of them. tmpfs is memory, no cache of
 * anything, and left out.
 */
#ifndef WHYSTALL_PAGECACHE_H
#define WHYSTALL_PAGECACHE_H

#include "page_chunks.bpf.h"
#include "page_state.bpf.h"
#include "files.bpf.h"

#define XA_LEVELS 12


HASH_MAP(page_uses, struct use_key, struct page_use, 16384);
/* With targets: what others do. When that is full, their files are no longer told apart. */
HASH_MAP(page_uses_others, struct use_key, struct page_use, 8192);
HASH_MAP(page_files, struct file_key, struct page_file, 16384);

static const struct page_use new_use = {};
static const struct page_file new_page_file = {};

/* Who does it. Kernel threads work for others, of whom nothing is known here: 0. */
struct actor {
	struct task_struct *task;
	__u32 tgid, tid;
	bool self, target;
};

static __always_inline void find_actor(struct actor *actor)
{
	__u64 id = bpf_get_current_pid_tgid();

	actor->task = current_task();
	actor->tgid = id >> 32;
	actor->tid = id;
	actor->self = config.self_tgid && actor->tgid == config.self_tgid;
	actor->target = is_traced(actor->tgid);
	if (OF_TASK(actor->task, flags) & PF_KTHREAD)
		actor->tgid = 0;
}

/* File systems that are memory, or no storage at all (include/uapi/linux/magic.h). */
static __always_inline bool is_unstored(__u32 magic)
{
	switch (magic) {
	case 0x01021994:	/* tmpfs */
	case 0x9fa0:		/* proc */
	case 0x62656572:	/* sysfs */
	case 0x27e0eb:		/* cgroup */
	case 0x63677270:	/* cgroup2 */
	case 0x64626720:	/* debugfs */
	case 0x74726163:	/* tracefs */
		return true;
	}
	return false;
}

/* Block devices have pages too, of inodes that are no files: their key is the device, with no inode. */
static __always_inline bool page_key(struct inode *inode, struct file_key *key)
{
	struct super_block *sb = BPF_CORE_READ(inode, i_sb);

	if (is_unstored(BPF_CORE_READ(sb, s_magic)))
		return false;
	if ((BPF_CORE_READ(inode, i_mode) & S_IFMT) == S_IFBLK) {
		key->ino = 0;
		key->gen = 0;
		key->dev = BPF_CORE_READ(inode, i_rdev);
		return key->dev;
	}
	key->ino = BPF_CORE_READ(inode, i_ino);
	key->dev = BPF_CORE_READ(sb, s_dev);
	key->gen = BPF_CORE_READ(inode, i_generation);
	return true;
}

#define OVERLAYFS_MAGIC 0x794c7630

/* The inode of a file that holds its content itself, as no file of overlayfs does; else 0. */
static __always_inline struct inode *plain_content(struct file *file)
{
	struct inode *inode = BPF_CORE_READ(file, f_inode);

	if (!inode || BPF_CORE_READ(file, f_mapping, host) != inode
	    || (BPF_CORE_READ(inode, i_mode) & S_IFMT) != S_IFREG)
		return 0;
	return inode;
}

/*
 * The inode whose pages are the content of an open file. One of overlayfs has it in another file, which it keeps in its
 * private data: itself, or since 6.14 first in a structure of its own.
 */
static __always_inline struct inode *content_of(struct file *file)
{
	struct inode *inode = BPF_CORE_READ(file, f_mapping, host), *found;
	struct file *real, *first = 0;

	if (!inode || BPF_CORE_READ(inode, i_sb, s_magic) != OVERLAYFS_MAGIC)
		return inode;
	real = BPF_CORE_READ(file, private_data);
	if (!real)
		return inode;
	found = plain_content(real);
	if (found)
		return found;
	bpf_probe_read_kernel(&first, sizeof(first), real);
	if (!first)
		return inode;
	found = plain_content(first);
	return found ? found : inode;
}

/* The open file that the thread's system call works on, if its content is `inode`'s; else nothing. */
static __always_inline struct file *file_of_call(struct task_struct *task, struct inode *inode)
{
	const volatile struct syscall_row *row;
	struct found_file found = {};
	struct pt_regs *regs;
	struct file *file;

	if (OF_TASK(task, flags) & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER) || task_is_compat(task))
		return 0;
	regs = saved_regs(task);
	row = row_of(regs_syscall(regs));
	if (!row || row->fd == NO_ARG || !find_task_file(task, fd_arg(regs, row->fd), &found))
		return 0;
	file = found.file;
	if (content_of(file) != inode)
		return 0;
	return file;
}

/*
 * Names the file of `inode`, if nobody did: by the descriptor that is being read, or by any of its names within its
 * file system. A global function: verified once.
 */
__noinline int name_page_file(__u64 inode_address)
{
	struct inode *inode = (struct inode *)inode_address;
	struct task_struct *task = current_task();
	struct hlist_node *alias;
	struct file *file = file_of_call(task, inode);

	if (file) {
		tell_file_as((__u64)BPF_CORE_READ(file, f_path.mnt), (__u64)BPF_CORE_READ(file, f_path.dentry),
			     SCRATCH_PAGES, inode_address);
		return 0;
	}
	alias = BPF_CORE_READ(inode, i_dentry.first);
	if (alias)
		tell_file_as(0, (__u64)alias - bpf_core_field_offset(struct dentry, d_u.d_alias), SCRATCH_PAGES, 0);
	return 0;
}

static __always_inline struct page_use *add_use(void *map, struct use_key *key, struct task_struct *task)
{
	struct page_use *use;

	bpf_map_update_elem(map, key, &new_use, BPF_NOEXIST);
	use = bpf_map_lookup_elem(map, key);
	if (use && key->tgid) {
		struct task_struct *leader = BPF_CORE_READ(task, group_leader);

		BPF_CORE_READ_INTO(&use->comm, leader, comm);
	}
	return use;
}

static __always_inline struct page_use *use_of(struct file_key *file, struct inode *inode, struct actor *actor)
{
	struct use_key key = { .file = *file, .tgid = actor->tgid };
	bool other = config.target && !actor->target;
	struct page_use *use;

	use = other ? bpf_map_lookup_elem(&page_uses_others, &key) : bpf_map_lookup_elem(&page_uses, &key);
	if (use)
		return use;
	if (other) {
		use = add_use(&page_uses_others, &key, actor->task);
		if (!use) {
			__builtin_memset(&key.file, 0, sizeof(key.file));
			use = bpf_map_lookup_elem(&page_uses, &key);
			if (!use)
				use = add_use(&page_uses, &key, actor->task);
		}
	} else {
		use = add_use(&page_uses, &key, actor->task);
	}
	if (!use)
		count(LOST_PAGE_USES);
	else if (key.file.ino)
		name_page_file((__u64)inode);
	return use;
}

struct touching {
	struct file_key file;
	__u64 first, last;
	__u64 again;
	bool target;
};

static __always_inline long touch_chunk(__u32 i, struct touching *touching, bool plain)
{
	__u64 chunk = (touching->first >> CHUNK_SHIFT) + i, start = chunk << CHUNK_SHIFT;
	__u32 first = touching->first > start ? touching->first - start : 0;
	__u32 last = touching->last - start < CHUNK_PAGES ? touching->last - start : CHUNK_PAGES - 1;
	__u64 done;

	if (!have_chunk(&touching->file, chunk, touching->target))
		return 0;
	done = CHUNK_WORK(plain, touching->file.ino, (__u64)touching->file.dev << 32 | touching->file.gen, chunk,
			  CHUNK_RANGE(first, last), CHUNK_TOUCH);
	touching->again += done & 0xffff;
	return 0;
}

static long touch_step(__u32 i, struct touching *touching)
{
	return touch_chunk(i, touching, false);
}

#ifdef NO_KERNEL_FUNCTIONS
static long touch_step_plain(__u32 i, struct touching *touching)
{
	return touch_chunk(i, touching, true);
}
#else
#define touch_step_plain touch_step
#endif

/* Pages that are used now; how many of them were before, in this window. */
static __always_inline __u64 touch(struct file_key *file, __u64 first, __u64 last, bool target, bool plain)
{
	struct touching touching = { .file = *file, .first = first, .last = last, .target = target };
	__u64 chunks = (last >> CHUNK_SHIFT) - (first >> CHUNK_SHIFT) + 1;

	if (chunks == 1)
		touch_chunk(0, &touching, plain);
	else if (plain)
		REPEAT(chunks, TOUCH_CHUNKS, touch_step_plain, &touching);
	else
		REPEAT(chunks, TOUCH_CHUNKS, touch_step, &touching);
	return touching.again;
}

static __always_inline __u64 last_page(struct inode *inode)
{
	__s64 size = BPF_CORE_READ(inode, i_size);

	return size > 0 ? (size - 1) >> config.page_shift : 0;
}

/*
 * A read that goes on in the middle of the page where the last one ended does not use it anew, as in the kernel
 * (pos_same_folio in filemap_read): else whoever reads in small steps would seem to read everything many times.
 */
static __always_inline bool goes_on(struct task_struct *task, struct inode *inode)
{
	struct file *file = file_of_call(task, inode);
	const volatile struct syscall_row *row;
	struct pt_regs *regs;
	__u64 position;

	if (!file)
		return false;
	regs = saved_regs(task);
	row = row_of(regs_syscall(regs));
	if (!row)
		return false;
	if (row->flags & ROW_POSITION)
		position = BPF_CORE_READ(file, f_pos);
	else if (row->offset != NO_ARG)
		position = regs_arg(regs, row->offset);
	else
		return false;
	return position & ((1UL << config.page_shift) - 1);
}

/*
 * (mapping, index, last): the pages up to `last` are read, and a batch of them from `index` on is there. One call tells
 * of each of its batches, every time up to its end, and asks for pages beyond the end of the file. Since 6.12
 * ("filemap: add trace events for get_pages, map_pages, and fault"). All is counted at a call's first batch; pages that
 * it adds later are used by it (see page_add).
 */
SEC("tp_btf/mm_filemap_get_pages")
int on_pages_read(__u64 *ctx)
{
	struct address_space *mapping = (struct address_space *)ctx[0];
	__u64 index = ctx[1], asked = ctx[2], first = index, last, calls;
	struct inode *inode = BPF_CORE_READ(mapping, host);
	struct page_state *state;
	struct file_key file;
	struct actor actor;
	struct page_use *use;

	find_actor(&actor);
	if (actor.self) {
		count(SEEN_SELF_READ);
		return 0;
	}
	if (!inode || !page_key(inode, &file))
		return 0;
	count(SEEN_PAGES);
	last = last_page(inode);
	if (last > asked)
		last = asked;
	if (last < index)
		last = index;
	state = make_page_state(actor.task, actor.tid);
	if (state) {
		calls = read_calls(actor.task);
		if (state->inode == (__u64)inode && !state->fault) {
			if (state->calls == calls && state->asked == asked && index > state->index
			    && index <= state->last + 1) {
				state->index = index;
				if (last <= state->last)
					return 0;
				first = state->last + 1;	/* the file has grown */
			} else if (index == state->last && goes_on(actor.task, inode)) {
				first = index + 1;
			}
		}
		state->inode = (__u64)inode;
		state->calls = calls;
		state->asked = asked;
		state->index = index;
		state->first = first;
		state->last = last;
		state->fault = 0;
	}
	if (first > last)
		return 0;
	use = use_of(&file, inode, &actor);
	if (!use)
		return 0;
	__sync_fetch_and_add(&use->accessed, last - first + 1);
	__sync_fetch_and_add(&use->again, touch(&file, first, last, actor.target, false));
	return 0;
}

struct pages {
	struct inode *inode;
	struct file_key file;
	__u64 first, number;
};

/* The place and size of a folio, or before 5.16 a page; its mapping. */
static __always_inline struct address_space *folio_place(void *object, __u64 *first, __u64 *number)
{
	const unsigned long head = 1UL << bpf_core_enum_value(enum pageflags, PG_head);
	struct address_space *mapping;
	unsigned long flags = 0;
	__u32 order = 0;

	bpf_probe_read_kernel(&flags, sizeof(flags), object);
	if (bpf_core_type_exists(struct folio)) {
		struct folio___before_6_6 *old = object;
		struct folio *folio = object;

		mapping = BPF_CORE_READ(folio, mapping);
		*first = BPF_CORE_READ(folio, index);
		if (flags & head && bpf_core_field_exists(old->_folio_order))
			order = BPF_CORE_READ(old, _folio_order);
		else if (flags & head && !bpf_core_field_exists(((struct page___before_6_2 *)0)->compound_order))
			order = BPF_CORE_READ(folio, _flags_1) & 0xff;
	} else {
		struct page *page = object;

		mapping = BPF_CORE_READ(page, mapping);
		*first = BPF_CORE_READ(page, index);
	}
	if (flags & head && bpf_core_field_exists(((struct page___before_6_2 *)0)->compound_order)) {
		struct page___before_6_2 *second = object + bpf_core_type_size(struct page);

		order = BPF_CORE_READ(second, compound_order);
	}
	*number = 1UL << (order & 31);
	return mapping;
}

/* What it is of. */
static __always_inline bool pages_of(void *object, struct pages *pages)
{
	struct address_space *mapping = folio_place(object, &pages->first, &pages->number);

	if (!mapping || (__u64)mapping & 3)	/* anonymous, or movable: not of a file */
		return false;
	pages->inode = BPF_CORE_READ(mapping, host);
	return pages->inode && page_key(pages->inode, &pages->file);
}

struct lookup {
	__u64 index, entry;
};

/* One level down (lib/xarray.c): a node is marked by 2, a slot that belongs to another's entry holds its number so. */
static long look_down(__u32 i, struct lookup *lookup)
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

/* How many pages of the folio at `index` lie before it, and << 16 after it; 0 also where none is. */
__noinline __u64 folio_around(__u64 inode_address, __u64 index)
{
	struct inode *inode = (struct inode *)inode_address;
	struct lookup lookup = { .index = index };
	__u64 first = 0, number = 0;

	lookup.entry = (__u64)BPF_CORE_READ(inode, i_mapping, i_pages.xa_head);
	for (__u32 i = 0; i < XA_LEVELS; i++)
		if (look_down(i, &lookup))
			break;
	if (!lookup.entry || lookup.entry & 3)	/* nothing, or the shadow of what was evicted */
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
 * A fault maps the pages first..last: one that it asks for, or those `around` it that are there. One fault may tell
 * of itself several times, before its page is there and after: of these only what is new counts.
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

/* (mapping, index): a fault on a page that could not be mapped at once; most often it is not there. Since 6.12. */
SEC("tp_btf/mm_filemap_fault")
int on_page_fault(__u64 *ctx)
{
	struct address_space *mapping = (struct address_space *)ctx[0];

	mapped_pages(mapping, ctx[1], ctx[1], false);
	return 0;
}

/* (mapping, first, last): a fault mapped what is there of these pages; huge mappings (PMD) are not told. Since 6.12. */
SEC("tp_btf/mm_filemap_map_pages")
int on_pages_mapped(__u64 *ctx)
{
	struct address_space *mapping = (struct address_space *)ctx[0];

	mapped_pages(mapping, ctx[1], ctx[2], true);
	return 0;
}

/* Does `work` for a folio's pages, chunk by chunk; more than 4096 of them there are not. */
static __always_inline __u64 folio_work(struct pages *pages, __u64 first, __u64 last, __u32 work, bool plain)
{
	__u64 dev = (__u64)pages->file.dev << 32 | pages->file.gen, sum = 0;

	for (__u32 i = 0; i < 8; i++) {
		__u64 chunk = first >> CHUNK_SHIFT;
		__u64 end = last >> CHUNK_SHIFT == chunk ? last & (CHUNK_PAGES - 1) : CHUNK_PAGES - 1;

		sum += CHUNK_WORK(plain, pages->file.ino, dev, chunk, CHUNK_RANGE(first & (CHUNK_PAGES - 1), end), work);
		first = (chunk + 1) << CHUNK_SHIFT;
		if (first > last)
			break;
	}
	return sum;
}

/* Pages come into the cache: read ahead for somebody, or written anew. */
static __always_inline int page_add(__u64 *ctx, bool plain)
{
	struct pages pages = {};
	struct page_state *state;
	struct page_use *use;
	struct actor actor;
	__u64 last, done;

	find_actor(&actor);
	if (actor.self) {
		count(SEEN_SELF_ADDED);
		return 0;
	}
	if (!pages_of((void *)ctx[0], &pages))
		return 0;
	count(SEEN_PAGES);
	use = use_of(&pages.file, pages.inode, &actor);
	if (!use)
		return 0;
	last = pages.first + pages.number - 1;
	__sync_fetch_and_add(&use->added, pages.number);
	if (!have_chunk(&pages.file, pages.first >> CHUNK_SHIFT, actor.target)
	    || (last >> CHUNK_SHIFT != pages.first >> CHUNK_SHIFT
		&& !have_chunk(&pages.file, last >> CHUNK_SHIFT, actor.target))) {
		__sync_fetch_and_add(&use->untracked, pages.number);
		return 0;
	}
	__sync_fetch_and_add(&use->tracked, pages.number);
	done = folio_work(&pages, pages.first, last, CHUNK_ADD, plain);
	__sync_fetch_and_add(&use->refaulted, done & 0xffff);
	/* for a call or a fault that has been counted already */
	state = page_state_of(actor.task, actor.tid);
	if (state && state->inode == (__u64)pages.inode && state->calls == read_calls(actor.task)
	    && state->index <= last && state->last >= pages.first) {
		__u64 from = state->index > pages.first ? state->index : pages.first;
		__u64 until = state->last < last ? state->last : last;

		folio_work(&pages, from, until, CHUNK_USED, plain);
	}
	return 0;
}

/* Pages leave the cache: a task that reclaims memory says so of itself (kswapd too), everything else drops them. */
static __always_inline int page_delete(__u64 *ctx, bool plain)
{
	struct pages pages = {};
	struct page_file *file;
	struct inode *inode;
	struct actor actor;
	bool reclaimed;
	__u64 done;

	find_actor(&actor);
	reclaimed = OF_TASK(actor.task, flags) & PF_MEMALLOC;
	if ((actor.self && !reclaimed) || !pages_of((void *)ctx[0], &pages))
		return 0;
	count(SEEN_PAGES);
	file = bpf_map_lookup_elem(&page_files, &pages.file);
	if (!file) {
		bpf_map_update_elem(&page_files, &pages.file, &new_page_file, BPF_NOEXIST);
		file = bpf_map_lookup_elem(&page_files, &pages.file);
		if (!file) {
			count(LOST_PAGE_FILES);
			return 0;
		}
		inode = pages.inode;
		if (!BPF_CORE_READ(inode, i_sb, s_bdev))
			file->flags = PAGE_FILE_NO_DISK;
		if (pages.file.ino)
			name_page_file((__u64)pages.inode);
	}
	if (reclaimed)
		__sync_fetch_and_add(&file->reclaimed, pages.number);
	else
		__sync_fetch_and_add(&file->dropped, pages.number);
	done = folio_work(&pages, pages.first, pages.first + pages.number - 1, reclaimed ? CHUNK_RECLAIM : CHUNK_DROP,
			  plain);
	__sync_fetch_and_add(&file->judged, done & 0xffff);
	__sync_fetch_and_add(&file->one_pass, done >> 16);
	return 0;
}

/* Pages become dirty, those of a folio all at once, as the kernel counts them. Writing is using. */
static __always_inline int page_dirty(__u64 *ctx, bool plain)
{
	struct pages pages = {};
	struct page_state *state;
	struct page_use *use;
	struct actor actor;
	__u64 last;

	find_actor(&actor);
	if (actor.self || !pages_of((void *)ctx[0], &pages))
		return 0;
	count(SEEN_PAGES);
	use = use_of(&pages.file, pages.inode, &actor);
	if (!use)
		return 0;
	__sync_fetch_and_add(&use->dirtied, pages.number);
	last = pages.first + pages.number - 1;
	state = page_state_of(actor.task, actor.tid);
	/* what it has just read, or faulted in to write to, it uses once */
	if (!state || state->inode != (__u64)pages.inode || state->first > last || state->last < pages.first)
		folio_work(&pages, pages.first, last, CHUNK_TOUCH, plain);
	return 0;
}

PAGE_PROGRAM(on_page_add, "tp_btf/mm_filemap_add_to_page_cache", page_add)
PAGE_PROGRAM(on_page_delete, "tp_btf/mm_filemap_delete_from_page_cache", page_delete)
/* Its older name, of a page. */
PAGE_PROGRAM(on_page_dirty, "tp_btf/writeback_dirty_folio", page_dirty)
PAGE_PROGRAM(on_page_dirty_old, "tp_btf/writeback_dirty_page", page_dirty)

/*
 * (bio): pages go to the disk. Only where the file system sits on that very device: what is stacked below tells of the
 * same pages again.
 */
SEC("tp_btf/block_bio_queue")
int on_bio(__u64 *ctx)
{
	struct bio *bio = (struct bio *)ctx[0];
	struct address_space *mapping;
	struct page_file *value;
	struct bio_vec *vector;
	struct inode *inode;
	struct file_key file;
	unsigned long head;
	struct page *page;
	__u64 bytes;

	if ((bio->bi_opf & 0xff) != 1)	/* REQ_OP_WRITE */
		return 0;
	bytes = bio->bi_iter.bi_size;
	vector = bio->bi_io_vec;
	if (!bytes || !vector)
		return 0;
	page = BPF_CORE_READ(vector, bv_page);
	if (!page)
		return 0;
	head = BPF_CORE_READ(page, compound_head);
	if (head & 1)
		page = (struct page *)(head - 1);
	mapping = BPF_CORE_READ(page, mapping);
	if (!mapping || (__u64)mapping & 3)
		return 0;
	inode = BPF_CORE_READ(mapping, host);
	if (!inode || !page_key(inode, &file) || !file.ino
	    || BPF_CORE_READ(inode, i_sb, s_dev) != BPF_CORE_READ(bio, bi_bdev, bd_dev))
		return 0;
	value = bpf_map_lookup_elem(&page_files, &file);
	if (!value) {
		bpf_map_update_elem(&page_files, &file, &new_page_file, BPF_NOEXIST);
		value = bpf_map_lookup_elem(&page_files, &file);
		if (!value) {
			count(LOST_PAGE_FILES);
			return 0;
		}
	}
	__sync_fetch_and_add(&value->written_back, (bytes + (1UL << config.page_shift) - 1) >> config.page_shift);
	return 0;
}

#endif
