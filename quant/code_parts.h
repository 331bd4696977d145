// The tensors that a coded tensor is in a file: their names, shapes and contents, and the checks of
// what a file says (code_file.h has the table).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/io/safetensors.h"
#include "quant/coder.h"

namespace snug {

inline constexpr std::string_view kQuantState = ".quant_state.";

// Appends the tensors of one coded tensor, in the order of write_parts(). dtype: PyTorch's name of
// what the tensor was, "bfloat16".
void add_code_specs(std::vector<SafeSpec>& specs, const std::string& name,
                    const std::vector<int64_t>& shape, int64_t n, const CodeSpec& spec,
                    const char* dtype);
void write_parts(SafetensorsWriter& writer, const std::string& name, const Codes& codes,
                 const CodeSpec& spec, const char* dtype, const std::vector<int64_t>& shape);

// One coded tensor of an open file. Its parts belong together and have the sizes that its state
// says.
struct CodeParts {
  CodeSpec spec;
  DType dtype;
  std::vector<int64_t> shape;
  int64_t elements;
  float offset = 0;
  const SafeTensor *codes, *absmax, *quant_map = nullptr, *nested_absmax = nullptr,
                                    *nested_quant_map = nullptr, *state;

  bool holds(const SafeTensor& t) const {
    return &t == codes || &t == absmax || &t == quant_map || &t == nested_absmax ||
           &t == nested_quant_map || &t == state;
  }
  Codes read() const;
};

// The state of a coded tensor of this name; null: the file has none.
const SafeTensor* find_state(const SafetensorsFolder& file, const std::string& name);
// The coded tensor of a state. Throws data, naming the tensor and `path`.
CodeParts parts_of_state(const SafetensorsFolder& file, const std::string& path,
                         const SafeTensor& state);
// All of a file. Throws data: without one, and as decode_file() says.
std::vector<CodeParts> find_parts(const SafetensorsFolder& file, const std::string& path);

}  // namespace snug
