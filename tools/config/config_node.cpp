#include "tools/config/config_node.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <sstream>

#include "engine/core/error.h"
#include "engine/io/text_reader.h"

namespace snug {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr size_t kMaxDepth = 16;
constexpr int kMaxNodes = 10000;
constexpr const char* kAdvice = "write plain keys and values, for example max_steps: 1000";

// Builds the tree from the parser's events. Its nodes are moved into their parent when complete, so
// that no pointer into a growing vector is held.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const std::string& origin, bool lines) : origin_(origin), lines_(lines) {}

  ConfigNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(make(ConfigNode::Kind::null, mark, anchor, ""));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fail(ErrorCode::usage, "a configuration without YAML aliases",
         fmt::format("an alias ({})", place(mark)), "write the value out where it is used");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    ConfigNode node = make(ConfigNode::Kind::scalar, mark, anchor, tag);
    node.text = value;
    node.quoted = tag == "!";
    if (!node.quoted && (value == "null" || value == "~" || value.empty())) {
      node.kind = ConfigNode::Kind::null;
      node.text.clear();
    }
    if (value.find('\0') != std::string::npos)
      fail(ErrorCode::usage, "text without zero bytes", fmt::format("one ({})", place(mark)),
           kAdvice);
    add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(make(ConfigNode::Kind::list, mark, anchor, tag));
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(make(ConfigNode::Kind::map, mark, anchor, tag));
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    ConfigNode node;
    ConfigNode key;
    bool has_key = false;
  };

  std::string place(const YAML::Mark& mark) const {
    return lines_ ? fmt::format("{}:{}", origin_, mark.line + 1) : origin_;
  }

  ConfigNode make(ConfigNode::Kind kind, const YAML::Mark& mark, YAML::anchor_t anchor,
                  const std::string& tag) {
    if (anchor != YAML::NullAnchor)
      fail(ErrorCode::usage, "a configuration without YAML anchors",
           fmt::format("an anchor ({})", place(mark)), "write the value out where it is used");
    if (!tag.empty() && tag != "?" && tag != "!")
      fail(ErrorCode::usage, "a configuration without YAML tags",
           fmt::format("{} ({})", tag, place(mark)), kAdvice);
    if (++nodes_ > kMaxNodes)
      fail(ErrorCode::usage, fmt::format("at most {} values in a configuration", kMaxNodes),
           fmt::format("more ({})", place(mark)), kAdvice);
    ConfigNode node;
    node.kind = kind;
    node.where = place(mark);
    return node;
  }

  void open(ConfigNode node) {
    if (stack_.size() >= kMaxDepth)
      fail(ErrorCode::usage, fmt::format("at most {} levels in a configuration", kMaxDepth),
           fmt::format("more ({})", node.where), kAdvice);
    stack_.push_back({std::move(node), {}, false});
  }

  void close() {
    ConfigNode node = std::move(stack_.back().node);
    stack_.pop_back();
    add(std::move(node));
  }

  void add(ConfigNode node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& top = stack_.back();
    if (top.node.kind == ConfigNode::Kind::list) {
      top.node.items.push_back(std::move(node));
    } else if (top.has_key) {
      // The parser finds out that there is no value where the next thing begins.
      if (node.kind == ConfigNode::Kind::null) node.where = top.key.where;
      top.node.entries.push_back({top.key.text, top.key.where, std::move(node)});
      top.has_key = false;
    } else {
      add_key(top, std::move(node));
    }
  }

  static void add_key(Open& top, ConfigNode key) {
    if (key.kind != ConfigNode::Kind::scalar)
      fail(ErrorCode::usage, "a name before the colon", key.describe(), kAdvice);
    for (const ConfigNode::Entry& entry : top.node.entries) {
      if (entry.key == key.text)
        fail(ErrorCode::usage, fmt::format("{} once", key.text),
             fmt::format("it twice ({} and {})", entry.where, key.where), "remove one of them");
    }
    top.key = std::move(key);
    top.has_key = true;
  }

  const std::string& origin_;
  bool lines_;
  int nodes_ = 0;
  ConfigNode root_;
  std::vector<Open> stack_;
};

}  // namespace

const ConfigNode* ConfigNode::find(std::string_view key) const {
  for (const Entry& entry : entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

ConfigNode* ConfigNode::find(std::string_view key) {
  return const_cast<ConfigNode*>(static_cast<const ConfigNode*>(this)->find(key));
}

std::string ConfigNode::describe() const {
  switch (kind) {
    case Kind::null:
      return fmt::format("nothing ({})", where);
    case Kind::scalar:
      return fmt::format("\"{}{}\" ({})", text_beginning(text, 80), text.size() > 80 ? "..." : "",
                         where);
    case Kind::list:
      return fmt::format("a list ({})", where);
    case Kind::map:
      return fmt::format("a map ({})", where);
  }
  return where;
}

ConfigNode parse_config_node(const std::string& text, const std::string& origin, bool lines) {
  if (text.size() > kMaxBytes)
    fail(ErrorCode::usage, "a configuration of at most 1 MiB",
         fmt::format("{} bytes ({})", text.size(), origin), kAdvice);
  TreeBuilder builder(origin, lines);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) {
      ConfigNode empty;
      empty.where = origin;
      return empty;
    }
    ConfigNode node = builder.take();
    TreeBuilder second(origin, lines);
    if (parser.HandleNextDocument(second))
      fail(ErrorCode::usage, "one YAML document",
           fmt::format("a second one ({})", second.take().where), "remove the line ---");
    return node;
  } catch (const YAML::Exception& error) {
    const std::string place =
        lines && error.mark.line >= 0 ? fmt::format("{}:{}", origin, error.mark.line + 1) : origin;
    fail(ErrorCode::usage, "YAML or JSON", fmt::format("{} ({})", error.msg, place), kAdvice);
  }
}

}  // namespace snug
