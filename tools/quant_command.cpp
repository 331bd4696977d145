// snug quant: what weights become in a codec, and the file of codes.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/device/processors.h"
#include "engine/io/files.h"
#include "quant/codec.h"
#include "tools/cli/argument_parser.h"
#include "tools/cli/output_file.h"
#include "tools/codes/code_file.h"
#include "tools/commands.h"
#include "tools/report/report.h"

namespace snug {
namespace {

using Json = nlohmann::ordered_json;

double bits(const CodedTensor& t) {
  return 8.0 * static_cast<double>(t.coded_bytes) /
         static_cast<double>(std::max<int64_t>(1, t.elements));
}

void add_numbers(Json& j, const CodedTensor& t) {
  j["elements"] = t.elements;
  j["bytes"] = t.bytes;
  j["coded_bytes"] = t.coded_bytes;
  j["bits_per_element"] = bits(t);
  j["max_error"] = t.max_error;
  j["mean_error"] = t.mean_error;
  j["rms_error"] = t.rms_error;
  j["relative_error"] = t.relative_error();
}

std::string dumped(const Json& j) {
  return j.dump(2, ' ', false, Json::error_handler_t::replace);
}

void print_json(const CodedFile& file, int64_t copied, const std::string& output) {
  Json j = {
      {"file", file.path}, {"codec", file.codec}, {"block", file.block}, {"doubled", file.doubled}};
  add_numbers(j, all_tensors(file));
  j["copied_tensors"] = copied;
  j["output"] = output.empty() ? Json(nullptr) : Json(output);
  j["tensors"] = Json::array();
  for (const CodedTensor& t : file.tensors) {
    Json row = {{"name", t.name}, {"dtype", t.dtype}, {"shape", t.shape}};
    add_numbers(row, t);
    j["tensors"].push_back(std::move(row));
  }
  fmt::print("{}\n", dumped(j));
}

void print_row(const CodedTensor& t, size_t width) {
  fmt::print("{:<{}}  {:<4}  {:>10}  {:>10}  {:>6.3f}  {:>9.3g}  {:>9.3g}  {:>9.3g}  {:>8.4f}\n",
             t.name, width, t.dtype, human_bytes(t.bytes), human_bytes(t.coded_bytes), bits(t),
             t.max_error, t.mean_error, t.rms_error, t.relative_error());
}

void print_table(const CodedFile& file, int64_t copied) {
  const CodedTensor all = all_tensors(file);
  size_t width = 6;
  for (const CodedTensor& t : file.tensors) width = std::max(width, t.name.size());
  fmt::print("{} in blocks of {}{}\n\n", file.codec, file.block,
             file.doubled ? ", scales coded too" : "");
  fmt::print("{:<{}}  {:<4}  {:>10}  {:>10}  {:>6}  {:>9}  {:>9}  {:>9}  {:>8}\n", "tensor", width,
             "was", "bytes", "coded", "bits", "max error", "mean", "rms", "relative");
  for (const CodedTensor& t : file.tensors) print_row(t, width);
  if (file.tensors.size() > 1) print_row(all, width);
  fmt::print(
      "\nErrors are of |decoded - value|; relative: rms error over the rms of the values.\n");
  if (copied > 0)
    fmt::print("{} other tensor{} as {}.\n", copied, copied == 1 ? "" : "s",
               copied == 1 ? "it is" : "they are");
  const std::string picture = codes_text(file, terminal_glyphs() == Glyphs::blocks);
  if (!picture.empty()) fmt::print("\n{}", picture);
}

void print_decoded(const std::vector<DecodedTensor>& tensors, int64_t copied,
                   const std::string& path, const std::string& output, bool json) {
  if (json) {
    Json j = {{"file", path},
              {"copied_tensors", copied},
              {"output", output.empty() ? Json(nullptr) : Json(output)},
              {"tensors", Json::array()}};
    for (const DecodedTensor& t : tensors)
      j["tensors"].push_back({{"name", t.name},
                              {"dtype", t.dtype},
                              {"shape", t.shape},
                              {"codec", t.codec},
                              {"block", t.block},
                              {"doubled", t.doubled},
                              {"bytes", t.bytes},
                              {"coded_bytes", t.coded_bytes}});
    fmt::print("{}\n", dumped(j));
    return;
  }
  size_t width = 6;
  for (const DecodedTensor& t : tensors) width = std::max(width, t.name.size());
  fmt::print("{:<{}}  {:<14}  {:>5}  {:>10}  {:<4}  {:>10}\n", "tensor", width, "codec", "block",
             "coded", "to", "bytes");
  for (const DecodedTensor& t : tensors)
    fmt::print("{:<{}}  {:<14}  {:>5}  {:>10}  {:<4}  {:>10}\n", t.name, width,
               t.doubled ? t.codec + ", doubled" : t.codec, t.block, human_bytes(t.coded_bytes),
               t.dtype, human_bytes(t.bytes));
  if (copied > 0)
    fmt::print("{} other tensor{} as {}.\n", copied, copied == 1 ? "" : "s",
               copied == 1 ? "it is" : "they are");
}

}  // namespace

int quant_command(const Arguments& arguments) {
  std::vector<std::string> paths;
  std::string name, picture;
  CodeOptions options;
  int64_t block = 0, threads = 0;
  bool doubled = false, decode = false, json = false, overwrite = false;
  std::string known;
  for (const Codec& c : codecs()) known += fmt::format("{}{}", known.empty() ? "" : ", ", c.name);
  ArgumentParser parser("quant",
                        "says what each tensor of a safetensors file takes and loses in a codec, "
                        "and writes codes and scales under the names of bitsandbytes.");
  parser.positionals("FILE", paths, "a .safetensors file, or a model's folder")
      .required()
      .option("--codec", name, "NAME", known)
      .option("--block", block, "N", "elements that share a scale (default: the codec's)")
      .flag("--double", doubled, "code the scales too, as QLoRA does")
      .option("--match", options.match, "REGEX", "only tensors with a match in their name")
      .option("--output", options.output, "FILE", "the .safetensors file to write")
      .flag("--overwrite", overwrite, "replace files that are there")
      .option("--picture", picture, "FILE", "a page with the codes drawn over the values")
      .flag("--decode", decode, "the reverse: FILE holds codes, --output gets weights")
      .threads(threads, "threads; auto: one per core the process may use")
      .flag("--json", json, "the numbers as one JSON object")
      .example("snug quant run1/final --codec nf4 --double")
      .example(
          "snug quant model.safetensors --codec nf4 --match 'proj.weight$' --output "
          "codes.safetensors --picture codes.html")
      .example("snug quant codes.safetensors --decode --output weights.safetensors");
  if (!parser.parse(arguments)) return 0;
  if (paths.size() != 1)
    fail(ErrorCode::usage, "one FILE for snug quant", fmt::format("{}", paths.size()),
         "one command a file");
  if (decode)
    for (const char* flag : {"--codec", "--block", "--double", "--match", "--picture"})
      if (parser.given(flag))
        fail(ErrorCode::usage,
             fmt::format("--decode without {}: the file says how it is coded", flag), "both",
             fmt::format("leave {} out", flag));
  if (!decode && name.empty())
    fail(ErrorCode::usage, "--codec for snug quant: " + known, "none", "--codec nf4");
  if (parser.given("--block") && block < 1)
    fail(ErrorCode::usage, "--block of one element or more", fmt::format("{}", block),
         "--block 64");
  options.threads = static_cast<int>(threads > 0 ? threads : find_processors().threads());
  check_output_file(options.output, "--output", overwrite);
  check_output_file(picture, "--picture", overwrite, kReportMark);
  check_output_is_no_input(options.output, "--output", paths);
  check_output_is_no_input(picture, "--picture", paths, kReportMark);
  int64_t copied = 0;
  if (decode) {
    const std::vector<DecodedTensor> tensors = decode_file(paths[0], options, copied);
    print_decoded(tensors, copied, paths[0], options.output, json);
    return 0;
  }
  const Codec& c = codec(name);
  const CodedFile file = code_file(
      paths[0], CodeSpec(c, parser.given("--block") ? block : c.block, doubled), options, copied);
  if (!picture.empty()) write_atomic(picture, codes_html(file));
  if (json)
    print_json(file, copied, options.output);
  else
    print_table(file, copied);
  return 0;
}

}  // namespace snug
