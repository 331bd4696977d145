#include <fmt/format.h>

#include <array>
#include <cstring>

#include "engine/data/token_file.h"
#include "engine/data/token_header.h"
#include "engine/io/fingerprint.h"
#include "engine/io/json.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

constexpr int64_t kBufferBytes = 64 << 10;
constexpr int64_t kBufferEnds = kBufferBytes / 8;

}  // namespace

TokenFileWriter::TokenFileWriter(const std::string& path, int64_t vocab_size, uint64_t tokenizer)
    : file_(path),
      index_(path + token_header::kIndex),
      vocab_size_(vocab_size),
      tokenizer_(tokenizer),
      buffer_(std::make_unique<uint8_t[]>(static_cast<size_t>(kBufferBytes))),
      ends_(std::make_unique<int64_t[]>(static_cast<size_t>(kBufferEnds))),
      digest_(std::make_unique<Fingerprint>()) {
  const std::array<uint8_t, token_header::kBytes> header{};
  file_.write(header.data(), token_header::kBytes);
  index_.write(header.data(), token_header::kIndexBytes);
}

TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::append(const int32_t* ids, int64_t count) {
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

void TokenFileWriter::end_document() {
  if (size_ == ended_) return;
  ended_ = size_;
  ends_[static_cast<size_t>(held_ends_++)] = size_;
  ++documents_;
  if (held_ends_ == kBufferEnds) flush_documents();
}

void TokenFileWriter::flush() {
  digest_->add(buffer_.get(), held_);
  file_.write(buffer_.get(), held_);
  held_ = 0;
}

void TokenFileWriter::flush_documents() {
  index_.write(ends_.get(), 8 * held_ends_);
  held_ends_ = 0;
}

void TokenFileWriter::commit() {
  namespace h = token_header;
  end_document();  // of a writer that counts none: all is one
  flush();
  flush_documents();
  const bool wide = vocab_size_ >= 65536;
  std::array<uint8_t, h::kFactsAt + sizeof(h::Facts)> head{};
  const int32_t numbers[] = {wide ? h::kMagic32 : h::kMagic16, wide ? h::kVersion32 : h::kVersion16,
                             size_ > INT32_MAX ? h::kCountIsBelow : static_cast<int32_t>(size_)};
  const h::Facts facts = {tokenizer_, size_, documents_, vocab_size_, digest_->digest()};
  std::memcpy(head.data(), numbers, sizeof(numbers));
  std::memcpy(head.data() + 12, h::kMark, 4);
  std::memcpy(head.data() + 16, &h::kFactsVersion, 4);
  std::memcpy(head.data() + h::kFactsAt, &facts, sizeof(facts));
  file_.write_at(0, head.data(), static_cast<int64_t>(head.size()));
  int64_t index_head[4] = {0, h::kIndexVersion, documents_, size_};
  std::memcpy(index_head, h::kIndexMark, 8);
  index_.write_at(0, index_head, sizeof(index_head));

  nlohmann::json side = {{"tokenizer_fingerprint", fingerprint_text(tokenizer_)},
                         {"vocab_size", vocab_size_},
                         {"tokens", size_},
                         {"documents", documents_}};
  if (source_.fingerprint != 0) side["source_fingerprint"] = fingerprint_text(source_.fingerprint);
  if (const CorpusReport& report = source_.report; report.files > 0) {
    side["source_files"] = report.files;
    side["source_bytes"] = report.bytes;
    side["source_skipped"] = report.skipped;
    side["source_first_skipped"] = sanitize_utf8(report.first_skipped);
    side["source_empty"] = report.empty;
    side["source_no_column"] = report.no_column;
    side["source_first_no_column"] = sanitize_utf8(report.first_no_column);
    side["source_quoted_breaks"] = report.quoted_breaks;
    side["source_first_quoted"] = sanitize_utf8(report.first_quoted);
  }
  // The tokens go last: without what stands beside them they would be taken for one document.
  index_.commit();
  write_json_file(file_.path() + h::kSide, side);
  file_.commit();
}

}  // namespace snug
