// The dialect of engine/simt/simt.h for the emulator: every word is a call into emu.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "engine/core/dtype.h"
#include "engine/core/work_list.h"
#include "engine/simt/emu.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)

// The inline namespace of this side, for the headers that both share.
#define SIMT_SIDE emulated

// The last parameter of whatever may wait or touch shared memory: where it is called from.
#define SIMT_WHERE ::snug::simt::Where where = std::source_location::current()

// The lambda makes a type per declaration and instantiation.
#define SHARED_ARRAY(T, name, n) const auto name = ::snug::simt::declare_shared<T>(n, #name, [] {})

namespace snug::simt {
inline namespace emulated {

using Where = emu::Where;
using Queue = emu::Queue;

inline int thread() {
  return emu::ids().thread;
}
inline int threads() {
  return emu::ids().threads;
}
inline int64_t block() {
  return emu::ids().block[0];
}
inline int64_t block_y() {
  return emu::ids().block[1];
}
inline int64_t block_z() {
  return emu::ids().block[2];
}
inline int64_t blocks() {
  return emu::ids().blocks[0];
}
inline int64_t blocks_y() {
  return emu::ids().blocks[1];
}
inline int64_t blocks_z() {
  return emu::ids().blocks[2];
}
inline int lane() {
  return thread() % kWarp;
}
inline int warp() {
  return thread() / kWarp;
}
inline int warps() {
  return threads() / kWarp;
}

inline void sync_threads(SIMT_WHERE) {
  emu::barrier(where);
}
inline void sync_warp(SIMT_WHERE) {
  emu::warp_op(emu::WarpOp::sync, 0xffffffffu, 0, 0, where);
}
inline void fence() {}

template <class T>
T exchange(emu::WarpOp op, T value, int operand, uint32_t lanes, const Where& where) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = emu::warp_op(op, lanes, bits, operand, where);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

inline constexpr uint32_t kAllLanes = 0xffffffffu;

inline int count_bits(uint32_t x) {
  return std::popcount(x);
}

template <class T>
T shuffle(T value, int from, uint32_t lanes = kAllLanes, SIMT_WHERE) {
  return exchange(emu::WarpOp::shuffle, value, from, lanes, where);
}
template <class T>
T shuffle_xor(T value, int mask, uint32_t lanes = kAllLanes, SIMT_WHERE) {
  return exchange(emu::WarpOp::shuffle_xor, value, mask, lanes, where);
}
template <class T>
T shuffle_up(T value, int distance, uint32_t lanes = kAllLanes, SIMT_WHERE) {
  return exchange(emu::WarpOp::shuffle_up, value, distance, lanes, where);
}
template <class T>
T shuffle_down(T value, int distance, uint32_t lanes = kAllLanes, SIMT_WHERE) {
  return exchange(emu::WarpOp::shuffle_down, value, distance, lanes, where);
}
inline uint32_t ballot(bool vote, uint32_t lanes = kAllLanes, SIMT_WHERE) {
  return static_cast<uint32_t>(emu::warp_op(emu::WarpOp::ballot, lanes, vote, 0, where));
}
inline bool any(bool vote, uint32_t lanes = kAllLanes, SIMT_WHERE) {
  return ballot(vote, lanes, where) != 0;
}
inline bool all(bool vote, uint32_t lanes = kAllLanes, SIMT_WHERE) {
  return ballot(vote, lanes, where) == lanes;
}

// An index that knows where it was written.
struct Index {
  template <std::integral I>
  Index(I value, std::source_location location = std::source_location::current())  // NOLINT
      : i(static_cast<int64_t>(value)), at(location) {}
  int64_t i;
  std::source_location at;
};

template <class T>
class Shared {
 public:
  static_assert(std::is_trivially_copyable_v<T>);

  class Element {
   public:
    operator T() const { return owner_.template read<T>(index_); }  // NOLINT: reads as a T
    const Element& operator=(T value) const {
      owner_.write(index_, value);
      return *this;
    }
    const Element& operator=(const Element& other) const { return *this = static_cast<T>(other); }
    Element(const Element&) = default;
    const Element& operator+=(T value) const { return *this = static_cast<T>(*this) + value; }
    const Element& operator-=(T value) const { return *this = static_cast<T>(*this) - value; }
    const Element& operator*=(T value) const { return *this = static_cast<T>(*this) * value; }

   private:
    friend class Shared;
    Element(const Shared& owner, Index index) : owner_(owner), index_(index) {}
    Shared owner_;
    Index index_;
  };

  Shared(emu::Region& region, int64_t offset) : region_(&region), offset_(offset) {}

  Element operator[](Index index) const { return Element(*this, index); }
  Shared part(Index from) const {
    return Shared(*region_, offset_ + from.i * static_cast<int64_t>(sizeof(T)));
  }

  // U is T, or a vector of T.
  template <class U>
  U read(const Index& index) const {
    U value;
    std::memcpy(&value, use(index, sizeof(U), emu::Use::read), sizeof(U));
    return value;
  }
  template <class U>
  void write(const Index& index, const U& value) const {
    std::memcpy(use(index, sizeof(U), emu::Use::write), &value, sizeof(U));
  }
  void* use(const Index& index, size_t bytes, emu::Use how) const {
    return emu::use_shared(*region_, offset_ + index.i * static_cast<int64_t>(sizeof(T)),
                           static_cast<int64_t>(bytes), how, index.at);
  }
  int64_t offset() const { return offset_; }
  emu::Region& region() const { return *region_; }

 private:
  emu::Region* region_;
  int64_t offset_;  // bytes
};

template <class T, class Unique>
Shared<T> declare_shared(int64_t n, const char* name, Unique,
                         std::source_location at = std::source_location::current()) {
  static const int id = emu::next_declaration();
  return Shared<T>(emu::static_region(id, name, n * static_cast<int64_t>(sizeof(T)), sizeof(T), at),
                   0);
}

// Elements have an even number of bytes; the offset is a multiple of their size.
template <class T>
Shared<T> dynamic_smem(int64_t byte_offset = 0, SIMT_WHERE) {
  static_assert(sizeof(T) % 2 == 0);
  if (byte_offset % static_cast<int64_t>(alignof(T)) != 0)
    emu::fault("an offset into dynamic shared memory that is a multiple of the element's size",
               std::to_string(byte_offset) + " at " + emu::to_string(where.at),
               "pad the part before");
  return Shared<T>(emu::dynamic_region(), byte_offset);
}

// One thread runs at a time, so a plain update is atomic.
template <class T>
inline constexpr bool kAtomic = std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);

template <class T, class F>
requires kAtomic<T> T atomic_update(T* at, F&& f) {
  const T before = *at;
  *at = f(before);
  return before;
}
template <class T>
T atomic_add(T* at, std::type_identity_t<T> value) {
  // Unsigned: devices wrap around.
  using U = std::make_unsigned_t<T>;
  return atomic_update(
      at, [=](T x) { return static_cast<T>(static_cast<U>(x) + static_cast<U>(value)); });
}
template <class T>
T atomic_min(T* at, std::type_identity_t<T> value) {
  return atomic_update(at, [=](T x) { return std::min(x, value); });
}
template <class T>
T atomic_max(T* at, std::type_identity_t<T> value) {
  return atomic_update(at, [=](T x) { return std::max(x, value); });
}
template <class T>
T atomic_exchange(T* at, std::type_identity_t<T> value) {
  return atomic_update(at, [=](T) { return value; });
}
template <class T>
T atomic_cas(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return atomic_update(at, [=](T x) { return x == expected ? value : x; });
}

// The same on element i of shared memory.
template <class T>
T* atomic_element(const Shared<T>& s, const Index& i) {
  return static_cast<T*>(s.use(i, sizeof(T), emu::Use::atomic));
}
template <class T>
T atomic_add(const Shared<T>& s, Index i, std::type_identity_t<T> value) {
  return atomic_add(atomic_element(s, i), value);
}
template <class T>
T atomic_min(const Shared<T>& s, Index i, std::type_identity_t<T> value) {
  return atomic_min(atomic_element(s, i), value);
}
template <class T>
T atomic_max(const Shared<T>& s, Index i, std::type_identity_t<T> value) {
  return atomic_max(atomic_element(s, i), value);
}

// Vector accesses; P is a Pack.
inline void check_aligned(int64_t address, int64_t align, const Where& where) {
  if (address % align != 0)
    emu::fault(
        "a vector access at a multiple of " + std::to_string(align) + " bytes",
        "one " + std::to_string(address % align) + " bytes past at " + emu::to_string(where.at),
        "take single elements where rows or tensors are not aligned");
}
template <class P, class T>
P load_vector(const T* p, const Where& where) {
  check_aligned(static_cast<int64_t>(reinterpret_cast<uintptr_t>(p)), alignof(P), where);
  P value;
  std::memcpy(&value, p, sizeof(P));
  return value;
}
template <class P, class T>
void store_vector(T* p, const P& value, const Where& where) {
  check_aligned(static_cast<int64_t>(reinterpret_cast<uintptr_t>(p)), alignof(P), where);
  std::memcpy(p, &value, sizeof(P));
}
template <class P, class T>
P load_vector(const Shared<T>& s, const Index& i) {
  check_aligned(s.offset() + i.i * static_cast<int64_t>(sizeof(T)), alignof(P), i.at);
  return s.template read<P>(i);
}
template <class P, class T>
void store_vector(const Shared<T>& s, const Index& i, const P& value) {
  check_aligned(s.offset() + i.i * static_cast<int64_t>(sizeof(T)), alignof(P), i.at);
  s.write(i, value);
}

// All threads see the one copy of the launch.
template <class T>
struct Constant {
  const T* operator->() const { return value; }
  const T* value;
};

// What a launch keeps of an argument, and what a thread gets of that.
template <class P>
struct Argument {
  using Kept = P;
  static P of(const P& kept) { return kept; }
};
template <class T>
struct Argument<Constant<T>> {
  using Kept = T;
  static Constant<T> of(const T& kept) { return {&kept}; }
};

template <class... P, class... A>
void launch(Queue& queue, const Dims& dims, const char* name, void (*kernel)(P...), A... values) {
  static_assert((std::is_trivially_copyable_v<P> && ...), "kernels take plain values");
  static_assert(!(std::is_reference_v<P> || ...), "kernels take values and pointers");
  static_assert((0 + ... + sizeof(typename Argument<P>::Kept)) <= kMaxArgumentBytes);
  using Kept = std::tuple<typename Argument<P>::Kept...>;
  struct Call {
    void (*kernel)(P...);
    Kept values;
  };
  const Call call{kernel, Kept(static_cast<typename Argument<P>::Kept>(values)...)};
  const auto run = [call, dims, name](Queue& q) {
    emu::run_grid(
        q, dims, name,
        [](const void* c) {
          const Call& made = *static_cast<const Call*>(c);
          std::apply([&](const auto&... kept) { made.kernel(Argument<P>::of(kept)...); },
                     made.values);
        },
        &call);
  };
  if (queue.capture == nullptr) return run(queue);
  queue.capture->work.emplace_back([run, schedule = queue.schedule] {
    Queue q{schedule, {}};
    run(q);
  });
}

}  // namespace emulated
}  // namespace snug::simt
