// Rows: any bytes as a table, JSON records or lines become a row file that is read, packed and
// masked; and any bytes as a row file and its index, with right digests, so that what lies behind
// them is read.
#include <algorithm>
#include <cstring>

#include "engine/data/row_packing.h"
#include "engine/data/row_reader.h"
#include "engine/io/fingerprint.h"
#include "engine/text/tokenizer_spec.h"
#include "tests/fuzz/fuzz.h"

namespace snug::fuzz {
namespace {

constexpr const char* kNames[] = {"a.tsv", "a.csv", "a.jsonl", "a.json", "a.txt"};

const Tokenizer& tokenizer() {
  static const Tokenizer built = [] {
    TokenizerSpec spec;
    spec.model = ModelType::word_piece;
    spec.unk_token = "[UNK]";
    spec.continuing_prefix = "##";
    spec.pre_tokenizer = R"({"type":"BertPreTokenizer"})";
    spec.decoder = "null";
    const char* words[] = {"[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##a", "##b", "."};
    for (int32_t i = 0; i < 9; ++i) spec.vocab[words[i]] = i;
    spec.post_processor = R"({"type":"BertProcessing","sep":["[SEP]",2],"cls":["[CLS]",1]})";
    return Tokenizer::build(spec);
  }();
  return built;
}

// Every window of some steps: rows of the file, where the lists say they are.
void pack(RowFile file, int64_t T, uint64_t choice) {
  RowDatasetOptions o;
  o.T = T;
  o.global_batch = static_cast<int64_t>(1 + choice % 7);
  o.max_rows_per_window = std::min<int64_t>(T, static_cast<int64_t>(choice / 7 % 4));
  o.shift_labels = choice % 2 == 1;
  if (choice % 3 == 0) {
    o.shift_labels = false;
    o.masking = MaskingOptions{.probability = 0.5, .mask_id = 3, .vocab_size = 9};
    o.masking->continues = word_continuations(tokenizer());
    o.max_targets_per_window = 1 + T / 2;
  }
  RowDataset data(std::move(file), o);
  const auto R = data.options().max_rows_per_window;
  const auto windows = static_cast<size_t>(o.global_batch);
  std::vector<int32_t> tokens(windows * static_cast<size_t>(T)),
      first(windows * static_cast<size_t>(R));
  std::vector<int32_t> targets(tokens.size());
  std::vector<int64_t> rows(first.size());
  for (int64_t step = 0; step < 4; ++step) {
    check(data.windows(step) >= 1 && data.windows(step) <= o.global_batch, "windows of a step");
    data.fill(step, 0, o.global_batch,
              {.tokens = tokens.data(),
               .targets = targets.data(),
               .first = first.data(),
               .rows = rows.data()});
    int64_t found = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      check((rows[i] < 0) == (first[i] < 0), "a place for each row");
      found += rows[i] >= 0;
    }
    check(found == o.global_batch, "every row of a step in a window");
    check(data.trained(step) >= 0, "a number of targets");
  }
  for (int64_t e = 0; e < std::min<int64_t>(data.eval_steps(), 4); ++e) data.eval_trained(e);
}

void from_text(std::string_view text, uint64_t name, uint64_t choice, int64_t max_length) {
  RowOptions o;
  o.kind = static_cast<RowKind>(choice % 3);
  o.labels = choice / 3 % 4 != 0;
  if (choice / 12 % 3 > 0) o.header = choice / 12 % 3 == 1;
  if (choice / 36 % 2 == 1) o.label_names = {"x", "y", "1"};
  o.problem_type = static_cast<ProblemType>(choice / 72 % 4);
  o.max_length = max_length;
  const std::string path = put(kNames[name % 5], text), out = folder() + "/o.rows";
  RowReport report;
  const bool good = holds([&] { report = write_rows({{path, true}}, &tokenizer(), o, out); });
  drop(kNames[name % 5]);
  if (!good) return;
  must("rows that were written are read", [&] {
    RowFile file(out);
    file.check(tokenizer().vocab_size());
    check(file.size() == report.rows && file.facts().longest <= max_length, "a report of the rows");
    check(file.report().label_names.size() == report.label_names.size(), "the report in the file");
    pack(std::move(file), max_length, choice);
  });
}

// Digests are put right, so that lengths and values are what is looked at.
void from_bytes(std::string_view index, std::string_view rows, uint64_t choice) {
  std::string r(rows), i(index);
  if (r.size() >= 128 && i.size() >= 32) {
    const auto set = [](std::string& bytes, size_t at, uint64_t digest) {
      std::memcpy(bytes.data() + at, &digest, 8);
    };
    const uint64_t digest = fingerprint(std::string_view(r).substr(128));
    set(r, 88, digest);
    set(i, 24, digest);
    set(r, 96, fingerprint(std::string_view(i).substr(32)));
    set(r, 112, fingerprint(std::string_view(r).substr(0, 112)));
  }
  const std::string path = put("r.rows", r);
  put("r.rows.idx", i);
  holds([&] { is_row_file(path); });
  holds([&] { RowFile(path).report(); });
  holds([&] {
    RowFile file(path);
    file.check(file.facts().vocab_size);
    if (file.facts().longest <= 4096)
      pack(std::move(file), std::max<int64_t>(RowFile(path).facts().longest, 1), choice);
  });
}

}  // namespace
}  // namespace snug::fuzz

// A byte below 250: the name, the kind and the length of rows of a text; else the size of an index, the
// index, and the rows.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace snug::fuzz;
  std::string_view rest = text_of(data, size);
  const uint64_t name = take_number(rest, 1), choice = take_number(rest, 2);
  if (name < 250) {
    const auto length = static_cast<int64_t>(1 + take_number(rest, 1) % 40);
    from_text(rest, name, choice, length);
    return 0;
  }
  const size_t bytes = take_number(rest, 2);
  const std::string_view index = rest.substr(0, bytes);
  rest.remove_prefix(index.size());
  from_bytes(index, rest, choice);
  return 0;
}
