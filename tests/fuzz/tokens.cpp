// Token files: any bytes as the tokens, their index and their side file, opened, checked and cut
// into windows; and ids written and read equal.
#include <algorithm>

#include "engine/data/dataset.h"
#include "engine/data/token_file.h"
#include "tests/fuzz/fuzz.h"

namespace snug::fuzz {
namespace {

constexpr int64_t kVocabulary = 300;

void read(const std::string& path, int64_t T, double eval_fraction) {
  holds([&] { read_token_info(path); });
  holds([&] { states_tokens(path); });
  holds([&] {
    TokenFile file(path);
    std::vector<int32_t> ids(static_cast<size_t>(file.size()));
    file.copy(0, file.size(), ids.data());
    if (file.documents() > 0) {
      std::vector<int64_t> ends(static_cast<size_t>(file.documents()));
      file.document_ends(0, file.documents(), ends.data());
      check(ends.back() == file.size() && std::is_sorted(ends.begin(), ends.end()),
            "documents that end with their file");
    }
    file.check(kVocabulary);
    for (const int32_t id : ids) check(id >= 0 && id < kVocabulary, "ids that check() passed");
    file.verify();
    std::vector<TokenFile> files;
    files.push_back(std::move(file));
    const WindowDataset data(std::move(files), T, {.eval_fraction = eval_fraction});
    std::vector<int32_t> tokens(static_cast<size_t>(T)), targets(tokens.size());
    for (int64_t k = 0; k < std::min<int64_t>(data.train_samples(), 16); ++k) {
      data.fill(k, 1, tokens.data(), targets.data());
      for (const int32_t id : tokens) check(id >= 0 && id < kVocabulary, "tokens of a sample");
    }
    for (int64_t e = 0; e < std::min<int64_t>(data.eval_samples(), 16); ++e)
      data.fill_eval(e, 1, tokens.data(), targets.data());
  });
}

// Ids of the bytes; a zero byte ends a document.
void write(std::string_view bytes, bool wide, int64_t T, double eval_fraction) {
  const std::string path = folder() + "/w.bin";
  std::vector<int32_t> all;
  std::vector<int64_t> ends;
  must("a written token file is read", [&] {
    TokenFileWriter writer(path, wide ? 70000 : kVocabulary, 5);
    for (const char c : bytes) {
      const int32_t id = static_cast<uint8_t>(c);
      writer.append(&id, 1);
      all.push_back(id);
      if (id != 0) continue;
      writer.end_document();
      ends.push_back(static_cast<int64_t>(all.size()));
    }
    writer.commit();
    if (!all.empty() && (ends.empty() || ends.back() != static_cast<int64_t>(all.size())))
      ends.push_back(static_cast<int64_t>(all.size()));
    TokenFile file(path, 5);
    file.check(kVocabulary);
    std::vector<int32_t> ids(static_cast<size_t>(file.size()));
    file.copy(0, file.size(), ids.data());
    check(ids == all, "ids as they were written");
    check(file.documents() == static_cast<int64_t>(ends.size()), "documents as they were written");
    std::vector<int64_t> found(ends.size());
    file.document_ends(0, file.documents(), found.data());
    check(found == ends, "ends of documents as they were written");
    check(read_token_info(path)->tokens == file.size(), "the side file's number of tokens");
  });
  read(path, T, eval_fraction);
}

}  // namespace
}  // namespace snug::fuzz

// Two bytes T and the share held out, four bytes the sizes of index and side file, then index, side
// file, tokens.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace snug::fuzz;
  std::string_view rest = text_of(data, size);
  const auto T = static_cast<int64_t>(1 + take_number(rest, 1) % 32);
  const double held = static_cast<double>(take_number(rest, 1) % 8) / 10;
  const size_t index = take_number(rest, 2), side = take_number(rest, 2);
  const std::string_view index_bytes = rest.substr(0, index);
  rest.remove_prefix(index_bytes.size());
  const std::string_view side_bytes = rest.substr(0, side);
  rest.remove_prefix(side_bytes.size());
  const std::string path = put("t.bin", rest);
  drop("t.bin.idx");
  drop("t.bin.json");
  if (!index_bytes.empty()) put("t.bin.idx", index_bytes);
  if (!side_bytes.empty()) put("t.bin.json", side_bytes);
  read(path, T, held);
  write(rest.substr(0, 2048), size % 2 == 0, T, held);
  return 0;
}
