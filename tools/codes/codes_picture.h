// What a codec made of the tensors of a file: a table, and pictures of the codes over the values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace snug {

// Values are counted where they lie in their block: at x / |x| of the largest magnitude, of a codec
// with two ends (min_max8) at the share of the way from the least to the largest.
inline constexpr int kCodeBins = 200;

struct CodedTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  int64_t elements = 0;
  int64_t bytes = 0, coded_bytes = 0;    // as they were; codes, scales and a book
  double max_error = 0, mean_error = 0;  // of |decoded - value|
  double rms_error = 0;                  // the root of the mean square of the same
  double rms = 0;                        // of the values
  std::vector<int64_t> values;           // kCodeBins counts, from the lower end
  std::vector<double> entries;           // where codes lie, ascending, in the same place
  std::vector<int64_t> used;             // elements of each entry
  double relative_error() const { return rms > 0 ? rms_error / rms : 0; }
};

struct CodedFile {
  std::string path, codec;
  int64_t block = 0;
  bool doubled = false;
  double low = -1;  // the lower end of the picture; the upper one is 1
  std::vector<CodedTensor> tensors;
};

// Of all tensors: sums, the largest error, means over elements. Counts of codes only where all
// tensors have the same entries.
CodedTensor all_tensors(const CodedFile& file);

// A page that needs nothing but itself: the table and a picture of every tensor, of the largest
// ones where there are many.
std::string codes_html(const CodedFile& file);
// The picture of all tensors in lines of at most 80 columns: a code or a few, and a bar.
std::string codes_text(const CodedFile& file, bool blocks);

}  // namespace snug
