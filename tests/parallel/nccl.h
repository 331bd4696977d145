// The NCCL of tests (tests/support/fake_nccl.cpp), which moves the host's memory.
#pragma once

#include <cstdlib>

#include "parallel/nccl_library.h"

namespace snug::test {

// Before the first use of the library in a process.
inline void use_fake_nccl() {
  setenv(kNcclLibraryVariable, SNUG_FAKE_NCCL, 1);
}

// A variable that the fake reads, while it lives.
class FakeNccl {
 public:
  FakeNccl(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~FakeNccl() { unsetenv(name_); }
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

 private:
  const char* name_;
};

}  // namespace snug::test
