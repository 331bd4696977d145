// A chat template and a conversation: any text is refused or is a template; then it renders within
// its bounds or is refused; every byte of what it gives has an origin, and the text is UTF-8.
#include "engine/text/chat_template.h"
#include "engine/text/unicode.h"
#include "tests/fuzz/fuzz.h"

namespace {

constexpr std::string_view kRow =
    R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a b\n"},
{"role": "assistant", "content": "<think>x</think> y", "tool_calls": [{"function": {"name": "f",
"arguments": {"k": [1, 2.5, null]}}}]}, {"role": "tool", "content": "r"}], "tools": [{"function":
{"name": "f", "parameters": {"properties": {"k": {"type": "string"}}}}}]})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace snug::fuzz;
  const auto parts = parts_of(text_of(data, size), 2);
  constexpr snug::ChatLimits kLimits = {.max_steps = 200'000, .max_bytes = 16 << 20};
  holds([&] {
    snug::ChatTemplate t = snug::ChatTemplate::parse(parts[0], "t.jinja");
    t.set_variable("bos_token", "<s>");
    t.set_variable("eos_token", "</s>");
    t.set_time(1'700'000'000);
    const auto row = snug::Conversation::parse(parts[1].empty() ? kRow : parts[1], "rows.jsonl:1");
    for (const bool prompt : {false, true}) {
      holds([&] {
        const snug::RenderedChat r = t.render(row, prompt, kLimits);
        check(snug::is_valid_utf8(r.text), "text of valid UTF-8");
        int64_t end = 0;
        for (const auto& run : r.runs) {
          check(run.end > end, "runs in order");
          check(run.origin.message < static_cast<int32_t>(row.messages().size()) &&
                    run.origin.turn < static_cast<int32_t>(row.messages().size()),
                "origins among the messages");
          end = run.end;
        }
        check(end == static_cast<int64_t>(r.text.size()), "an origin for every byte");
      });
    }
  });
  return 0;
}
