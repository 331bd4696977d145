#include "engine/text/jinja_value.h"

#include <algorithm>
#include <type_traits>

#include "engine/core/error.h"
#include "engine/core/units.h"

namespace snug::jinja {

void Arena::charge(int64_t bytes) {
  if (bytes <= left_) {
    left_ -= bytes;
    return;
  }
  exhausted_ = true;
  fail(ErrorCode::data,
       "a chat template that takes at most " + human_bytes(limit_) + " for a conversation",
       "one that asks for more", "correct the template, or shorten the conversation");
}

void* Arena::take(int64_t bytes) {
  bytes = (std::max<int64_t>(bytes, 1) + 7) / 8 * 8;
  charge(bytes);
  if (bytes > room_) {
    constexpr int64_t kBlock = 32768;
    const int64_t size = std::max(kBlock, bytes);
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(static_cast<size_t>(size)));
    if (bytes > kBlock / 2) return blocks_.back().get();  // a block of its own
    at_ = blocks_.back().get();
    room_ = size;
  }
  void* out = at_;
  at_ += bytes;
  room_ -= bytes;
  return out;
}

std::string_view Arena::copy(std::string_view text) {
  if (text.empty()) return {};
  char* out = static_cast<char*>(take(static_cast<int64_t>(text.size())));
  std::memcpy(out, text.data(), text.size());
  return {out, text.size()};
}

const Value* Dict::find(std::string_view key) const {
  for (int64_t i = 0; i < size; ++i)
    if (data[i].key.kind == Kind::text && data[i].key.text->view() == key) return &data[i].value;
  return nullptr;
}

namespace {

bool same_key(const Value& a, const Value& b) {
  if (a.kind == Kind::text || b.kind == Kind::text)
    return a.kind == b.kind && a.text->view() == b.text->view();
  if (a.is_number() && b.is_number())
    return a.is_whole() && b.is_whole() ? a.whole() == b.whole() : a.number() == b.number();
  return a.kind == b.kind && a.kind == Kind::none;
}

}  // namespace

void dict_set(Arena& arena, Dict& dict, const Value& key, const Value& value) {
  arena.charge(dict.size);  // the search: a large dictionary is not built for nothing
  for (int64_t i = 0; i < dict.size; ++i)
    if (same_key(dict.data[i].key, key)) {
      dict.data[i].value = value;
      return;
    }
  if (dict.size == dict.room) {
    const int64_t room = std::max<int64_t>(4, dict.room * 2);
    Pair* data = arena.make<Pair>(room);
    std::copy_n(dict.data, dict.size, data);
    dict.data = data;
    dict.room = room;
  }
  dict.data[dict.size++] = {key, value};
}

void TextBuilder::append(std::string_view bytes, const Origin& origin) {
  if (bytes.empty()) return;
  arena_->charge(static_cast<int64_t>(bytes.size()));
  bytes_ += bytes;
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = size();
  } else {
    arena_->charge(static_cast<int64_t>(sizeof(Run)));
    runs_.push_back({size(), origin});
  }
}

void TextBuilder::append(const Text& text, int64_t begin, int64_t end) {
  if (begin >= end) return;
  if (!text.run_count) {
    append(text.view().substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
           text.whole);
    return;
  }
  const Run* last = text.runs + text.run_count;
  const Run* run =
      std::upper_bound(text.runs, last, begin, [](int64_t at, const Run& r) { return at < r.end; });
  for (; begin < end; ++run) {
    const int64_t stop = std::min(end, run->end);
    append(text.view().substr(static_cast<size_t>(begin), static_cast<size_t>(stop - begin)),
           run->origin);
    begin = stop;
  }
}

namespace {

// Changes the origins of the bytes from `begin` on.
template <class F>
void change_runs(std::vector<Run>& runs, int64_t begin, F&& change) {
  auto it = std::upper_bound(runs.begin(), runs.end(), begin,
                             [](int64_t at, const Run& r) { return at < r.end; });
  if (it == runs.end()) return;
  const int64_t start = it == runs.begin() ? 0 : std::prev(it)->end;
  if (start < begin) {
    it = runs.insert(it, {begin, it->origin});
    ++it;
  }
  for (; it != runs.end(); ++it) change(it->origin);
}

}  // namespace

void TextBuilder::set_turn(int64_t begin, int32_t turn) {
  change_runs(runs_, begin, [&](Origin& o) {
    if (o.turn < 0) o.turn = turn;
  });
}

void TextBuilder::set_generation(int64_t begin) {
  change_runs(runs_, begin, [](Origin& o) { o.generation = true; });
}

const Text* TextBuilder::finish() {
  Text* out = arena_->make<Text>();
  const std::string_view bytes = arena_->copy(bytes_);
  out->data = bytes.data();
  out->size = size();
  if (runs_.size() == 1) {
    out->whole = runs_[0].origin;
  } else if (!runs_.empty()) {
    Run* runs = arena_->make<Run>(static_cast<int64_t>(runs_.size()));
    std::copy(runs_.begin(), runs_.end(), runs);
    out->runs = runs;
    out->run_count = static_cast<int64_t>(runs_.size());
  }
  if (!out->size) out->data = "";
  return out;
}

const Text* make_text(Arena& arena, std::string_view bytes, const Origin& origin) {
  Text* out = arena.make<Text>();
  if (!bytes.empty()) out->data = arena.copy(bytes).data();
  out->size = static_cast<int64_t>(bytes.size());
  out->whole = origin;
  return out;
}

const Text* cut_text(Arena& arena, const Text& text, int64_t begin, int64_t end) {
  if (begin == 0 && end == text.size) return &text;
  if (!text.run_count || begin >= end) {
    Text* out = arena.make<Text>();
    out->data = text.data + begin;
    out->size = std::max<int64_t>(0, end - begin);
    out->whole = text.whole;
    return out;
  }
  TextBuilder b(arena);
  b.append(text, begin, end);
  return b.finish();
}

Origin origin_at(const Text& text, int64_t byte) {
  if (!text.run_count) return text.whole;
  return std::upper_bound(text.runs, text.runs + text.run_count, byte,
                          [](int64_t at, const Run& r) { return at < r.end; })
      ->origin;
}

Sequence* make_sequence(Arena& arena, const std::vector<Value>& values, Sequence::Form form) {
  Sequence* out = arena.make<Sequence>();
  Value* data = arena.make<Value>(static_cast<int64_t>(values.size()));
  std::copy(values.begin(), values.end(), data);
  out->form = form;
  out->data = data;
  out->size = static_cast<int64_t>(values.size());
  return out;
}

}  // namespace snug::jinja
