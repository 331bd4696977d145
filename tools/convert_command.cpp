// snug convert: a model folder in the forms other programs read.
#include <fmt/format.h>

#include <filesystem>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "engine/core/units.h"
#include "layers/adapters/kinds.h"
#include "layers/models/adapter_files.h"
#include "tools/cli/argument_parser.h"
#include "tools/cli/output_file.h"
#include "tools/commands.h"
#include "tools/convert/export_folder.h"
#include "tools/convert/export_gguf.h"
#include "tools/session/tell.h"

namespace snug {
namespace {

struct Named {
  std::string_view name;
  std::string_view dtype;
};
// What people write for the four.
constexpr Named kDtypes[] = {{"f32", "f32"},   {"fp32", "f32"},      {"float32", "f32"},
                             {"f16", "f16"},   {"fp16", "f16"},      {"float16", "f16"},
                             {"bf16", "bf16"}, {"bfloat16", "bf16"}, {"q8_0", "q8_0"}};

// A form of int8 for linear weights: int8, int8:4.5, int8/o_proj.
bool is_int8(std::string_view dtype) {
  constexpr std::string_view kInt8 = "int8";
  return dtype.starts_with(kInt8) &&
         (dtype == kInt8 || dtype[kInt8.size()] == ':' || dtype[kInt8.size()] == '/');
}

std::string_view parse_dtype(const std::string& text, bool gguf) {
  const char* const expected =
      gguf ? "--dtype f32, f16, bf16 or q8_0" : "--dtype f32, f16, bf16 or int8";
  std::vector<std::string_view> names;
  for (const Named& row : kDtypes) {
    if (row.name == text && (gguf || row.dtype != "q8_0")) return row.dtype;
    names.push_back(row.name);
  }
  if (text == "q8_0")
    fail(ErrorCode::usage, expected, "q8_0, which is a type of GGUF", "--to gguf");
  fail(ErrorCode::usage, expected, fmt::format("\"{}\"", text),
       suggestion(text, names, "--dtype f16"));
}

// What is read is not written over, --overwrite or not.
void check_not_of_model(const std::string& output, const std::string& model) {
  namespace fs = std::filesystem;
  std::error_code error;
  // Links are followed when it is written, and the folder's own names may be links, as in caches.
  const fs::path path = fs::weakly_canonical(output, error);
  if (!fs::exists(path, error) || path.extension() == ".gguf") return;
  bool own = false;
  for (fs::directory_iterator it(model, error), end; !own && !error && it != end;
       it.increment(error)) {
    std::error_code dangling;
    own = fs::equivalent(it->path(), path, dangling);
  }
  if (!own) return;
  fail(ErrorCode::usage, "--output as another file than the model's own",
       fmt::format("{}, which is in {}", output, model),
       fmt::format("--output {}/model.gguf", model));
}

}  // namespace

int convert_command(const Arguments& arguments) {
  std::string model, to, dtype, output, name, pre;
  bool overwrite = false;
  ArgumentParser parser("convert",
                        "writes a model folder as a GGUF file, or as a folder with weights of "
                        "another dtype.");
  parser.option("--model", model, "DIR", "folder with config.json, model.safetensors and tokenizer")
      .required()
      .option("--to", to, "FORM", "gguf (a file for llama.cpp and its kin) or hf (a folder)")
      .required()
      .option("--output", output, "PATH", "the file or folder to write")
      .required()
      .option("--dtype", dtype, "TYPE",
              "of the matrices: f32, f16, bf16, for gguf q8_0, and for hf int8, linear weights of "
              "the blocks as "
              "bitsandbytes has them and the rest in f16; int8:4.5 with this llm_int8_threshold, "
              "int8/o_proj without "
              "modules that end so (default: gguf f16, hf f32)")
      .flag("--overwrite", overwrite, "gguf: replace a file that is there")
      .option("--name", name, "TEXT",
              "gguf: the model's name (default: its config's, else the folder's)")
      .option("--pre", pre, "RULE", "gguf: the splitting rule to name (default: the tokenizer's)")
      .example("snug convert --model run1/final --to gguf --dtype q8_0 --output run1.gguf")
      .example("snug convert --model run1/final --to hf --dtype bf16 --output run1-bf16")
      .example("snug convert --model run1/final --to hf --dtype int8 --output run1-int8");
  if (!parser.parse(arguments)) return 0;
  if (to != "gguf" && to != "hf")
    fail(ErrorCode::usage, "--to gguf or --to hf", fmt::format("\"{}\"", to),
         suggestion(to, {"gguf", "hf"}, "--to gguf"));
  const bool gguf = to == "gguf";
  std::error_code ignored;
  if (!std::filesystem::is_directory(model, ignored))
    fail(ErrorCode::usage, "--model as a folder with config.json and model.safetensors", model,
         "--model run1/final");
  if (is_adapter_folder(model)) {
    const PeftConfig adapter = read_adapter_config(model);
    const std::string& base = adapter.base;
    if (const int64_t front = virtual_tokens(adapter); front > 0)
      fail(ErrorCode::unsupported, "--model as a folder with a whole model",
           fmt::format("{}, {} tokens in front of sequences, which no model folder has", model,
                       front),
           fmt::format("--model {}: the base; snug eval and generate take the adapter beside it "
                       "(--adapter {})",
                       base.empty() ? "BASE" : base, model));
    fail(ErrorCode::usage, "--model as a folder with a whole model",
         fmt::format("{}, an adapter", model),
         fmt::format("snug merge --model {} --adapter {} --output merged, then --model merged",
                     base.empty() ? "BASE" : base, model));
  }
  if (dtype.empty()) dtype = gguf ? "f16" : "f32";
  const bool int8 = !gguf && is_int8(dtype);
  const std::string_view type = int8 ? std::string_view(dtype) : parse_dtype(dtype, gguf);
  ExportReport report;
  if (gguf) {
    if (std::filesystem::is_directory(output, ignored))
      fail(ErrorCode::usage, "--output as a file", fmt::format("{}, which is a folder", output),
           fmt::format("--output {}/model.gguf", output));
    check_output_file(output, "--output", overwrite);
    check_not_of_model(output, model);
    report = export_gguf({.model = model,
                          .output = output,
                          .type = type == "f32"    ? GgufType::F32
                                  : type == "bf16" ? GgufType::BF16
                                  : type == "q8_0" ? GgufType::Q8_0
                                                   : GgufType::F16,
                          .name = name,
                          .pre = pre});
  } else {
    for (const char* flag : {"--name", "--pre", "--overwrite"})
      if (parser.given(flag))
        fail(ErrorCode::usage, fmt::format("{} only with --to gguf", flag), "--to hf",
             fmt::format("leave {} out", flag));
    report = export_folder(model,
                           type == "f32"    ? DType::f32
                           : type == "bf16" ? DType::bf16
                                            : DType::f16,
                           output, "", "auto", int8 ? dtype : "");
  }
  for (const std::string& note : report.notes) tell(stderr, "Note: {}\n", note);
  fmt::print("{}: {} tensors, {} parameters, matrices {}, {}\n", output, report.tensors,
             report.parameters, type, human_bytes(report.bytes));
  return 0;
}

}  // namespace snug
