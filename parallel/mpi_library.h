// Open MPI, loaded when a run first wants it: a build needs no header of it and a program starts where it
// is absent. What is here are the few functions, objects and constants of its interface libmpi.so.40 (Open
// MPI 4.0 to 5.0; mpi.h of 4.1.4) that mpi_group and mpi_transport take. Another MPI has other handles under
// another name of the library, and is refused.
#pragma once

#include <cstdint>
#include <string>

namespace snug {

// The file that is loaded instead of libmpi.so.40, for a library at another place.
inline constexpr const char* kMpiLibraryVariable = "SNUG_LIBMPI";

class MpiLibrary {
 public:
  using Handle = void*;                  // MPI_Comm, MPI_Datatype, MPI_Request, ...
  static constexpr int kSerialized = 2;  // MPI_THREAD_SERIALIZED
  static constexpr int kUndefined = -32766;

  // Loaded, and started for this process by MPI_Init_thread; ended by the first of finish() and the exit
  // of the process. Throws usage with the name of the package if there is no such library, collective if
  // its ranks are not `size`, of which this is `rank`.
  static MpiLibrary& start(int rank, int size);

  // One after another, from any thread (MPI_THREAD_SERIALIZED): the caller has a lock. Throw collective
  // with MPI's own words.
  Handle send(const void* data, int64_t bytes, int to, int tag);
  Handle receive(void* data, int64_t bytes, int from, int tag);
  // Whether it is done; it is none() then.
  bool test(Handle& request);
  // Which of `count`, or -1: none has come. It is none() then, as others of them may be.
  int test_any(Handle* requests, int count);
  // Of a message that nobody will send: nothing is received any more.
  void cancel(Handle& request);
  Handle none() const { return none_; }

  // Ends MPI in order, which waits for all ranks: only where all are known to come here.
  void finish() noexcept;
  const std::string& version() const { return version_; }

 private:
  MpiLibrary();
  void check_ranks(int rank, int size);
  template <class F>
  void find(F& f, const char* name);
  void check(int code, const char* what) const;
  static void at_exit(int status, void* self);

  void* library_ = nullptr;
  std::string path_, version_;
  Handle world_ = nullptr, byte_ = nullptr, none_ = nullptr;
  bool started_ = false;
  int level_ = 0;

  int (*init_)(int*, char***, int, int*) = nullptr;
  int (*finalize_)() = nullptr;
  int (*abort_)(Handle, int) = nullptr;
  int (*size_)(Handle, int*) = nullptr;
  int (*rank_)(Handle, int*) = nullptr;
  int (*set_errhandler_)(Handle, Handle) = nullptr;
  int (*error_string_)(int, char*, int*) = nullptr;
  int (*isend_)(const void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*irecv_)(void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*test_)(Handle*, int*, void*) = nullptr;
  int (*testany_)(int, Handle*, int*, int*, void*) = nullptr;
  int (*cancel_)(Handle*) = nullptr;
  int (*request_free_)(Handle*) = nullptr;
  int (*library_version_)(char*, int*) = nullptr;
};

}  // namespace snug
