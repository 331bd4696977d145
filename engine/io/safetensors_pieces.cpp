#include "engine/io/safetensors_pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/io/json.h"

namespace snug {
namespace {

constexpr std::string_view kEnd = ".safetensors";
constexpr const char* kKey = "snug_pieces";
constexpr int64_t kRowsAtOnce = 16;  // of a matrix by columns: a line of the cache of each

[[noreturn]] void fail_pieces(const std::string& index, const std::string& expected,
                              const std::string& found) {
  fail(ErrorCode::data, fmt::format("{}, as {} says", expected, index), found,
       "the folder as it was written, with the files of all ranks");
}

// [file, first, elements] in the order of elements, without a gap.
std::vector<TensorPiece> read_pieces(const nlohmann::json& list, const std::string& where,
                                     size_t files, int64_t elements) {
  std::vector<TensorPiece> pieces;
  int64_t behind = 0;
  for (const nlohmann::json& item : list) {
    const bool numbers = item.is_array() && item.size() == 3 && item[0].is_number_integer() &&
                         item[1].is_number_integer() && item[2].is_number_integer();
    const int64_t file = numbers ? item[0].get<int64_t>() : -1;
    TensorPiece p;
    if (numbers) p = {static_cast<int>(file), item[1].get<int64_t>(), item[2].get<int64_t>()};
    if (file < 0 || file >= static_cast<int64_t>(files) || p.first != behind || p.elements <= 0 ||
        p.elements > elements - behind)
      fail_pieces(where, fmt::format("a piece [file, {}, elements] of {}", behind, elements),
                  json_brief(item));
    behind += p.elements;
    pieces.push_back(p);
  }
  if (behind != elements)
    fail_pieces(where, fmt::format("pieces of all {} elements", elements),
                fmt::format("{} of them", behind));
  return pieces;
}

template <class T>
void read_columns(const PiecedTensor& t, const TensorPiece& piece, const uint8_t* from,
                  int64_t first, int64_t n, T* out) {
  const int64_t rows = t.shape[0], columns = t.shape[1], end = piece.first + piece.elements;
  for (int64_t begin = first; begin < first + n; begin += kRowsAtOnce) {
    const int64_t behind = std::min(begin + kRowsAtOnce, first + n);
    for (int64_t c = piece.first / rows; c * rows < end; ++c) {
      const int64_t low = std::max(begin, piece.first - c * rows);
      const int64_t high = std::min(behind, end - c * rows);
      for (int64_t r = low; r < high; ++r)
        std::memcpy(out + (r - first) * columns + c,
                    from + (c * rows + r - piece.first) * static_cast<int64_t>(sizeof(T)),
                    sizeof(T));
    }
  }
}

}  // namespace

int64_t PiecedTensor::elements() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

std::string pieces_path(const std::string& file) {
  return file + ".pieces.json";
}

std::string rank_file(const std::string& file, int rank) {
  const bool ends = file.ends_with(kEnd);
  return fmt::format("{}-rank-{}{}", ends ? file.substr(0, file.size() - kEnd.size()) : file, rank,
                     kEnd);
}

std::string piece_name(std::string_view tensor, int64_t first) {
  return fmt::format("{}@{}", tensor, first);
}

std::string pieces_text(const SafeMetadata& metadata, const std::vector<std::string>& files,
                        const std::vector<PiecedTensor>& tensors) {
  nlohmann::json all = nlohmann::json::object();
  for (const PiecedTensor& t : tensors) {
    nlohmann::json pieces = nlohmann::json::array();
    for (const TensorPiece& p : t.pieces) pieces.push_back({p.file, p.first, p.elements});
    nlohmann::json& entry = all[t.name];
    entry = {{"dtype", to_string(t.dtype)}, {"shape", t.shape}, {"pieces", std::move(pieces)}};
    if (t.by_columns) entry["order"] = "F";
  }
  const nlohmann::json root = {
      {kKey, 1}, {"metadata", metadata}, {"files", files}, {"tensors", std::move(all)}};
  return root.dump() + "\n";
}

bool safetensors_in_pieces(const std::string& file) {
  return !file_exists(file) && file_exists(pieces_path(file));
}

bool safetensors_there(const std::string& file) {
  return file_exists(file) || file_exists(pieces_path(file));
}

SafetensorsPieces::SafetensorsPieces(const std::string& file) : path_(file) {
  if (safetensors_in_pieces(file)) {
    open_pieces();
    return;
  }
  files_.emplace_back(file);
  metadata_ = files_.front().metadata();
  for (const SafeTensor& t : files_.front().tensors())
    tensors_.push_back({t.name, t.dtype, t.shape, false, {{0, 0, t.elements()}}});
}

void SafetensorsPieces::open_pieces() {
  whole_ = false;
  const std::string index = pieces_path(path_);
  const nlohmann::json root = parse_json_file(index);
  require_object(root, index);
  get_int_in(root, kKey, index, 1, 1);
  const std::filesystem::path folder = std::filesystem::path(index).parent_path();
  for (const std::string& name : get_strings(root, "files", index)) {
    const std::string file = (folder / name).string();
    if (name.find('/') != std::string::npos || !file_exists(file))
      fail_pieces(index, fmt::format("the file {}", file), "no such file");
    files_.emplace_back(file);
  }
  if (const auto map = root.find("metadata"); map != root.end() && map->is_object())
    for (const auto& [key, value] : map->items())
      if (value.is_string()) metadata_[key] = value.get<std::string>();
  const auto all = root.find("tensors");
  if (all == root.end()) fail_pieces(index, "an object \"tensors\"", "none");
  require_object(*all, index + " / tensors");
  for (const auto& [name, entry] : all->items()) {
    const std::string where = index + " / " + name;
    require_object(entry, where);
    PiecedTensor t;
    t.name = name;
    const std::string dtype = get_string(entry, "dtype", where);
    const auto known = safe_dtype(dtype);
    if (!known || bits_of(*known) % 8 != 0) fail_pieces(where, "a dtype of whole bytes", dtype);
    t.dtype = *known;
    int64_t elements = 1;
    const auto shape = entry.find("shape");
    bool good = shape != entry.end() && shape->is_array();
    for (size_t i = 0; good && i < shape->size(); ++i) {
      const nlohmann::json& extent = (*shape)[i];
      good = extent.is_number_integer() && extent.get<int64_t>() >= 0 &&
             !__builtin_mul_overflow(elements, extent.get<int64_t>(), &elements);
      if (good) t.shape.push_back(extent.get<int64_t>());
    }
    const std::string order = get_string(entry, "order", where, "C");
    if (order != "C" && order != "F") fail_pieces(where, "the order \"C\" or \"F\"", order);
    t.by_columns = order == "F";
    const int64_t bits = bits_of(t.dtype);
    if (!good || (t.by_columns && (t.shape.size() != 2 || (bits != 16 && bits != 32))))
      fail_pieces(where, t.by_columns ? "a matrix of 2 or 4 bytes an element" : "a shape",
                  shape == entry.end() ? "none" : json_brief(*shape));
    t.pieces =
        read_pieces(entry.value("pieces", nlohmann::json::array()), where, files_.size(), elements);
    for (const TensorPiece& p : t.pieces) {
      const SafetensorsReader& file = files_[static_cast<size_t>(p.file)];
      const SafeTensor* const piece = file.find(piece_name(name, p.first));
      if (!piece || piece->dtype != t.dtype || piece->elements() != p.elements)
        fail_pieces(index,
                    fmt::format("{} of {} elements of {} in {}", piece_name(name, p.first),
                                p.elements, dtype, file.path()),
                    piece ? fmt::format("{} of {}", piece->elements(), to_string(piece->dtype))
                          : "none of that name");
    }
    tensors_.push_back(std::move(t));
  }
}

const PiecedTensor& SafetensorsPieces::at(std::string_view name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const PiecedTensor& t) { return t.name == name; });
  if (found != tensors_.end()) return *found;
  if (whole_) files_.front().at(name);  // throws
  fail_pieces(path_, fmt::format("a tensor {}", name), "none of that name");
}

