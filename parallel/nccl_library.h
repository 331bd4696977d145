// NCCL, loaded when a run first wants it: a build needs no header of it and a program starts where it is
// absent. What is here are the few functions, types and constants of its interface libnccl.so.2 (2.18 and
// later; nccl.h of 2.28.9) that nccl_transport takes. NCCL moves bytes alone: sums are ours (rank_sum.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace snug {

// The file that is loaded instead of libnccl.so.2, for a library at another place.
inline constexpr const char* kNcclLibraryVariable = "SNUG_LIBNCCL";

class NcclLibrary {
 public:
  using Comm = void*;
  using Id = std::array<char, 128>;  // of a communicator, that rank 0 makes
  static constexpr int kSuccess = 0, kInProgress = 7;
  static constexpr int kOldest = 21800;

  // Throws usage if there is no such library, or one that is older than kOldest.
  static NcclLibrary& load();

  // 2.18.1 is 21801.
  int version() const { return version_; }
  const std::string& path() const { return path_; }
  // What NCCL says of a result, and of the last one of this process that was an error.
  std::string words(int result) const;

  // Results are NCCL's. The communicator is one that does not wait: what is begun is done, or has failed,
  // when state() is no longer kInProgress.
  int make_id(Id& id) const { return id_(&id); }
  int begin(Comm& comm, int size, const Id& id, int rank) const;
  int state(Comm comm, int& state) const { return state_(comm, &state); }
  int all_gather(const void* mine, void* all, int64_t bytes, Comm comm, void* stream) const;
  int send(const void* data, int64_t bytes, int to, Comm comm, void* stream) const;
  int receive(void* data, int64_t bytes, int from, Comm comm, void* stream) const;
  int group_begin() const { return group_start_(); }
  int group_end() const { return group_end_(); }
  int finish(Comm comm) const { return finalize_(comm); }
  int destroy(Comm comm) const { return destroy_(comm); }
  // Ends whatever waits on the device, and the communicator.
  int abort(Comm comm) const { return abort_(comm); }

 private:
  NcclLibrary();
  template <class F>
  void find(F& f, const char* name);

  void* library_ = nullptr;
  std::string path_;
  int version_ = 0;

  int (*get_version_)(int*) = nullptr;
  int (*id_)(Id*) = nullptr;
  int (*init_)(Comm*, int, Id, int, void*) = nullptr;
  int (*state_)(Comm, int*) = nullptr;
  int (*all_gather_)(const void*, void*, size_t, int, Comm, void*) = nullptr;
  int (*send_)(const void*, size_t, int, int, Comm, void*) = nullptr;
  int (*receive_)(void*, size_t, int, int, Comm, void*) = nullptr;
  int (*group_start_)() = nullptr;
  int (*group_end_)() = nullptr;
  int (*finalize_)(Comm) = nullptr;
  int (*destroy_)(Comm) = nullptr;
  int (*abort_)(Comm) = nullptr;
  const char* (*error_)(int) = nullptr;
  const char* (*last_error_)(Comm) = nullptr;
};

}  // namespace snug
