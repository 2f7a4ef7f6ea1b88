// A process with two NCCL process groups of torch.distributed, without torch: objects laid out as torch declares them
// (c10/util/intrusive_ptr.h, torch/csrc/distributed/c10d/Backend.hpp and ProcessGroupNCCL.hpp), and their threads.
//
// As a library, named libtorch_cuda.so: the classes. With -DPROGRAM: a program that uses them.
// -DREFERENCES=16: reference counts as in older versions; -DWATCHDOG: threads that know a group by an object of their own.
#include <cstdint>
#include <string>

#ifndef REFERENCES
#define REFERENCES 8
#endif

namespace c10d {

class Backend {
 public:
  Backend(int rank, int size, std::string uid, std::string description)
      : rank_(rank), size_(size), pg_uid_(uid), pg_desc_(description) {}
  virtual ~Backend() = default;
  virtual uint64_t getSequenceNumberForGroup() { return 0; }

 protected:
  char references_[REFERENCES] = {1};
  const int rank_;
  const int size_;
  int dist_debug_level_ = 0;
  std::string pg_uid_;
  std::string pg_desc_;
};

class ProcessGroupNCCL : public Backend {
 public:
  using Backend::Backend;
  ~ProcessGroupNCCL() override;
  uint64_t getSequenceNumberForGroup() override;
  void collective() { seqCollective_++; }
  void wait(const char* name);

 private:
  char others_[1400] = {};
  uint64_t seqCollective_ = 0;
};

class Watchdog {
 public:
  explicit Watchdog(ProcessGroupNCCL* group) : pg_(group) {}
  virtual ~Watchdog() = default;
  virtual void run(const char* name);

 private:
  uint64_t thread_ = 0;
  ProcessGroupNCCL* pg_;
};

}  // namespace c10d

#ifndef PROGRAM
#include <pthread.h>
#include <unistd.h>

namespace c10d {

ProcessGroupNCCL::~ProcessGroupNCCL() = default;

uint64_t ProcessGroupNCCL::getSequenceNumberForGroup() { return seqCollective_; }

void ProcessGroupNCCL::wait(const char* name) {
  pthread_setname_np(pthread_self(), name);
  ProcessGroupNCCL* volatile self = this;  // as a compiler keeps it while the function waits
  while (self != nullptr) sleep(1);
}

void Watchdog::run(const char* name) {
  pthread_setname_np(pthread_self(), name);
  Watchdog* volatile self = this;
  while (self != nullptr) sleep(1);
}

}  // namespace c10d

#else
#include <cstdio>
#include <thread>

int main() {
  auto* world = new c10d::ProcessGroupNCCL(3, 8, "0", "default_pg");
  auto* pair = new c10d::ProcessGroupNCCL(1, 2, "7", "a description that does not fit into the string itself");
  for (int i = 0; i < 41; i++) world->collective();
  for (int i = 0; i < 5; i++) pair->collective();
  for (auto* group : {world, pair}) {
#ifdef WATCHDOG
    std::thread([group] { (new c10d::Watchdog(group))->run("pt_nccl_watchdg"); }).detach();
#else
    std::thread([group] { group->wait("pt_nccl_watchdg"); }).detach();
#endif
  }
  // whoever reads has to wait until the threads have names
  std::puts("ready");
  std::fflush(stdout);
  std::getchar();
}
#endif
