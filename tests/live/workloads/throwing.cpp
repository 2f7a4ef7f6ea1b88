/* Throws through a function whose name is that of torch's gloo, once a line arrives. */
#include <cstdio>
#include <stdexcept>

namespace c10d {
struct ProcessGroupGloo {
	struct AsyncWork {
		__attribute__((noinline)) void finishWorkGloo(int fails) { if (fails) throw std::runtime_error("peer closed"); }
	};
};
}

int main(int argc, char **)
{
	c10d::ProcessGroupGloo::AsyncWork work;
	puts("ready");
	fflush(stdout);
	getchar();
	try {
		work.finishWorkGloo(argc);
	} catch (std::exception &error) {
		puts("caught");
	}
	return 0;
}
