#include "engine/io/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "engine/core/error.h"

namespace snug {
namespace {

constexpr int64_t kMaxSkipDepth = 64;  // nesting inside keys the format does not define
constexpr size_t kMaxRank = 64;        // no framework goes further
constexpr const char* kAdvice = "write the file again with a correct writer, or download it again";

// Receives the parser's events. The nesting is fixed, so a small state replaces a stack.
class HeaderEvents {
 public:
  using json = nlohmann::json;
  using number_integer_t = json::number_integer_t;
  using number_unsigned_t = json::number_unsigned_t;
  using number_float_t = json::number_float_t;
  using string_t = json::string_t;
  using binary_t = json::binary_t;

  explicit HeaderEvents(const std::string& path) : path_(path) {}

  bool null() { return other("null"); }
  bool boolean(bool v) { return other(v ? "true" : "false"); }
  bool number_float(number_float_t, const string_t& text) { return other(text); }
  bool number_integer(number_integer_t v) { return other(std::to_string(v)); }
  bool binary(binary_t&) { return other("binary"); }

  bool number_unsigned(number_unsigned_t v) {
    if (state_ != State::shape && state_ != State::offsets) return other(std::to_string(v));
    if (v > static_cast<uint64_t>(INT64_MAX)) wrong("a number below 2^63", std::to_string(v));
    std::vector<int64_t>& list = state_ == State::shape ? entry_.shape : offsets_;
    if (list.size() == kMaxRank) wrong("at most 64 numbers", "more");
    list.push_back(static_cast<int64_t>(v));
    return true;
  }

  bool string(string_t& v) {
    if (state_ == State::metadata) {
      out_.metadata.emplace(std::move(key_), std::move(v));
      return true;
    }
    if (state_ != State::tensor || key_ != "dtype") return other('"' + v + '"');
    const auto type = safe_dtype(v);
    if (!type)
      fail(ErrorCode::data, "an element type of the safetensors format (F32, BF16, F16, I64, ...)",
           fmt::format("\"{}\" for tensor '{}' of {}", v, entry_.name, path_), kAdvice);
    entry_.dtype = *type;
    has_dtype_ = true;
    return true;
  }

  bool start_object(size_t) {
    if (state_ == State::start) {
      state_ = State::top;
    } else if (state_ == State::top) {
      state_ = key_ == "__metadata__" ? State::metadata : State::tensor;
      entry_ = HeaderEntry{};
      entry_.name = key_;
      offsets_.clear();
      has_dtype_ = has_shape_ = has_offsets_ = false;
    } else {
      open("an object");
    }
    return true;
  }

  bool end_object() {
    if (state_ == State::skip) return close();
    if (state_ == State::tensor) finish_tensor();
    if (state_ == State::tensor || state_ == State::metadata) inner_names_.clear();
    state_ = state_ == State::top ? State::done : State::top;
    return true;
  }

  bool start_array(size_t) {
    if (state_ == State::tensor && (key_ == "shape" || key_ == "data_offsets")) {
      state_ = key_ == "shape" ? State::shape : State::offsets;
    } else {
      open("an array");
    }
    return true;
  }

  bool end_array() {
    if (state_ == State::skip) return close();
    if (state_ == State::shape) has_shape_ = true;
    if (state_ == State::offsets) has_offsets_ = true;
    state_ = State::tensor;
    return true;
  }

  bool key(string_t& v) {
    if (state_ == State::skip) return true;
    const bool top = state_ == State::top;
    if (!(top ? names_ : inner_names_).insert(v).second)
      fail(ErrorCode::data, fmt::format("every name once in the header of {}", path_),
           top ? fmt::format("'{}' twice", v)
               : fmt::format("\"{}\" twice in '{}'", v,
                             state_ == State::metadata ? "__metadata__" : entry_.name),
           kAdvice);
    key_ = std::move(v);
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& e) {
    std::string_view what = e.what();  // behind the library's own name of the error
    what.remove_prefix(std::min(what.find("] ") + 2, what.size()));
    fail(ErrorCode::data, fmt::format("a JSON header in UTF-8 in {}", path_),
         fmt::format("an error at byte {} of the file: {}", position + 7, what), kAdvice);
  }

