// engine/simt/copies.h for the emulator: bytes are all ones, which is a NaN, from the beginning of a
// copy until its thread waits for it, and either end counts as a write of that thread.
#pragma once

#include "engine/simt/simt.h"

namespace snug::simt {
inline namespace emulated {

template <int kBytes, class T>
void copy_bytes(const Shared<T>& s, const Index& i, const T* p, bool there) {
  const int64_t to = s.offset() + i.i * static_cast<int64_t>(sizeof(T));
  check_aligned(to, kBytes, i.at);
  if (there)
    check_aligned(static_cast<int64_t>(reinterpret_cast<uintptr_t>(p)), kBytes, Where(i.at));
  emu::begin_copy(s.region(), to, kBytes, there ? p : nullptr, i.at);
}
template <class T>
void copy_vector(const Shared<T>& s, Index i, const T* p, bool there) {
  copy_bytes<16>(s, i, p, there);
}
template <class T>
void copy_number(const Shared<T>& s, Index i, const T* p, bool there) {
  static_assert(sizeof(T) == 4);
  copy_bytes<4>(s, i, p, there);
}
inline void end_copies() {
  emu::end_copies();
}
template <int kLeft>
void wait_copies() {
  emu::wait_copies(kLeft);
}

}  // namespace emulated
}  // namespace snug::simt