const uint8_t* SafetensorsPieces::bytes_of(const PiecedTensor& t, const TensorPiece& p) const {
  const SafetensorsReader& file = files_[static_cast<size_t>(p.file)];
  return file.at(whole_ ? t.name : piece_name(t.name, p.first)).data;
}

SafetensorsPieces::Span SafetensorsPieces::span(const PiecedTensor& t, int64_t first) const {
  require(!t.by_columns && first >= 0 && first < t.elements(), "an element of the tensor");
  const auto after = std::upper_bound(t.pieces.begin(), t.pieces.end(), first,
                                      [](int64_t f, const TensorPiece& p) { return f < p.first; });
  const TensorPiece& p = *(after - 1);
  return {bytes_of(t, p) + (first - p.first) * (bits_of(t.dtype) / 8),
          p.first + p.elements - first};
}

void SafetensorsPieces::read_rows(const PiecedTensor& t, int64_t first, int64_t n,
                                  void* out) const {
  const int64_t rows = t.shape.empty() ? 1 : t.shape[0], size = bits_of(t.dtype) / 8;
  require(first >= 0 && n >= 0 && first + n <= rows, "rows of the tensor");
  if (t.by_columns) {
    for (const TensorPiece& p : t.pieces) {
      const uint8_t* const from = bytes_of(t, p);
      if (size == 4)
        read_columns(t, p, from, first, n, static_cast<uint32_t*>(out));
      else
        read_columns(t, p, from, first, n, static_cast<uint16_t*>(out));
    }
    return;
  }
  const int64_t width = rows == 0 ? 0 : t.elements() / rows;
  auto* to = static_cast<uint8_t*>(out);
  for (int64_t at = first * width, end = at + n * width; at < end;) {
    const Span s = span(t, at);
    const int64_t count = std::min(s.elements, end - at);
    std::memcpy(to, s.data, static_cast<size_t>(count * size));
    to += count * size;
    at += count;
  }
}

void SafetensorsPieces::read(const PiecedTensor& t, void* out) const {
  read_rows(t, 0, t.shape.empty() ? 1 : t.shape[0], out);
}

void SafetensorsPieces::drop_pages() const {
  for (const SafetensorsReader& file : files_) file.drop_pages();
}

}  // namespace snug
