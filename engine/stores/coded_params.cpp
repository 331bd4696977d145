#include "engine/stores/coded_params.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/core/error.h"

namespace snug {
namespace {

int64_t width_of(const ParamInfo& p) {
  return p.elements() / p.shape[0];
}

int64_t elements_of(const ParamInfo& p, size_t k) {
  return width_of(p) * p.code_rows[k];
}

}  // namespace

CodedParamStore::CodedParamStore(Context& ctx, const ParamTable& table, DType dtype,
                                 ParamStore& others, bool with_host)
    : table_(table), dtype_(dtype), others_(others), decoded_(static_cast<size_t>(table.size())) {
  require(table.codes() != nullptr && !table.coded().empty(), "weights in codes");
  for (const int i : table.coded())
    for (const int64_t rows : table[i].code_rows)
      most_bytes_ = std::max(most_bytes_, table.codes()->bytes(rows, width_of(table[i])));
  if (!with_host) {
    codes_ = ctx.tensor(Name("weights.codes"), {table.coded_bytes()}, DType::u8, Category::weights);
    return;
  }
  for (const int i : table.coded()) {
    const ParamInfo& p = table[i];
    require(p.part >= 0, "codes with the host of what is of a part");
    if (runs_.empty() || runs_.back().part != p.part) {
      Run run{};
      run.part = p.part;
      run.name = Name(fmt::format("weights.codes.part{}", p.part));
      run.first = p.offset;
      runs_.push_back(std::move(run));
    }
    runs_.back().elements = table.end_of(i) - runs_.back().first;
  }
  for (Run& run : runs_) run.own = ctx.host_tensor(run.name, {run.elements}, DType::u8);
}

// Where they rest, or where they are now.
View CodedParamStore::codes_of(const ParamInfo& p, bool resting) const {
  if (codes_.defined()) return codes_.view().rows(p.offset, p.code_bytes);
  const auto run =
      std::find_if(runs_.begin(), runs_.end(), [&](const Run& r) { return r.part == p.part; });
  require(run != runs_.end(), "codes of a part");
  const Tensor& all = resting ? run->own : run->device;
  require(all.defined(), "codes to be fetched before their weight is acquired");
  return all.view().rows(p.offset - run->first, p.code_bytes);
}

View CodedParamStore::acquire(Context& ctx, int param) {
  const ParamInfo& p = table_[param];
  if (!p.coded()) return others_.acquire(ctx, param);
  for (Run& run : runs_)
    if (run.part == p.part) arrive(ctx, run);
  const View codes = codes_of(p, false);
  Tensor& to = decoded_[static_cast<size_t>(param)];
  to.reset();  // of an abandoned program
  to = ctx.tensor(p.name, p.shape, dtype_, Category::workspace);
  const int64_t width = width_of(p);
  int64_t row = 0, byte = 0;
  for (const int64_t rows : p.code_rows) {
    const int64_t bytes = table_.codes()->bytes(rows, width);
    table_.codes()->decode(ctx, to.view().rows(row, rows).reshaped({rows, width}),
                           codes.rows(byte, bytes));
    row += rows;
    byte += bytes;
  }
  return to.view();
}

Int8Weight CodedParamStore::acquire_int8(Context& ctx, int param) {
  const ParamInfo& p = table_[param];
  Int8Weight weight;
  if (!p.coded()) return weight;
  for (Run& run : runs_)
    if (run.part == p.part) arrive(ctx, run);
  const View codes = codes_of(p, false);
  int64_t byte = 0;
  for (const int64_t rows : p.code_rows) {
    const int64_t bytes = table_.codes()->bytes(rows, width_of(p));
    const Int8Weight::Rows piece =
        table_.codes()->int8_rows(codes.rows(byte, bytes), rows, width_of(p));
    if (!piece.codes.defined()) return weight;
    require(weight.count < static_cast<int>(weight.pieces.size()), "a weight of few pieces");
    weight.pieces[static_cast<size_t>(weight.count++)] = piece;
    byte += bytes;
  }
  weight.threshold = table_.codes()->threshold();
  return weight;
}

void CodedParamStore::release(Context& ctx, int param) {
  if (!table_[param].coded()) return others_.release(ctx, param);
  decoded_[static_cast<size_t>(param)].reset();
}

void CodedParamStore::fetch_part(Context& ctx, int part) {
  others_.fetch_part(ctx, part);
  for (Run& run : runs_) {
    if (run.part != part) continue;
    run.device.reset();  // of an abandoned program
    fetch(ctx, run, run.own, DType::u8, Category::weights);
  }
}

void CodedParamStore::drop_part(Context& ctx, int part) {
  others_.drop_part(ctx, part);
  for (Run& run : runs_)
    if (run.part == part) {
      arrive(ctx, run);
      run.device.reset();
    }
}

void CodedParamStore::encode(Context& ctx, int param, size_t k,
                             const std::function<void(float*)>& fill) {
  const int64_t rows = table_[param].code_rows[k], n = elements_of(table_[param], k);
  const View codes = resting(param, k);
  const Tensor staging = ctx.tensor(Name("weights.staging"), {rows, width_of(table_[param])},
                                    DType::f32, Category::workspace);
  if (!ctx.planning()) {
    if (ctx.host_reads()) {
      fill(staging.view().as<float>());
    } else {
      std::vector<float> values(static_cast<size_t>(n));
      fill(values.data());
      ctx.write(staging, values.data());
    }
  }
  if (codes_.defined()) {
    table_.codes()->encode(ctx, codes, staging);
    return;
  }
  const Tensor room =
      ctx.tensor(Name("weights.staged_codes"), {most_bytes_}, DType::u8, Category::workspace);
  const View made = room.view().rows(0, codes.elements());
  table_.codes()->encode(ctx, made, staging);
  if (!ctx.planning()) ctx.read(codes.data, made);
}

void CodedParamStore::put(Context& ctx, int param, size_t k, const void* bytes) {
  const View codes = resting(param, k);
  if (codes_.defined())
    ctx.write(codes, bytes);
  else
    std::memcpy(codes.data, bytes, static_cast<size_t>(codes.bytes()));
}

View CodedParamStore::resting(int param, size_t k) const {
  const ParamInfo& p = table_[param];
  int64_t byte = 0;
  for (size_t before = 0; before < k; ++before)
    byte += table_.codes()->bytes(p.code_rows[before], width_of(p));
  return codes_of(p, true).rows(byte, table_.codes()->bytes(p.code_rows[k], width_of(p)));
}

std::pair<int, size_t> CodedParamStore::largest() const {
  std::pair<int, size_t> most{table_.coded().front(), 0};
  for (const int i : table_.coded())
    for (size_t k = 0; k < table_[i].code_rows.size(); ++k)
      if (elements_of(table_[i], k) > elements_of(table_[most.first], most.second)) most = {i, k};
  return most;
}

}  // namespace snug
