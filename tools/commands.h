// The subcommands of snug. Each takes the arguments after its name and returns the exit code;
// errors leave as exceptions, which main turns into a message and a code.
#pragma once

#include <string>
#include <vector>

namespace snug {

using Arguments = std::vector<std::string>;

int train_command(const Arguments& arguments);
int plan_command(const Arguments& arguments);
int explain_command(const Arguments& arguments);
int report_command(const Arguments& arguments);
int eval_command(const Arguments& arguments);
int predict_command(const Arguments& arguments);
int generate_command(const Arguments& arguments);
int data_command(const Arguments& arguments);
int tokenizer_command(const Arguments& arguments);
int calibrate_command(const Arguments& arguments);
int bench_command(const Arguments& arguments);
int convert_command(const Arguments& arguments);
int merge_command(const Arguments& arguments);
int quant_command(const Arguments& arguments);
int inspect_command(const Arguments& arguments);
int doctor_command(const Arguments& arguments);

}  // namespace snug
