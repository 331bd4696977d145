// View: what every op takes. A pointer, a shape, a dtype, a place and a name; trivially copyable,
// owns nothing. On the place `plan` the pointer is null and everything else is real.
#pragma once

#include <cstddef>
#include <initializer_list>

#include "engine/core/dtype.h"
#include "engine/core/name.h"
#include "engine/core/shape.h"

namespace snug {

enum class Place : uint8_t { cpu, plan, emu, cuda };
const char* to_string(Place place);

struct View {
  void* data = nullptr;
  Shape shape;
  DType dtype = DType::f32;
  Place place = Place::plan;
  Name name;
  bool with_host = false;  // in the host arena, beside a device

  bool defined() const { return !name.empty(); }
  int64_t elements() const { return shape.elements(); }
  int64_t bytes() const { return elements() * size_of(dtype); }

  // Typed pointer; throws internal if T is not the dtype. T may be const.
  template <class T>
  T* as() const {
    if (dtype_of<std::remove_const_t<T>>::value != dtype)
      wrong_type(to_string(dtype_of<std::remove_const_t<T>>::value));
    return static_cast<T*>(data);
  }

  // Same bytes, another shape of as many elements.
  View reshaped(Shape s) const;
  // Rows [begin, begin+count) of the first extent.
  View rows(int64_t begin, int64_t count) const;

 private:
  [[noreturn]] void wrong_type(const char* asked) const;
};

// "w (768) f32"
std::string describe(const View& v);

// Op entry check: throws shape, printing letters and numbers, unless x has exactly these extents.
//   expect(x, "x", {{"N", n}, {"C", c}});
void expect(const View& x, const char* argument, std::initializer_list<Extent> extents);
void expect_dtype(const View& x, const char* argument, std::initializer_list<DType> allowed);

// A gradient to write: assigned when `add` is false, added to otherwise.
struct GradView {
  View view;
  bool add = false;
};

}  // namespace snug
