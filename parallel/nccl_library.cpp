#include "parallel/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <climits>
#include <cstddef>

#include "engine/core/error.h"
#include "engine/device/cuda_library.h"

namespace snug {
namespace {

constexpr const char* kNccl = "libnccl.so.2";
constexpr int kNcclUint8 = 1;  // ncclUint8

// ncclConfig_t of 2.17: later libraries take it by its size and version.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21700;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

[[noreturn]] void refuse_nccl(const std::string& found) {
  fail(ErrorCode::usage, fmt::format("NCCL 2.18 or later ({}) for ranks on GPUs", kNccl), found,
       fmt::format(
           "install it (pip install nvidia-nccl-cu13, or libnccl2 of NVIDIA's for a system), name "
           "it by {}, or device=cpu",
           kNcclLibraryVariable));
}

}  // namespace

template <class F>
void NcclLibrary::find(F& f, const char* name) {
  void* const at = dlsym(library_, name);
  if (at == nullptr) refuse_nccl(fmt::format("{} without {}", path_, name));
  f = reinterpret_cast<F>(at);
}

NcclLibrary& NcclLibrary::load() {
  static NcclLibrary& library = *new NcclLibrary;  // stays until the process has ended
  return library;
}

NcclLibrary::NcclLibrary() {
  std::string why;
  library_ = open_cuda_library(kNcclLibraryVariable, {kNccl}, path_, why);
  if (library_ == nullptr) refuse_nccl(why);
  find(get_version_, "ncclGetVersion");
  if (get_version_(&version_) != kSuccess || version_ < kOldest)
    refuse_nccl(fmt::format("{}, version {}.{}.{}", path_, version_ / 10000, version_ / 100 % 100,
                            version_ % 100));
  find(id_, "ncclGetUniqueId");
  find(init_, "ncclCommInitRankConfig");
  find(state_, "ncclCommGetAsyncError");
  find(all_gather_, "ncclAllGather");
  find(send_, "ncclSend");
  find(receive_, "ncclRecv");
  find(group_start_, "ncclGroupStart");
  find(group_end_, "ncclGroupEnd");
  find(finalize_, "ncclCommFinalize");
  find(destroy_, "ncclCommDestroy");
  find(abort_, "ncclCommAbort");
  find(error_, "ncclGetErrorString");
  find(last_error_, "ncclGetLastError");
}

std::string NcclLibrary::words(int result) const {
  const char* const last = last_error_(nullptr);
  const std::string text = error_(result);
  return last == nullptr || *last == '\0' ? text : fmt::format("{} ({})", text, last);
}

int NcclLibrary::begin(Comm& comm, int size, const Id& id, int rank) const {
  NcclConfig config;
  return init_(&comm, size, id, rank, &config);
}

int NcclLibrary::all_gather(const void* mine, void* all, int64_t bytes, Comm comm,
                            void* stream) const {
  return all_gather_(mine, all, static_cast<size_t>(bytes), kNcclUint8, comm, stream);
}

int NcclLibrary::send(const void* data, int64_t bytes, int to, Comm comm, void* stream) const {
  return send_(data, static_cast<size_t>(bytes), kNcclUint8, to, comm, stream);
}

int NcclLibrary::receive(void* data, int64_t bytes, int from, Comm comm, void* stream) const {
  return receive_(data, static_cast<size_t>(bytes), kNcclUint8, from, comm, stream);
}

}  // namespace snug