  Header take() { return std::move(out_); }

 private:
  enum class State { start, top, metadata, tensor, shape, offsets, skip, done };

  [[noreturn]] void wrong(const std::string& expected, const std::string& found) {
    std::string where = "the header";
    if (state_ == State::top) where = fmt::format("'{}'", key_);
    if (state_ == State::metadata) where = fmt::format("__metadata__ \"{}\"", key_);
    if (state_ == State::tensor || state_ == State::shape || state_ == State::offsets)
      where = fmt::format("\"{}\" of tensor '{}'", key_, entry_.name);
    fail(ErrorCode::data, fmt::format("{} as {} of {}", expected, where, path_), found, kAdvice);
  }

  const char* wanted() const {
    switch (state_) {
      case State::start:
      case State::top:
        return "an object";
      case State::metadata:
        return "a string";
      case State::shape:
      case State::offsets:
        return "whole numbers, 0 or more,";
      default:
        return key_ == "dtype" ? "a string" : "an array";
    }
  }

  bool ignored() const {
    return state_ == State::skip || (state_ == State::tensor && key_ != "dtype" &&
                                     key_ != "shape" && key_ != "data_offsets");
  }

  // A scalar that is not what the place asks for; unknown keys of a tensor may hold anything.
  bool other(const std::string& found) {
    if (!ignored()) wrong(wanted(), found);
    return true;
  }

  void open(const char* found) {
    if (!ignored()) wrong(wanted(), found);
    if (++skip_depth_ > kMaxSkipDepth) wrong("at most 64 levels", "deeper nesting");
    state_ = State::skip;
  }

  bool close() {
    if (--skip_depth_ == 0) state_ = State::tensor;
    return true;
  }

  void finish_tensor() {
    const char* missing = !has_dtype_ ? "dtype" : !has_shape_ ? "shape" : "data_offsets";
    if (!has_dtype_ || !has_shape_ || !has_offsets_)
      fail(ErrorCode::data, "dtype, shape and data_offsets for every tensor",
           fmt::format("no \"{}\" in tensor '{}' of {}", missing, entry_.name, path_), kAdvice);
    if (offsets_.size() != 2)
      fail(ErrorCode::data, "data_offsets of two numbers, [begin, end]",
           fmt::format("{} numbers in tensor '{}' of {}", offsets_.size(), entry_.name, path_),
           kAdvice);
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    out_.entries.push_back(std::move(entry_));
  }

  const std::string& path_;
  State state_ = State::start;
  int64_t skip_depth_ = 0;
  std::string key_;
  HeaderEntry entry_;
  std::vector<int64_t> offsets_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::unordered_set<std::string> names_, inner_names_;
  Header out_;
};

}  // namespace

Header parse_safetensors_header(std::string_view text, const std::string& path) {
  if (text.empty() || text.front() != '{')
    fail(ErrorCode::data, fmt::format("the header of {} to begin with '{{'", path),
         text.empty() ? "an empty header"
                      : fmt::format("byte 0x{:02x}", static_cast<unsigned char>(text.front())),
         "check that this is a safetensors file");
  // The parser takes a zero byte for the end of its input, so it would not see what follows.
  const size_t zero = text.find('\0');
  if (zero != std::string_view::npos)
    fail(ErrorCode::data, fmt::format("a JSON header in UTF-8 in {}", path),
         fmt::format("a zero byte at byte {} of the file", zero + 8), kAdvice);
  HeaderEvents events(path);
  nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &events);
  return events.take();
}

void fail_missing_tensor(std::string_view name, const std::string& where,
                         const std::string& example, int64_t count) {
  fail(ErrorCode::data, fmt::format("a tensor '{}' in {}", name, where),
       count == 0 ? std::string("no tensors")
                  : fmt::format("{} tensors, the first is '{}'", count, example),
       "check that these weights belong to this model");
}

}  // namespace snug
