#include "quant/coder.h"

#include <algorithm>
#include <cstring>

#include "engine/core/units.h"
#include "engine/memory/context.h"
#include "quant/quantile.h"
#include "quant/quantise.h"

namespace snug {
namespace {

// body(ctx) on plan and then on the CPU, in an arena of what it recorded.
template <class F>
void run_alone(int threads, F&& body) {
  Schedule schedule;
  const int program = schedule.add(Name("codes"), -1, false);
  Settings settings;
  settings.threads = threads;
  Context plan(Place::plan, settings);
  plan.program(schedule, program, [&] { body(plan); });
  schedule.pack({.seconds = 0});
  Context cpu(Place::cpu, settings);
  cpu.reserve(schedule);
  cpu.program(schedule, program, [&] { body(cpu); });
}

struct Tensors {
  Tensor x, codes, scales, scale_codes, offset, book;

  Tensors(Context& ctx, int64_t n, DType dtype, const CodeSpec& spec) {
    const auto make = [&](const char* name, Shape shape, DType t) {
      return ctx.tensor(Name(name), shape, t, Category::workspace);
    };
    const int64_t blocks = spec.blocks(n);
    x = make("x", {n}, dtype);
    codes = make("codes", {spec.code_bytes(n)}, DType::u8);
    if (spec.doubled) {
      scale_codes = make("scale_codes", {blocks}, DType::u8);
      scales = make("scales", {ceil_div(blocks, kDoubledBlock)}, DType::f32);
      offset = make("offset", {1}, DType::f32);
    } else {
      scales =
          make("scales", spec.codec->scales() == 2 ? Shape{blocks, 2} : Shape{blocks}, DType::f32);
    }
    if (spec.codec->book_of_data()) book = make("book", {kMaxCodes}, DType::f32);
  }
  Coded coded() const {
    Coded c;
    c.codes = codes;
    c.scales = scales;
    if (scale_codes.defined()) {
      c.scale_codes = scale_codes;
      c.offset = offset;
    }
    if (book.defined()) c.book = book;
    return c;
  }
};

template <class T>
void read_into(Context& ctx, std::vector<T>& out, const Tensor& from) {
  if (!from.defined()) return;
  out.resize(static_cast<size_t>(from.view().bytes()) / sizeof(T));
  ctx.read(out.data(), from);
}

}  // namespace

Codes encode_tensor(const void* x, int64_t n, DType dtype, const CodeSpec& spec, int threads,
                    std::vector<std::byte>& back) {
  Codes out;
  run_alone(threads, [&](Context& ctx) {
    const Tensors t(ctx, n, dtype, spec);
    if (!ctx.planning()) ctx.write(t.x, x);
    if (t.book.defined()) quantile_book(ctx, t.book, t.x, spec);
    quantise(ctx, t.coded(), t.x, spec);
    dequantise(ctx, t.x, t.coded(), spec);
    if (ctx.planning()) return;
    read_into(ctx, out.codes, t.codes);
    read_into(ctx, out.scales, t.scales);
    read_into(ctx, out.scale_codes, t.scale_codes);
    read_into(ctx, out.book, t.book);
    read_into(ctx, back, t.x);
    if (t.offset.defined()) ctx.read(&out.offset, t.offset);
  });
  return out;
}

std::vector<std::byte> decode_tensor(const Codes& from, int64_t n, DType dtype,
                                     const CodeSpec& spec, int threads) {
  std::vector<std::byte> back;
  run_alone(threads, [&](Context& ctx) {
    const Tensors t(ctx, n, dtype, spec);
    if (!ctx.planning()) {
      ctx.write(t.codes, from.codes.data());
      ctx.write(t.scales, from.scales.data());
      if (t.book.defined()) ctx.write(t.book, from.book.data());
      if (spec.doubled) {
        ctx.write(t.scale_codes, from.scale_codes.data());
        ctx.write(t.offset, &from.offset);
      }
    }
    dequantise(ctx, t.x, t.coded(), spec);
    if (!ctx.planning()) read_into(ctx, back, t.x);
  });
  return back;
}

EntryTable entry_table(const CodeSpec& spec, const Codes& from) {
  const Codec& c = *spec.codec;
  EntryTable table;
  if (c.has_book()) {
    const CodeBook book =
        c.book != nullptr ? *c.book : make_book(from.book.data(), nullptr, kMaxCodes);
    const double unit = c.rule == ScaleRule::peak ? static_cast<double>(c.peak) : 1.0;
    for (int k = 0; k < book.size; ++k) {
      const double place = static_cast<double>(book.sorted[k]) / unit;
      if (table.places.empty() || table.places.back() != place) table.places.push_back(place);
      table.of_code[book.codes[k]] = static_cast<int>(table.places.size()) - 1;
    }
    return table;
  }
  const bool integer = c.rule == ScaleRule::integer;
  for (int k = integer ? -127 : 0; k <= (integer ? 127 : 255); ++k) {
    table.of_code[static_cast<uint8_t>(k)] = static_cast<int>(table.places.size());
    table.places.push_back(integer ? k / 127.0 : k / 255.0);
  }
  return table;
}

}  // namespace snug
