// snug merge: a base and an adapter as one model folder.
#include <fmt/format.h>

#include <filesystem>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "engine/core/units.h"
#include "tools/cli/argument_parser.h"
#include "tools/commands.h"
#include "tools/convert/export_folder.h"
#include "tools/session/tell.h"

namespace snug {

int merge_command(const Arguments& arguments) {
  std::string model, adapter, output, dtype = "f32", base_form = "auto";
  ArgumentParser parser("merge",
                        "adds an adapter to the weights of its base, in f32, and writes a model "
                        "folder that needs neither.");
  parser.option("--model", model, "DIR", "the base: folder with config.json and model.safetensors")
      .required()
      .option("--adapter", adapter, "DIR", "the PEFT folder, as final/ of a run with peft")
      .required()
      .option("--output", output, "DIR", "the folder to write")
      .required()
      .option("--base-form", base_form, "FORM",
              "what the adapter is added to: full, the base's weights; nf4, nf4-double, fp4, "
              "fp4-double "
              "or int8, what such codes of them decode to; auto: what the adapter was trained over")
      .option("--dtype", dtype, "TYPE", "of the weights, each rounded once: f32, bf16 or f16")
      .example("snug merge --model BASE --adapter run1/final --output merged")
      .example("snug merge --model BASE --adapter run1/final --dtype bf16 --output merged");
  if (!parser.parse(arguments)) return 0;
  if (dtype != "f32" && dtype != "bf16" && dtype != "f16")
    fail(ErrorCode::usage, "--dtype f32, bf16 or f16", fmt::format("\"{}\"", dtype),
         suggestion(dtype, {"f32", "bf16", "f16"}, "--dtype bf16; weights in codes lose again"));
  std::error_code ignored;
  for (const auto& [flag, folder] :
       {std::pair("--model", &model), std::pair("--adapter", &adapter)})
    if (!std::filesystem::is_directory(*folder, ignored))
      fail(ErrorCode::usage, fmt::format("{} as a folder", flag), *folder,
           "snug merge --model BASE --adapter run1/final --output merged");
  const ExportReport report = export_folder(model,
                                            dtype == "f32"    ? DType::f32
                                            : dtype == "bf16" ? DType::bf16
                                                              : DType::f16,
                                            output, adapter, base_form);
  for (const std::string& note : report.notes) tell(stderr, "Note: {}\n", note);
  fmt::print("{}: {} tensors, {} parameters in {}, {}\n", output, report.tensors, report.parameters,
             dtype, human_bytes(report.bytes));
  return 0;
}

}  // namespace snug
