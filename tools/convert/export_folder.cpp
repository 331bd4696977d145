#include "tools/convert/export_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/openmp.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "engine/text/tokenizer.h"
#include "layers/models/absent_biases.h"
#include "layers/models/adapter_files.h"
#include "layers/models/family.h"
#include "layers/models/model.h"
#include "layers/models/weights.h"
#include "tools/convert/adapter_merge.h"
#include "tools/convert/coded_rows.h"
#include "tools/convert/decoded_base.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPiece = int64_t{1} << 18;  // elements converted at a time: 1 MiB of floats

constexpr std::string_view kMaking = ".snug-convert-";  // and six characters

// A lock on a folder, if it can be had: not while another is held, also by this process, and not on
// a file system without locks. It goes with its process.
class FolderLock {
 public:
  explicit FolderLock(const std::string& path)
      : fd_(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) {
    held_ = fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) == 0;
  }
  ~FolderLock() {
    if (fd_ >= 0) close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  bool held() const { return held_; }

 private:
  const int fd_;
  bool held_ = false;
};

// Throws usage unless `output` is not there, or empty but for what a kill left of other
// conversions, which is returned.
std::vector<fs::path> check_output(const std::string& output) {
  std::vector<fs::path> torn;
  std::error_code error;
  std::string found;
  if (fs::is_directory(output, error)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(output, error)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(kMaking) || name.size() != kMaking.size() + 6 ||
          !fs::is_directory(entry.symlink_status(error)))
        found = ", which holds something";
      else if (!FolderLock(entry.path().string()).held())
        found = ", which holds " + name + ", where another snug may be writing";
      else
        torn.push_back(entry.path());
    }
    if (error) found = ", which cannot be read: " + error.message();
  } else if (fs::exists(fs::symlink_status(output, error))) {
    found = fs::exists(output, error) ? ", which is no folder" : ", a link to nothing";
  }
  if (!found.empty())
    fail(ErrorCode::usage, "--output as a folder that is not there yet, or an empty one",
         output + found, "another name");
  return torn;
}

// What becomes the folder `path`: a folder of a new name beside it, or in it if `path` is there and
// empty. Removed with all in it unless it is finished.
class FolderInMaking {
 public:
  explicit FolderInMaking(const std::string& path) : path_(path) {
    std::error_code ignored;
    in_place_ = fs::is_directory(path, ignored);
    made_ = fmt::format("{}{}{}XXXXXX", path, in_place_ ? "/" : "", kMaking);
    if (mkdtemp(made_.data()) == nullptr) {
      made_.clear();
      fail(ErrorCode::device,
           fmt::format("to make a folder {} {}", in_place_ ? "in" : "beside", path),
           std::error_code(errno, std::generic_category()).message(),
           "--output in a folder that is there and can be written");
    }
    // mkdtemp's folders are closed to others; this one gets the rights of any other.
    const mode_t mask = umask(0);
    umask(mask);
    chmod(made_.c_str(), 0777 & ~mask);
    lock_.emplace(made_);
  }
  ~FolderInMaking() {
    std::error_code error;
    if (!made_.empty()) fs::remove_all(made_, error);
  }
  FolderInMaking(const FolderInMaking&) = delete;
  FolderInMaking& operator=(const FolderInMaking&) = delete;
  const std::string& path() const { return made_; }
  // An empty folder may be a link, a mount or where the user is: it stays, and its files come to
  // it, config.json last, without which they are no model.
  void finish() {
    sync_folder(made_);
    std::error_code error;
    if (in_place_) {
      std::vector<fs::path> files;
      for (const fs::directory_entry& entry : fs::directory_iterator(made_))
        if (entry.path().filename() != kLast) files.push_back(entry.path().filename());
      files.emplace_back(kLast);
      for (const fs::path& file : files)
        if (!error) fs::rename(fs::path(made_) / file, fs::path(path_) / file, error);
      if (!error) sync_folder(path_);
    } else {
      fs::rename(made_, path_, error);
      if (!error) {
        made_.clear();
        const std::string beside = fs::path(path_).parent_path().string();
        sync_folder(beside.empty() ? "." : beside);
      }
    }
    if (error)
      fail(ErrorCode::device, fmt::format("to rename {} to {}", made_, path_), error.message(),
           "another --output");
  }

