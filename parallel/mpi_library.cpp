#include "parallel/mpi_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>

#include "engine/core/error.h"

namespace snug {
namespace {

constexpr const char* kOpenMpi = "libmpi.so.40";
constexpr int kMpiSuccess = 0;
constexpr int kMostText = 256;  // MPI_MAX_ERROR_STRING, MPI_MAX_LIBRARY_VERSION_STRING

[[noreturn]] void no_library(const std::string& found) {
  fail(ErrorCode::usage, fmt::format("Open MPI ({}) for transport: mpi", kOpenMpi), found,
       "install it (Debian, Ubuntu: openmpi-bin), or transport=local for ranks of one machine");
}

}  // namespace

template <class F>
void MpiLibrary::find(F& f, const char* name) {
  void* const at = dlsym(library_, name);
  if (at == nullptr) no_library(fmt::format("{} without {}: another MPI", path_, name));
  f = reinterpret_cast<F>(at);
}

MpiLibrary& MpiLibrary::start(int rank, int size) {
  static MpiLibrary& library = *new MpiLibrary;  // stays until the process has ended
  library.check_ranks(rank, size);
  return library;
}

MpiLibrary::MpiLibrary() {
  const char* const other = std::getenv(kMpiLibraryVariable);
  path_ = other ? other : kOpenMpi;
  // Its components are loaded by it and want its symbols.
  library_ = dlopen(path_.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library_ == nullptr) no_library(dlerror());
  find(init_, "MPI_Init_thread");
  find(finalize_, "MPI_Finalize");
  find(abort_, "MPI_Abort");
  find(size_, "MPI_Comm_size");
  find(rank_, "MPI_Comm_rank");
  find(set_errhandler_, "MPI_Comm_set_errhandler");
  find(error_string_, "MPI_Error_string");
  find(isend_, "MPI_Isend");
  find(irecv_, "MPI_Irecv");
  find(test_, "MPI_Test");
  find(testany_, "MPI_Testany");
  find(cancel_, "MPI_Cancel");
  find(request_free_, "MPI_Request_free");
  find(library_version_, "MPI_Get_library_version");
  Handle return_errors = nullptr;
  find(world_, "ompi_mpi_comm_world");
  find(byte_, "ompi_mpi_byte");
  find(none_, "ompi_request_null");
  find(return_errors, "ompi_mpi_errors_return");
  char text[kMostText] = {};
  int length = 0;
  library_version_(text, &length);
  version_ = std::string(text).substr(0, std::string(text).find(','));
  check(init_(nullptr, nullptr, kSerialized, &level_), "MPI_Init_thread");
  started_ = true;
  on_exit(at_exit, this);
  check(set_errhandler_(world_, return_errors), "MPI_Comm_set_errhandler");
}

void MpiLibrary::check_ranks(int rank, int size) {
  int ranks = 0, own = 0;
  check(size_(world_, &ranks), "MPI_Comm_size");
  check(rank_(world_, &own), "MPI_Comm_rank");
  if (ranks == 1 && size > 1) finish();  // it was started by nobody it knows
  if (ranks != size || own != rank)
    fail(ErrorCode::usage,
         fmt::format("{} ranks that {} knows of, of which this is {}", size, version_, rank),
         fmt::format("{} of {}: they were started by another launcher than its own", own, ranks),
         "mpirun of Open MPI, srun --mpi=pmix, or transport=local for ranks of one machine");
  if (level_ < kSerialized)
    fail(ErrorCode::unsupported, "an MPI that several threads may call one after another",
         fmt::format("{} with thread level {}", version_, level_), "Open MPI 4 or later");
}

// Without MPI_Finalize this process may be all that its launcher hears of the end: with it the others end
// too, those that hang as well.
void MpiLibrary::at_exit(int status, void* self) {
  auto& library = *static_cast<MpiLibrary*>(self);
  if (!library.started_) return;
  library.started_ = false;
  usleep(200'000);  // what was said last is on its way to the launcher
  library.abort_(library.world_, status != 0 ? status : 1);
}

void MpiLibrary::finish() noexcept {
  if (!started_) return;
  started_ = false;
  finalize_();
}

void MpiLibrary::check(int code, const char* what) const {
  if (code == kMpiSuccess) return;
  char text[kMostText] = {};
  int length = 0;
  error_string_(code, text, &length);
  fail(ErrorCode::collective, fmt::format("{} to carry on", version_),
       fmt::format("{}: {}", what, text), "resume=latest, once the reason is gone");
}

MpiLibrary::Handle MpiLibrary::send(const void* data, int64_t bytes, int to, int tag) {
  require(bytes <= INT_MAX, "a message of less than 2 GiB");
  Handle request = none_;
  check(isend_(data, static_cast<int>(bytes), byte_, to, tag, world_, &request), "MPI_Isend");
  return request;
}

MpiLibrary::Handle MpiLibrary::receive(void* data, int64_t bytes, int from, int tag) {
  require(bytes <= INT_MAX, "a message of less than 2 GiB");
  Handle request = none_;
  check(irecv_(data, static_cast<int>(bytes), byte_, from, tag, world_, &request), "MPI_Irecv");
  return request;
}

bool MpiLibrary::test(Handle& request) {
  if (request == none_) return true;
  int done = 0;
  check(test_(&request, &done, nullptr), "MPI_Test");
  return done != 0;
}

void MpiLibrary::cancel(Handle& request) {
  if (request == none_) return;
  check(cancel_(&request), "MPI_Cancel");
  check(request_free_(&request), "MPI_Request_free");
}

int MpiLibrary::test_any(Handle* requests, int count) {
  int index = kUndefined, done = 0;
  check(testany_(count, requests, &index, &done, nullptr), "MPI_Testany");
  return done != 0 && index != kUndefined ? index : -1;
}

}  // namespace snug
