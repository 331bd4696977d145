// Reading token files. Writing is token_file_writer.cpp.
#include "engine/data/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "engine/data/token_header.h"
#include "engine/io/fingerprint.h"
#include "engine/io/json.h"

namespace snug {
namespace {

constexpr int64_t kChunkBytes = 64 << 10;

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

}  // namespace

bool is_token_file_name(const std::string& path) {
  return path.size() > 4 && path.ends_with(".bin");
}

std::vector<std::string> token_side_files(const std::string& path) {
  return {path + token_header::kSide, path + token_header::kIndex};
}

bool states_tokens(const std::string& path) {
  if (file_exists(path + token_header::kSide)) return true;
  int32_t magic = 0;
  if (InputFile(path).read_at(0, &magic, 4) < 4) return false;
  return magic == token_header::kMagic16 || magic == token_header::kMagic32;
}

TokenFile::TokenFile(const std::string& path, std::optional<uint64_t> tokenizer) {
  file_ = WatchedFile(path);
  read_header();
  open_documents();
  if (!tokenizer) return;
  std::string says = path;
  std::optional<uint64_t> named = tokenizer_;
  if (!named) {
    if (const auto info = read_token_info(path)) named = info->tokenizer;
    says += token_header::kSide;
  }
  if (named && *named != *tokenizer)
    fail(ErrorCode::data,
         fmt::format("{} to hold tokens of this run's tokenizer, {}", path,
                     fingerprint_text(*tokenizer)),
         fmt::format("tokens of tokenizer {}, says {}", fingerprint_text(*named), says),
         "use the tokenizer that made the file, or make it again from its text");
}

void TokenFile::read_header() {
  namespace h = token_header;
  const InputFile& file = file_.input();
  std::array<uint8_t, h::kBytes> bytes{};
  const int64_t got = file.read_at(0, bytes.data(), h::kBytes);
  int32_t head[4] = {};
  if (got >= 12) std::memcpy(head, bytes.data(), sizeof(head));
  if (const char* what = foreign(head[0]))
    fail(ErrorCode::data, fmt::format("tokens in {}", path()), what,
         "give the file of training tokens");
  if (head[0] != h::kMagic16 && head[0] != h::kMagic32) {
    if (file.size() % 2 != 0)
      fail(ErrorCode::data,
           fmt::format("{} to be a token file: a llm.c header, or uint16 tokens only", path()),
           fmt::format("no known header and an odd number of bytes, {}", file.size()),
           "give text files (.txt, .jsonl) as text, or make the token file again");
    size_ = file.size() / 2;
    return;
  }
  wide_ = head[0] == h::kMagic32;
  const int32_t version = wide_ ? h::kVersion32 : h::kVersion16;
  if (head[1] != version)
    fail(ErrorCode::data, fmt::format("version {} in the header of {}", version, path()),
         fmt::format("{}", head[1]), h::kMakeAgain);
  int64_t count = head[2];
  h::Facts facts;
  const bool ours = got == h::kBytes && std::memcmp(bytes.data() + 12, h::kMark, 4) == 0;
  if (ours) {
    int32_t facts_version = 0;
    std::memcpy(&facts_version, bytes.data() + 16, 4);
    std::memcpy(&facts, bytes.data() + h::kFactsAt, sizeof(facts));
    if (facts_version != h::kFactsVersion)
      fail(ErrorCode::data,
           fmt::format("version {} behind \"SNUG\" in the header of {}", h::kFactsVersion, path()),
           fmt::format("{}", facts_version),
           "use the program that wrote it, or make the token file again from its text");
    if (count == h::kCountIsBelow) count = facts.tokens;
    if (count != facts.tokens)
      fail(ErrorCode::data, fmt::format("one number of tokens in the header of {}", path()),
           fmt::format("{} and {}", count, facts.tokens), h::kMakeAgain);
    tokenizer_ = facts.tokenizer;
    written_ = facts.digest;
    vocab_size_ = facts.vocab_size;
  }
  // Divided, so that no count in a header overflows.
  const int64_t room = file.size() - h::kBytes;
  if (count < 0 || room % token_bytes() != 0 || room / token_bytes() != count)
    fail(ErrorCode::data,
         fmt::format("{} bytes in {}: a header of {} and {} tokens of {}",
                     count < (int64_t{1} << 60) ? h::kBytes + count * token_bytes() : count, path(),
                     h::kBytes, count, token_bytes()),
         fmt::format("{} bytes", file.size()), h::kMakeAgain);
  begin_ = h::kBytes;
  size_ = count;
}

void TokenFile::open_documents() {
  namespace h = token_header;
  const std::string path = this->path() + h::kIndex;
  // Only our own header vouches for an index; a file of others may have lost its first form.
  if (!written_ || !file_exists(path)) return;
  index_ = WatchedFile(path);
  std::array<int64_t, 4> head{};
  const int64_t got = index_.input().read_at(0, head.data(), h::kIndexBytes);
  if (got != h::kIndexBytes || std::memcmp(head.data(), h::kIndexMark, 8) != 0 ||
      head[1] != h::kIndexVersion)
    fail(ErrorCode::data, fmt::format("an index of documents in {}", path),
         "something else, or another version", h::kMakeAgain);
  const int64_t room = index_.size() - h::kIndexBytes;
  if (head[3] != size_ || head[2] < 0 || room % 8 != 0 || room / 8 != head[2])
    fail(ErrorCode::data,
         fmt::format("the {} tokens of {} and {} document ends in {}", size_, this->path(), head[2],
                     path),
         fmt::format("{} tokens and {} bytes of ends", head[3], room), h::kMakeAgain);
  documents_ = head[2];
  std::array<int64_t, 512> ends;
  int64_t before = 0;
  for (int64_t d = 0; d < documents_; d += 512) {
    const int64_t count = std::min<int64_t>(512, documents_ - d);
    document_ends(d, count, ends.data());
    for (int64_t i = 0; i < count; ++i) {
      if (ends[static_cast<size_t>(i)] <= before || ends[static_cast<size_t>(i)] > size_)
        fail(ErrorCode::data,
             fmt::format("document ends that rise from above {} to {} in {}", before, size_, path),
             fmt::format("{} for document {}", ends[static_cast<size_t>(i)], d + i), h::kMakeAgain);
      before = ends[static_cast<size_t>(i)];
    }
  }
  if (before != size_)
    fail(ErrorCode::data, fmt::format("the last document in {} to end with token {}", path, size_),
         fmt::format("{}", before), h::kMakeAgain);
  index_digest_ = index_.digest(0);
}

void TokenFile::copy(int64_t begin, int64_t count, int32_t* out) const {
  require(begin >= 0 && count >= 0 && begin <= size_ - count, "a range of tokens inside the file");
  if (count == 0) return;
  const int64_t offset = begin_ + begin * token_bytes(), bytes = count * token_bytes();
  if (wide_) {
    file_.read(offset, out, bytes);
    return;
  }
  // Narrow ids are read into the second half of `out` and widened from the front: where id i is
  // written, ids up to i only were read from.
  auto* const raw = reinterpret_cast<uint8_t*>(out);
  uint8_t* const narrow = raw + bytes;
  file_.read(offset, narrow, bytes);
  for (int64_t i = 0; i < count; ++i) {
    uint16_t v;
    std::memcpy(&v, narrow + 2 * i, 2);
    const int32_t id = v;
    std::memcpy(raw + 4 * i, &id, 4);
  }
}

void TokenFile::check(int64_t vocab_size) {
  std::array<uint8_t, kChunkBytes> chunk;
  Fingerprint digest;
  file_.input().expect_jumps(false);
  const int64_t per_chunk = kChunkBytes / token_bytes();
  for (int64_t first = 0; first < size_; first += per_chunk) {
    const int64_t count = std::min(per_chunk, size_ - first), bytes = count * token_bytes();
    const int64_t offset = begin_ + first * token_bytes();
    file_.read(offset, chunk.data(), bytes);
    digest.add(chunk.data(), bytes);
    const auto id = [&](int64_t i) -> int64_t {
      uint32_t v = 0;
      std::memcpy(&v, chunk.data() + i * token_bytes(), static_cast<size_t>(token_bytes()));
      return v;
    };
    int64_t highest = 0;
    for (int64_t i = 0; i < count; ++i) highest = std::max(highest, id(i));
    if (highest < vocab_size) continue;
    for (int64_t i = 0; i < count; ++i)
      if (id(i) >= vocab_size)
        fail(ErrorCode::data,
             fmt::format("token ids below the vocabulary size {} in {}", vocab_size, path()),
             fmt::format("{} at position {} of {}", id(i), first + i, size_),
             "use the model or tokenizer that the file was made for, or make the file again");
  }
  digest_ = digest.digest();
  if (written_ && *written_ != *digest_)
    fail(ErrorCode::data, fmt::format("the tokens that were written to {}", path()),
         fmt::format("others: their digest is {}, the header says {}", fingerprint_text(*digest_),
                     fingerprint_text(*written_)),
         token_header::kMakeAgain);
  file_.input().expect_jumps(true);
}

void TokenFile::verify() const {
  file_.verify("the tokens", begin_, digest_);
  if (documents_ >= 0) index_.verify("the index of documents", 0, index_digest_);
}

void TokenFile::document_ends(int64_t first, int64_t count, int64_t* out) const {
  require(first >= 0 && count >= 0 && first <= documents_ - count, "documents inside the file");
  const int64_t offset = token_header::kIndexBytes + 8 * first;
  index_.read(offset, out, 8 * count);
}

std::optional<TokenFileInfo> read_token_info(const std::string& path) {
  const std::string side = path + token_header::kSide;
  if (!file_exists(side)) return std::nullopt;
  const nlohmann::json root = parse_json_file(side, 1 << 20);
  const auto digits = [&](const char* key, const std::string& hex) {
    uint64_t value = 0;
    const auto [end, code] = std::from_chars(hex.data(), hex.data() + hex.size(), value, 16);
    if (code != std::errc() || end != hex.data() + hex.size() || hex.size() != 16)
      fail(ErrorCode::data, fmt::format("16 hex digits for {} in {}", key, side), json_brief(hex),
           token_header::kMakeAgain);
    return value;
  };
  TokenFileInfo info;
  info.tokenizer = digits("tokenizer_fingerprint", get_string(root, "tokenizer_fingerprint", side));
  info.vocab_size = get_int(root, "vocab_size", side, 0);
  info.tokens = get_int(root, "tokens", side, 0);
  info.documents = get_int(root, "documents", side, 0);
  const std::string source = get_string(root, "source_fingerprint", side, "");
  if (!source.empty()) info.source.fingerprint = digits("source_fingerprint", source);
  info.source.report.files = get_int(root, "source_files", side, 0);
  info.source.report.bytes = get_int(root, "source_bytes", side, 0);
  info.source.report.skipped = get_int(root, "source_skipped", side, 0);
  info.source.report.first_skipped = get_string(root, "source_first_skipped", side, "");
  info.source.report.empty = get_int(root, "source_empty", side, 0);
  info.source.report.quoted_breaks = get_int(root, "source_quoted_breaks", side, 0);
  info.source.report.first_quoted = get_string(root, "source_first_quoted", side, "");
  info.source.report.no_column = get_int(root, "source_no_column", side, 0);
  info.source.report.first_no_column = get_string(root, "source_first_no_column", side, "");
  return info;
}

}  // namespace snug