 private:
  static constexpr const char* kLast = "config.json";
  const std::string path_;
  std::string made_;
  std::optional<FolderLock> lock_;
  bool in_place_ = false;
};

[[noreturn]] void beyond_f16(float value, int64_t at, const std::string& name) {
  fail(ErrorCode::data, "weights that F16 can hold",
       fmt::format("{} at element {} of {}", value, at, name), "--dtype bf16 or --dtype f32");
}

bool finite_f16(f16 value) {
  return (value.bits & 0x7c00u) != 0x7c00u;
}

// A tensor, or what its codes decode to, and what an adapter that has begun it makes of it.
void write_merged(SafetensorsWriter& writer, const SafeSpec& spec, const SafeTensor& from,
                  const std::vector<float>& decoded, AdapterMerge* merge, std::vector<float>& wide,
                  std::vector<uint8_t>& narrow) {
  const int64_t n = from.elements(), element = bits_of(from.dtype) / 8;
  const auto read = [&](int64_t at, int64_t count) {
    if (decoded.empty())
      convert(from.dtype, from.data + at * element, count, wide.data());
    else
      std::copy_n(decoded.begin() + at, count, wide.begin());
  };
  for (int64_t at = 0; merge != nullptr && merge->measures() && at < n; at += kPiece) {
    const int64_t count = std::min(kPiece, n - at);
    read(at, count);
    merge->measure(at, count, wide.data());
  }
  writer.begin(spec.name);
  for (int64_t at = 0; at < n; at += kPiece) {
    const int64_t count = std::min(kPiece, n - at);
    read(at, count);
    if (merge != nullptr) merge->apply(at, count, wide.data());
    if (spec.dtype == SafeDType::F32) {
      writer.append(wide.data(), count * 4);
      continue;
    }
    for (int64_t i = 0; i < count; ++i) {
      const float value = wide[static_cast<size_t>(i)];
      if (spec.dtype == SafeDType::BF16) {
        reinterpret_cast<bf16*>(narrow.data())[i] = from_f32<bf16>(value);
        continue;
      }
      const f16 rounded = from_f32<f16>(value);
      if (!finite_f16(rounded)) beyond_f16(value, at + i, from.name);
      reinterpret_cast<f16*>(narrow.data())[i] = rounded;
    }
    writer.append(narrow.data(), count * 2);
  }
  writer.end();
}

void write_weight(SafetensorsWriter& writer, const SafeSpec& spec, const SafeTensor& from,
                  std::vector<float>& wide, std::vector<uint8_t>& narrow) {
  const int64_t n = from.elements(), element = bits_of(from.dtype) / 8;
  writer.begin(spec.name);
  if (from.dtype == spec.dtype) {
    writer.append(from.data, from.bytes);
    writer.end();
    return;
  }
  for (int64_t at = 0; at < n; at += kPiece) {
    const int64_t count = std::min(kPiece, n - at);
    const uint8_t* data = from.data + at * element;
    // From the file's type at once: through f32, F64 would be rounded twice.
    if (spec.dtype == SafeDType::BF16) {
      convert(from.dtype, data, count, reinterpret_cast<bf16*>(narrow.data()));
      writer.append(narrow.data(), count * 2);
      continue;
    }
    if (spec.dtype == SafeDType::F32) {
      convert(from.dtype, data, count, wide.data());
      writer.append(wide.data(), count * 4);
      continue;
    }
    auto* const out = reinterpret_cast<f16*>(narrow.data());
    convert(from.dtype, data, count, out);
    for (int64_t i = 0; i < count; ++i) {
      if (finite_f16(out[i])) continue;
      float value = 0;
      convert(from.dtype, data + i * element, 1, &value);
      beyond_f16(value, at + i, from.name);
    }
    writer.append(narrow.data(), count * 2);
  }
  writer.end();
}

