// OpenMP's functions where it is, and where it is not (SNUG_OPENMP=OFF) what they say of a program
// with one thread: then every loop of parallel.h runs in the thread that calls it.
#pragma once

#if defined(_OPENMP)

#include <omp.h>

#else

constexpr int omp_proc_bind_false = 0;
inline int omp_get_max_threads() {
  return 1;
}
inline int omp_get_num_threads() {
  return 1;
}
inline int omp_get_thread_num() {
  return 0;
}
inline int omp_get_num_procs() {
  return 1;
}
inline void omp_set_num_threads(int) {}
inline int omp_get_proc_bind() {
  return omp_proc_bind_false;
}
inline int omp_get_num_places() {
  return 0;
}
inline int omp_get_place_num_procs(int) {
  return 0;
}
inline void omp_get_place_proc_ids(int, int*) {}

#endif
