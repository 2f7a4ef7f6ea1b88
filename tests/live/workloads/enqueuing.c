/* A library with NCCL's interface. Functions return when the operation is enqueued; an empty one finds the queue full. */
#include <stddef.h>
#include <unistd.h>

#define COLLECTIVE(name)									\
	int name(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream)	\
	{											\
		while (!count)									\
			pause();								\
		return 0;									\
	}

COLLECTIVE(ncclAllReduce)
COLLECTIVE(ncclReduceScatter)

int ncclAllGather(const void *from, void *to, size_t count, int type, void *comm, void *stream)
{
	return 0;
}
