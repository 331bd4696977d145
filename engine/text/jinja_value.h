// Values of the template interpreter: what a Jinja template computes with, as Python has it, and
// where every byte of a text came from.
//
// Memory    All of a rendering's values lie in one Arena and end with it; none has a destructor, so
//           a template cannot nest values so deep that their end overflows the stack. The arena
//           counts bytes and refuses beyond its limit.
// Text      Valid UTF-8. Positions are bytes here; where Python counts characters the functions of
//           jinja_text.h do.
// Origin    Of each byte: the message whose text it is, or the template's; whether it is a role;
//           the message in whose turn of a loop it was written; whether inside {% generation %}.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace snug::jinja {

// Bounded memory of one rendering.
class Arena {
 public:
  explicit Arena(int64_t max_bytes) : left_(max_bytes), limit_(max_bytes) {}
  Arena(Arena&&) = default;
  // 8-aligned, not cleared. Throws Error (data) beyond the limit.
  void* take(int64_t bytes);
  void charge(int64_t bytes);
  template <class T>
  T* make(int64_t count = 1) {
    static_assert(std::is_trivially_destructible_v<T>);
    T* out = static_cast<T*>(take(count * static_cast<int64_t>(sizeof(T))));
    for (int64_t i = 0; i < count; ++i) new (out + i) T();
    return out;
  }
  std::string_view copy(std::string_view text);
  bool exhausted() const { return exhausted_; }  // it has refused

 private:
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* at_ = nullptr;
  int64_t room_ = 0;
  int64_t left_, limit_;
  bool exhausted_ = false;
};

enum class Source : uint8_t { from_template, role, content };

struct Origin {
  int32_t message = -1;  // whose text it is; -1: the template's own, or of no message
  int32_t turn = -1;     // the message whose turn of a loop wrote it; -1: none
  Source source = Source::from_template;
  bool generation = false;
  bool operator==(const Origin&) const = default;
};

struct Run {
  int64_t end = 0;  // the first byte behind it
  Origin origin;
};

// A text; `runs` is empty where all bytes have the origin `whole`.
struct Text {
  const char* data = "";
  int64_t size = 0;
  Origin whole;
  const Run* runs = nullptr;
  int64_t run_count = 0;
  bool markup = false;  // escaped for HTML: of jinja2's type Markup
  std::string_view view() const { return {data, static_cast<size_t>(size)}; }
};

enum class Kind : uint8_t {
  undefined,
  none,
  boolean,
  integer,
  real,
  text,
  sequence,
  iterator,
  dict,
  space,
  loop,
  function
};

struct Sequence;
struct Iterator;
struct Dict;
struct Loop;
struct Function;

struct Value {
  Kind kind = Kind::undefined;
  union {
    bool boolean;
    int64_t integer = 0;
    double real;
    const Text* text;
    const Sequence* sequence;
    Iterator* iterator;
    Dict* dict;  // of dict and of space
    Loop* loop;
    const Function* function;
    const char* hint;  // of undefined: what is not defined, for messages
  };

  static Value of_undefined(const char* name = "") {
    Value v;
    v.hint = name;
    return v;
  }
  static Value of_none() {
    Value v;
    v.kind = Kind::none;
    return v;
  }
  static Value of(bool b) {
    Value v;
    v.kind = Kind::boolean;
    v.boolean = b;
    return v;
  }
  static Value of(int64_t i) {
    Value v;
    v.kind = Kind::integer;
    v.integer = i;
    return v;
  }
  static Value of(double d) {
    Value v;
    v.kind = Kind::real;
    v.real = d;
    return v;
  }
  static Value of(const Text* t) {
    Value v;
    v.kind = Kind::text;
    v.text = t;
    return v;
  }
  static Value of(const Sequence* s) {
    Value v;
    v.kind = Kind::sequence;
    v.sequence = s;
    return v;
  }
  static Value of(Iterator* s) {
    Value v;
    v.kind = Kind::iterator;
    v.iterator = s;
    return v;
  }
  static Value of(Dict* d, Kind kind = Kind::dict) {
    Value v;
    v.kind = kind;
    v.dict = d;
    return v;
  }
  static Value of(Loop* l) {
    Value v;
    v.kind = Kind::loop;
    v.loop = l;
    return v;
  }
  static Value of(const Function* f) {
    Value v;
    v.kind = Kind::function;
    v.function = f;
    return v;
  }
  bool is_number() const {
    return kind == Kind::boolean || kind == Kind::integer || kind == Kind::real;
  }
  bool is_whole() const { return kind == Kind::boolean || kind == Kind::integer; }
  int64_t whole() const { return kind == Kind::boolean ? (boolean ? 1 : 0) : integer; }
  double number() const { return kind == Kind::real ? real : static_cast<double>(whole()); }
};

// Python's list, tuple, range and the three views of a dict.
struct Sequence {
  enum class Form : uint8_t { list, tuple, range, keys, values, items };
  Form form = Form::list;
  const Value* data = nullptr;
  int64_t size = 0;
};

// What map, select and their kin give: values that can be walked once.
struct Iterator {
  const Value* data = nullptr;
  int64_t size = 0;
  int64_t next = 0;
  const char* name = "generator";
};

struct Pair {
  Value key, value;
};

// Insertion order, as Python's. Of messages, `message` is the index.
struct Dict {
  Pair* data = nullptr;
  int64_t size = 0, room = 0;
  int32_t message = -1;
  const Value* find(std::string_view key) const;
};

// Adds or replaces; a later equal key keeps its first place, as in Python.
void dict_set(Arena& arena, Dict& dict, const Value& key, const Value& value);

// Joins texts with their origins.
class TextBuilder {
 public:
  explicit TextBuilder(Arena& arena) : arena_(&arena) {}
  void append(std::string_view bytes, const Origin& origin);
  void append(const Text& text) { append(text, 0, text.size); }
  void append(const Text& text, int64_t begin, int64_t end);
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  const std::string& bytes() const { return bytes_; }
  const std::vector<Run>& runs() const { return runs_; }
  // Sets the turn of bytes that have none; marks those from `begin` on as generated.
  void set_turn(int64_t begin, int32_t turn);
  void set_generation(int64_t begin);
  const Text* finish();

 private:
  Arena* arena_;
  std::string bytes_;
  std::vector<Run> runs_;
};

const Text* make_text(Arena& arena, std::string_view bytes, const Origin& origin = {});
// Part of a text, which it shares.
const Text* cut_text(Arena& arena, const Text& text, int64_t begin, int64_t end);
Origin origin_at(const Text& text, int64_t byte);

Sequence* make_sequence(Arena& arena, const std::vector<Value>& values,
                        Sequence::Form form = Sequence::Form::list);

}  // namespace snug::jinja
