#include "engine/core/view.h"

#include "engine/core/error.h"

namespace snug {

const char* to_string(Place place) {
  switch (place) {
    case Place::cpu:
      return "cpu";
    case Place::plan:
      return "plan";
    case Place::emu:
      return "emu";
    case Place::cuda:
      return "cuda";
  }
  return "?";
}

void View::wrong_type(const char* asked) const {
  fail(ErrorCode::internal, std::string("a view of ") + asked, describe(*this),
       "this is a defect in Snug: please report it with the command you ran");
}

View View::reshaped(Shape s) const {
  if (s.elements() != shape.elements())
    fail(ErrorCode::shape, "a reshape that keeps the number of elements",
         describe(*this) + " to " + to_string(s), "check the sizes in the config");
  View v = *this;
  v.shape = s;
  return v;
}

View View::rows(int64_t begin, int64_t count) const {
  const int64_t total = shape.rank() ? shape[0] : 0;
  int64_t end = 0;
  const bool overflow = __builtin_add_overflow(begin, count, &end);
  if (shape.rank() == 0 || overflow || begin < 0 || count < 0 || end > total)
    fail(ErrorCode::shape, "rows inside the tensor",
         "rows " + std::to_string(begin) + ".." + std::to_string(end) + " of " + describe(*this),
         "check the chunk sizes");
  const int64_t row = total ? shape.elements() / total : 0;
  View v = *this;
  if (data) v.data = static_cast<std::byte*>(data) + begin * row * size_of(dtype);
  switch (shape.rank()) {
    case 1:
      v.shape = {count};
      break;
    case 2:
      v.shape = {count, shape[1]};
      break;
    case 3:
      v.shape = {count, shape[1], shape[2]};
      break;
    case 4:
      v.shape = {count, shape[1], shape[2], shape[3]};
      break;
    default:
      v.shape = {count, shape[1], shape[2], shape[3], shape[4]};
      break;
  }
  return v;
}

std::string describe(const View& v) {
  return (v.name.empty() ? std::string("unnamed") : v.name.str()) + " " + to_string(v.shape) + " " +
         to_string(v.dtype);
}

void expect(const View& x, const char* argument, std::initializer_list<Extent> extents) {
  bool same = x.shape.rank() == static_cast<int>(extents.size());
  int i = 0;
  for (const Extent& e : extents) same = same && x.shape[i++] == e.value;
  if (same) return;
  std::string letters = "(", numbers = "(";
  const char* sep = "";
  for (const Extent& e : extents) {
    letters += std::string(sep) + e.letter;
    numbers += sep + std::to_string(e.value);
    sep = ",";
  }
  fail(ErrorCode::shape, std::string(argument) + " of shape " + letters + ")=" + numbers + ")",
       describe(x), "check that the weights and the config belong together");
}

void expect_dtype(const View& x, const char* argument, std::initializer_list<DType> allowed) {
  std::string list;
  for (const DType t : allowed) {
    if (t == x.dtype) return;
    list += (list.empty() ? "" : "|") + std::string(to_string(t));
  }
  fail(ErrorCode::unsupported, std::string(argument) + " of dtype " + list, describe(x),
       "choose another precision");
}

}  // namespace snug