// What the source's files say beside what we write: keys of config.json that are not ours, all of
// generation_config.json, and the stop tokens where a list has more than one.
void carry_config(const std::string& folder, const std::string& built) {
  const nlohmann::json from = parse_json_file(folder + "/config.json");
  nlohmann::json to = parse_json_file(built + "/config.json");
  for (const auto& [key, value] : from.items())
    // The dtype is now another one, and the weights are plain ones.
    if (!to.contains(key) && key != "dtype" && key != "quantization_config") to[key] = value;
  const bool list = from.contains("eos_token_id") && from["eos_token_id"].is_array();
  if (list) to["eos_token_id"] = from["eos_token_id"];
  write_json_file(built + "/config.json", to);
  const std::string generation = folder + "/generation_config.json",
                    made = built + "/generation_config.json";
  if (file_exists(generation)) {
    write_atomic(made, read_file(generation));
  } else if (list) {
    nlohmann::json j = parse_json_file(made);
    j["eos_token_id"] = from["eos_token_id"];
    write_json_file(made, j);
  }
}

}  // namespace

ExportReport export_folder(const std::string& folder, DType dtype, const std::string& output,
                           const std::string& adapter, const std::string& base_form,
                           const std::string& rows) {
  const std::vector<fs::path> torn = check_output(output);
  ExportReport report;
  ModelSource source = resolve_model(folder, "");
  // An adapter of an encoder has its head, and the config of the two.
  if (!adapter.empty() && file_exists(adapter + "/config.json"))
    source.spec = resolve_model(adapter, "").spec;
  report.notes = settle_head(source);
  std::optional<AdapterMerge> merge;
  if (!adapter.empty())
    merge.emplace(adapter, source.spec, weights_fingerprint(folder), &report.notes);
  // Of a classifier no head reads the table.
  const bool reads =
      source.spec.head == HeadKind::causal_lm || source.spec.head == HeadKind::masked_lm;
  if (merge && merge->of_table() && source.spec.tied && reads)
    fail(
        ErrorCode::unsupported,
        fmt::format("a head of its own to merge {} into, which is of the table of tokens", adapter),
        fmt::format("{}, whose head is tied to that table", folder),
        fmt::format("--model {} --adapter {} of snug eval, generate or predict, unmerged", folder,
                    adapter));
  std::optional<DecodedBase> decoded;
  if (merge) {
    const std::string form = base_form == "auto" ? trained_base_form(adapter) : base_form;
    if (PeftConfig config; (set_base_form(config, form, "--base-form"), !config.codec.empty()))
      decoded.emplace(source.spec, form);
    if (decoded && merge->took_away())
      fail(ErrorCode::unsupported,
           fmt::format("the base as it is to merge {} into, which began as parts of its weights",
                       adapter),
           fmt::format("a base that rests as {}", form), "--base-form full");
  }
  std::optional<CodedRows> coded;
  if (!rows.empty()) coded.emplace(source.spec, rows);
  const Model model(source.spec, parse_precision("fp32"));
  const SafetensorsFolder files = open_weights(model, folder);
  const SafetensorsLayout plain = weights_layout(model, dtype);
  std::vector<const SafeTensor*> tensors;
  struct Part {
    int param;
    size_t piece;
  };
  std::vector<Part> parts;  // of each
  for (int i = 0; i < model.params().size(); ++i) {
    const std::string name = model.params()[i].name.str();
    std::vector<const SafeTensor*> pieces = find_weight(files, model, i, folder);
    if (merge && merge->whole(name, 0)) {
      pieces.clear();
      while (const SafeTensor* const own = merge->whole(name, pieces.size())) pieces.push_back(own);
    }
    if (pieces.empty())
      fail(ErrorCode::data, fmt::format("the weights of a head in {}", folder),
           fmt::format("none of {}", model.params()[i].name.str()),
           "train it first: snug train model=... task=...");
    for (size_t k = 0; k < pieces.size(); ++k) parts.push_back({i, k});
    tensors.insert(tensors.end(), pieces.begin(), pieces.end());
    report.parameters += model.params()[i].real_elements();
  }
  std::vector<SafeSpec> specs;
  for (size_t i = 0; i < parts.size(); ++i)
    if (coded && coded->codes(model.params()[parts[i].param]))
      CodedRows::add_specs(specs, plain.tensors()[i]);
    else
      specs.push_back(plain.tensors()[i]);
  const SafetensorsLayout layout(plain.metadata(), std::move(specs));
  for (std::string& note : unused_tensors(model, files, folder))
    report.notes.push_back(std::move(note));
  std::optional<Tokenizer> tokenizer;
  if (holds_tokenizer(folder))
    tokenizer = Tokenizer::load(folder);
  else
    report.notes.emplace_back("the folder has no tokenizer; none was written");

  for (const fs::path& path : torn) {
    const FolderLock lock(path.string());
    std::error_code error;
    if (lock.held()) fs::remove_all(path, error);
    if (!lock.held() || error)
      fail(ErrorCode::device, fmt::format("to clear {} of an older conversion", path.string()),
           error ? error.message() : "a lock on it", "another --output");
  }
  FolderInMaking making(normal_path(output));
  const std::string& built = making.path();
  {
    SafetensorsWriter writer(built + "/model.safetensors", layout);
    std::vector<float> wide(static_cast<size_t>(kPiece));
    std::vector<uint8_t> narrow(static_cast<size_t>(2 * kPiece));
    for (size_t i = 0; i < tensors.size(); ++i) {
      const ParamInfo& p = model.params()[parts[i].param];
      if (coded && coded->codes(p)) {
        coded->write(writer, *tensors[i], omp_get_max_threads());
        for (const SafetensorsReader& file : files.files()) file.drop_pages();
        continue;
      }
      const bool adds = merge && merge->begin(p.name.str(), parts[i].piece,
                                              p.transposed_in_file && p.shape.rank() == 2,
                                              tensors[i]->shape.back(), *tensors[i]);
      std::vector<float> values;
      if (decoded && decoded->codes(p) && merge->whole(p.name.str(), 0) == nullptr)
        values =
            decoded->decode(p, saved_pieces(model, parts[i].param)[parts[i].piece], *tensors[i]);
      if (adds || !values.empty())
        write_merged(writer, plain.tensors()[i], *tensors[i], values, adds ? &*merge : nullptr,
                     wide, narrow);
      else
        write_weight(writer, plain.tensors()[i], *tensors[i], wide, narrow);
      for (const SafetensorsReader& file : files.files()) file.drop_pages();
    }
    writer.commit();
  }
  save_model_config(model, built, dtype);
  carry_config(folder, built);
  if (coded) {
    nlohmann::json config = parse_json_file(built + "/config.json");
    config["quantization_config"] = coded->config();
    write_json_file(built + "/config.json", config);
  }
  if (tokenizer) tokenizer->save(built, model.spec().P);
  if (file_exists(folder + "/chat_template.jinja"))
    write_atomic(built + "/chat_template.jinja", read_file(folder + "/chat_template.jinja"));
  making.finish();
  if (merge) {
    report.notes.push_back(
        fmt::format("{} tensors are those of {} and what {} adds to them, computed in f32",
                    merge->merged(), folder, adapter));
    const std::string before = trained_base_form(adapter), now = decoded ? decoded->form() : "full";
    if (before != "full" || now != "full")
      report.notes.push_back(fmt::format(
          "it was added to {}; it was trained over {}; {}",
          decoded ? fmt::format("what {} codes of the blocks' linear weights decode to", now)
                  : "the base as it is (full)",
          before,
          decoded ? "--base-form full takes the base as it is"
                  : "--base-form auto takes what it was trained over"));
    if (before.starts_with("int8"))
      report.notes.emplace_back(
          "products of the merged model round no inputs to int8, as those of its training did");
  }
  report.tensors = static_cast<int64_t>(layout.tensors().size());
  report.bytes = layout.total_bytes();
  return report;
}

}  // namespace snug
