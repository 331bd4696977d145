#include "tools/setup/chat_setup.h"

#include <filesystem>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/text/special_tokens.h"
#include "layers/models/stop_tokens.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

// The folder that a tokenizer stands in; empty: none is known to be its own.
std::string folder_of(const std::string& tokenizer) {
  if (tokenizer.empty()) return "";
  std::error_code code;
  if (fs::is_directory(tokenizer, code)) return tokenizer;
  const fs::path path(tokenizer);
  if (path.filename() != "tokenizer.json") return "";
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

}  // namespace

std::optional<ChatTemplate> chat_template_of(const RunConfig& config, const Tokenizer& tokenizer) {
  std::error_code code;
  const std::string model =
      !config.model.empty() && fs::is_directory(config.model, code) ? config.model : "";
  const std::string own = folder_of(config.tokenizer);
  std::optional<ChatTemplate> chat;
  if (!config.chat_template.empty()) {
    if (!file_exists(config.chat_template))
      fail(ErrorCode::usage, "a file with a chat template for chat_template",
           config.chat_template + " (" + config.where("chat_template") + "), which is none",
           "chat_template=model/chat_template.jinja");
    chat = ChatTemplate::parse(read_file(config.chat_template), config.chat_template);
  }
  for (const std::string& folder : {own, model})
    if (!chat && !folder.empty()) chat = ChatTemplate::load(folder);
  if (!chat) return chat;
  // Of the tokenizer that runs; a file alone says its two roles.
  const std::string tokens = !config.tokenizer.empty() ? own : model;
  if (!tokens.empty() && file_exists(tokens + "/tokenizer_config.json")) {
    chat->set_roles(tokens);
  } else {
    if (const auto id = tokenizer.bos_id())
      chat->set_variable("bos_token", std::string(tokenizer.token_bytes(*id)));
    if (const auto id = tokenizer.eos_id())
      chat->set_variable("eos_token", std::string(tokenizer.token_bytes(*id)));
  }
  return chat;
}

ChatRows chat_rows_of(const RunConfig& config, const Tokenizer& tokenizer, const ModelSpec& spec) {
  std::error_code code;
  const bool folder = !config.model.empty() && fs::is_directory(config.model, code);
  std::vector<int32_t> ends;
  if (folder)
    if (const auto ids = model_stop_tokens(config.model, spec)) ends = *ids;
  if (ends.empty() && tokenizer.eos_id()) ends = {*tokenizer.eos_id()};
  return {chat_template_of(config, tokenizer), tokenizer, ends,
          folder ? "no chat template in " + config.model : "no chat_template"};
}

void save_chat_files(const RunConfig& config, const std::string& model_folder,
                     const std::optional<Tokenizer>& tokenizer, const std::string& folder) {
  if (!tokenizer) return;
  const bool chats = config.task == "sft" || config.task == "dpo" || config.task == "reward";
  // A template of the folder may be one that is not known here: it is handed on as it is.
  if (chats || !config.chat_template.empty()) {
    if (const auto chat = chat_template_of(config, *tokenizer))
      write_atomic(folder + "/chat_template.jinja", chat->source());
  } else if (!model_folder.empty() && file_exists(model_folder + "/chat_template.jinja")) {
    write_atomic(folder + "/chat_template.jinja", read_file(model_folder + "/chat_template.jinja"));
  }
  const std::string generation = model_folder + "/generation_config.json";
  if (!model_folder.empty() && file_exists(generation))
    write_atomic(folder + "/generation_config.json", read_file(generation));
}

}  // namespace snug
