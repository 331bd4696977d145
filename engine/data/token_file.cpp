#include "engine/data/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "engine/core/error.h"
#include "engine/io/fingerprint.h"
#include "engine/io/json.h"

namespace snug {
namespace {

constexpr int64_t kHeaderInts = 256, kHeaderBytes = 4 * kHeaderInts;
constexpr int32_t kMagic16 = 20240520, kVersion16 = 1, kMagic32 = 20240801, kVersion32 = 7;
constexpr int64_t kBufferBytes = 64 << 10;

constexpr const char* kMakeAgain = "make the token file again from its text";

// Other files of the llm.c family, recognised so that the error can say what they are.
const char* foreign(int32_t magic) {
  switch (magic) {
    case 20240522:
      return "a llm.c multiple-choice evaluation file";
    case 20240326:
      return "a llm.c model";
    case 20240327:
      return "a llm.c debug state";
    case 20240328:
      return "a llm.c tokenizer";
    default:
      return nullptr;
  }
}

std::string side_path(const std::string& path) {
  return path + ".json";
}

}  // namespace

bool is_token_file_name(const std::string& path) {
  return path.size() > 4 && path.compare(path.size() - 4, 4, ".bin") == 0;
}

TokenFile::TokenFile(const std::string& path, std::optional<uint64_t> tokenizer)
    : path_(path), file_(path) {
  int32_t head[3] = {};
  if (file_.size() >= 12) std::memcpy(head, file_.data(), 12);
  if (const char* what = foreign(head[0]))
    fail(ErrorCode::data, fmt::format("tokens in {}", path), what,
         "give the file of training tokens");
  if (head[0] == kMagic16 || head[0] == kMagic32) {
    wide_ = head[0] == kMagic32;
    const int32_t version = wide_ ? kVersion32 : kVersion16;
    if (head[1] != version)
      fail(ErrorCode::data, fmt::format("version {} in the header of {}", version, path),
           fmt::format("{}", head[1]), kMakeAgain);
    const int64_t want = kHeaderBytes + int64_t{head[2]} * token_bytes();
    if (head[2] < 0 || file_.size() != want)
      fail(ErrorCode::data,
           fmt::format("{} bytes in {}: a header of {} and {} tokens of {}", want, path,
                       kHeaderBytes, head[2], token_bytes()),
           fmt::format("{} bytes", file_.size()), kMakeAgain);
    tokens_ = file_.data() + kHeaderBytes;
    size_ = head[2];
  } else {
    if (file_.size() % 2 != 0)
      fail(ErrorCode::data,
           fmt::format("{} to be a token file: a llm.c header, or uint16 tokens only", path),
           fmt::format("no known header and an odd number of bytes, {}", file_.size()),
           "give text files (.txt, .jsonl) as text, or make the token file again");
    tokens_ = file_.data();
    size_ = file_.size() / 2;
  }
  if (!tokenizer) return;
  const auto info = read_token_info(path);
  if (info && info->tokenizer != *tokenizer)
    fail(ErrorCode::data,
         fmt::format("{} to hold tokens of this run's tokenizer, {}", path,
                     fingerprint_text(*tokenizer)),
         fmt::format("tokens of tokenizer {}, says {}", fingerprint_text(info->tokenizer),
                     side_path(path)),
         "use the tokenizer that made the file, or make it again from its text");
}

int64_t TokenFile::token(int64_t i) const {
  uint16_t narrow;
  uint32_t wide;
  if (wide_) {
    std::memcpy(&wide, tokens_ + 4 * i, 4);
    return wide;
  }
  std::memcpy(&narrow, tokens_ + 2 * i, 2);
  return narrow;
}

void TokenFile::copy(int64_t begin, int64_t count, int32_t* out) const {
  require(begin >= 0 && count >= 0 && begin <= size_ - count, "a range of tokens inside the file");
  if (count == 0) return;
  if (wide_) {
    std::memcpy(out, tokens_ + 4 * begin, static_cast<size_t>(4 * count));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t v;
    std::memcpy(&v, tokens_ + 2 * (begin + i), 2);
    out[i] = v;
  }
}

void TokenFile::check(int64_t vocab_size) const {
  for (int64_t i = 0; i < size_; ++i)
    if (token(i) >= vocab_size)
      fail(ErrorCode::data,
           fmt::format("token ids below the vocabulary size {} in {}", vocab_size, path_),
           fmt::format("{} at position {} of {}", token(i), i, size_),
           "use the model or tokenizer that the file was made for, or make the file again");
}

std::optional<TokenFileInfo> read_token_info(const std::string& path) {
  const std::string side = side_path(path);
  if (!file_exists(side)) return std::nullopt;
  const nlohmann::json root = parse_json_file(side, 1 << 20);
  TokenFileInfo info;
  const std::string hex = get_string(root, "tokenizer_fingerprint", side);
  const auto [end, code] = std::from_chars(hex.data(), hex.data() + hex.size(), info.tokenizer, 16);
  if (code != std::errc() || end != hex.data() + hex.size() || hex.size() != 16)
    fail(ErrorCode::data, fmt::format("16 hex digits for tokenizer_fingerprint in {}", side),
         json_brief(hex), kMakeAgain);
  info.vocab_size = get_int(root, "vocab_size", side, 0);
  info.tokens = get_int(root, "tokens", side, 0);
  info.documents = get_int(root, "documents", side, 0);
  return info;
}

TokenFileWriter::TokenFileWriter(const std::string& path, int64_t vocab_size, uint64_t tokenizer)
    : file_(path),
      vocab_size_(vocab_size),
      tokenizer_(tokenizer),
      buffer_(std::make_unique<uint8_t[]>(static_cast<size_t>(kBufferBytes))) {
  const int32_t header[kHeaderInts] = {};
  file_.write(header, kHeaderBytes);
}

void TokenFileWriter::append(const int32_t* ids, int64_t count) {
  if (size_ + count > INT32_MAX)
    fail(ErrorCode::data, fmt::format("at most {} tokens in {}", INT32_MAX, file_.path()), "more",
         "split the text into several token files");
  const bool wide = vocab_size_ >= 65536;
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size_)
      fail(ErrorCode::data,
           fmt::format("token ids from 0 to {} for {}", vocab_size_ - 1, file_.path()),
           fmt::format("{} at position {}", ids[i], size_ + i),
           "give the vocabulary size of the tokenizer, added tokens included");
    if (wide) {
      std::memcpy(buffer_.get() + held_, &ids[i], 4);
    } else {
      const uint16_t v = static_cast<uint16_t>(ids[i]);
      std::memcpy(buffer_.get() + held_, &v, 2);
    }
    held_ += wide ? 4 : 2;
    if (held_ == kBufferBytes) flush();
  }
  size_ += count;
}

void TokenFileWriter::flush() {
  file_.write(buffer_.get(), held_);
  held_ = 0;
}

void TokenFileWriter::commit() {
  flush();
  const bool wide = vocab_size_ >= 65536;
  const int32_t head[3] = {wide ? kMagic32 : kMagic16, wide ? kVersion32 : kVersion16,
                           static_cast<int32_t>(size_)};
  file_.write_at(0, head, sizeof(head));
  // The side file goes first: tokens without it would be taken for anyone's.
  write_json_file(side_path(file_.path()), {{"tokenizer_fingerprint", fingerprint_text(tokenizer_)},
                                            {"vocab_size", vocab_size_},
                                            {"tokens", size_},
                                            {"documents", documents_}});
  file_.commit();
}

}  // namespace snug
