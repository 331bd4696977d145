#include "tools/setup/same_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <unordered_map>

#include "engine/core/error.h"
#include "engine/data/corpus.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

struct DataFile {
  std::string path;
  fs::path real;
  int64_t size = -1;  // -1: unknown
};

std::string start_of(std::ifstream& in) {
  std::string text(64 << 10, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

bool same_bytes(const fs::path& a, const fs::path& b) {
  std::ifstream x(a, std::ios::binary), y(b, std::ios::binary);
  for (;;) {
    const std::string p = start_of(x), q = start_of(y);
    if (p != q) return false;
    if (p.empty()) return true;
  }
}

// In the order of the sources; what is named twice is there twice.
std::vector<DataFile> files_of(const std::vector<std::string>& sources, const std::string& output) {
  std::vector<DataFile> list;
  for (const std::string& source : sources) try {
      for (const CorpusFile& file : expand_corpus({source}, output)) {
        std::error_code error;
        const fs::path real = fs::weakly_canonical(file.path, error);
        const auto size = fs::file_size(real, error);
        list.push_back({file.path, real, error ? -1 : static_cast<int64_t>(size)});
      }
    } catch (const Error&) {  // who reads the source says what is wrong
    }
  return list;
}

// Whether one file is the other, or says the same; "" for neither. Of one size, and they begin alike.
const char* relation(const DataFile& a, const DataFile& b) {
  if (a.real == b.real) return "is";
  return a.size > 0 && same_bytes(a.real, b.real) ? "has the bytes of" : "";
}

// The first file that one is or equals. Files are opened only where another has their size, and
// compared whole only where both begin alike: a corpus may have thousands of one size.
class Known {
 public:
  void add(const DataFile& file) {
    Sized& sized = by_size_[file.size];
    if (sized.files++ == 0)
      sized.first = file;
    else
      hashed(sized)[head(file)].push_back(file);
  }
  std::pair<const DataFile*, const char*> find(const DataFile& file) {
    const auto at = by_size_.find(file.size);
    if (at == by_size_.end()) return {nullptr, ""};
    const auto alike = hashed(at->second).find(head(file));
    if (alike == at->second.by_head.end()) return {nullptr, ""};
    for (const DataFile& other : alike->second)
      if (const char* how = relation(file, other); *how != '\0') return {&other, how};
    return {nullptr, ""};
  }

 private:
  using Heads = std::unordered_map<size_t, std::vector<DataFile>>;
  struct Sized {
    int64_t files = 0;
    DataFile first;  // until a second one comes
    Heads by_head;
  };
  static size_t head(const DataFile& file) {
    std::ifstream in(file.real, std::ios::binary);
    return std::hash<std::string>()(start_of(in));
  }
  static Heads& hashed(Sized& sized) {
    if (sized.by_head.empty()) sized.by_head[head(sized.first)].push_back(sized.first);
    return sized.by_head;
  }
  std::unordered_map<int64_t, Sized> by_size_;
};

}  // namespace

std::vector<std::string> same_files(const RunConfig& config) {
  std::vector<std::string> notes;
  const std::vector<DataFile> train = files_of(config.train_data, config.output_dir);
  Known known;
  int64_t twice = 0, named = 0;
  std::string first, first_named;
  for (const DataFile& file : train) {
    const auto [other, how] = known.find(file);
    if (other == nullptr) {
      known.add(file);
    } else if (std::string_view(how) == "is") {
      if (named++ == 0) first_named = file.path;
    } else if (twice++ == 0) {
      first = fmt::format("{} {} {}", file.path, how, other->path);
    }
  }
  const auto more = [](int64_t n) { return n > 1 ? fmt::format(", and {} more", n - 1) : ""; };
  if (named > 0)
    notes.push_back(
        fmt::format("train_data names {} twice{}; a file is read once", first_named, more(named)));
  if (twice > 0)
    notes.push_back(fmt::format("{}{}: what they say is learned twice as often{}", first,
                                more(twice),
                                config.eval_fraction > 0 && config.eval_data.empty()
                                    ? ", and what is held out of one may be learned from the other"
                                    : ""));
  int64_t learned = 0;
  for (const DataFile& file : files_of(config.eval_data, config.output_dir)) {
    const auto [other, how] = known.find(file);
    if (other == nullptr) continue;
    if (learned++ == 0)
      first = fmt::format("{} of eval_data {} {} of train_data", file.path, how, other->path);
  }
  if (learned > 0)
    notes.push_back(
        fmt::format("{}{}: the evaluation is of text that was learned, and says nothing "
                    "of other text",
                    first, more(learned)));
  return notes;
}

}  // namespace snug
