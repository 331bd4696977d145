#include "tools/convert/decoded_base.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "engine/core/error.h"

namespace snug {
namespace {

// Calls f(element of the file, element here) for all elements of a tensor.
template <class F>
void each_element(const ParamInfo& p, const FilePiece& piece, int64_t n, F&& f) {
  const bool transposed = p.transposed_in_file && p.shape.rank() == 2;
  const int64_t rows = piece.rows, width = n / rows;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t ours = piece.groups.any() ? piece.groups.ours(row) : row;
    for (int64_t c = 0; c < width; ++c)
      f(transposed ? c * rows + row : row * width + c, ours * width + c);
  }
}

}  // namespace

DecodedBase::DecodedBase(const ModelSpec& spec, const std::string& form) : form_(form) {
  PeftConfig config;
  set_base_form(config, form, "the form of a base");
  require(!config.codec.empty(), "a base in codes");
  codes_ = std::dynamic_pointer_cast<const BlockCodes>(block_codes(spec, config));
}

std::vector<float> DecodedBase::decode(const ParamInfo& param, const FilePiece& piece,
                                       const SafeTensor& tensor) const {
  const int64_t n = tensor.elements();
  std::vector<float> file(static_cast<size_t>(n)), ours(static_cast<size_t>(n));
  convert(tensor.dtype, tensor.data, n, file.data());
  const float most = codes_->of_f16() ? kMostOfF16 : std::numeric_limits<float>::max();
  for (int64_t i = 0; i < n; ++i)
    if (const float x = file[static_cast<size_t>(i)]; !(std::fabs(x) <= most))
      fail(ErrorCode::data,
           codes_->of_f16() ? "weights that fp16 can hold, 65504 at most, to be coded"
                            : "finite weights, to be coded",
           fmt::format("element {} of {} that is {}", i, tensor.name, x),
           "a base whose weights are whole, or --base-form full");
  each_element(param, piece, n, [&](int64_t at, int64_t here) {
    ours[static_cast<size_t>(here)] = file[static_cast<size_t>(at)];
  });
  codes_->round_trip(ours, n / piece.rows, 1);
  each_element(param, piece, n, [&](int64_t at, int64_t here) {
    file[static_cast<size_t>(at)] = ours[static_cast<size_t>(here)];
  });
  return file;
}

}  // namespace snug
