#include "layers/ops/embedding.h"

#include <algorithm>
#include <cstddef>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/kernels/loops.h"
#include "engine/kernels/row_room.h"
#include "layers/ops/embedding_simt.h"
#include "layers/ops/row_positions.h"

namespace snug {
namespace {

constexpr int64_t kChannels = 128;  // channels a task of the backward: two or more cache lines
constexpr int64_t kRowsAhead = 4;   // rows of a table called near before they are wanted

void call_near(const void* row, int64_t bytes) {
  const auto* from = static_cast<const std::byte*>(row);
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}

void check_batch(const View& rows, const char* argument, const View& tokens, int64_t c) {
  if (tokens.shape.rank() != 2)
    fail(ErrorCode::shape, "tokens of shape (B,T)", describe(tokens), "reshape the batch");
  expect_dtype(tokens, "tokens", {DType::i32});
  expect(rows, argument, {{"N", tokens.elements()}, {"C", c}});
}

// Threads cannot throw, so the whole batch is looked at before the work is shared.
void check_tokens(const View& tokens, int64_t vocabulary, int64_t positions, int64_t first,
                  const View& document_start) {
  const int64_t T = tokens.shape[1];
  int64_t longest = T;
  if (positions >= 0 && first + T > positions && document_start.defined()) {
    const auto* starts = document_start.as<int32_t>();
    longest = 0;
    for (int64_t i = 0; i < tokens.elements(); ++i)
      longest = std::max(longest, i % T + 1 - starts[i]);
  }
  if (positions >= 0 && (first < 0 || first + longest > positions))
    fail(ErrorCode::data, "positions of [0,P)=[0," + std::to_string(positions) + ")",
         "positions " + std::to_string(first) + " to " + std::to_string(first + longest - 1),
         "lower max_length, or use a model with more positions");
  const auto* ids = tokens.as<int32_t>();
  for (int64_t i = 0; i < tokens.elements(); ++i)
    if (ids[i] < 0 || ids[i] >= vocabulary)
      fail(ErrorCode::data, "tokens of [0,Vp)=[0," + std::to_string(vocabulary) + ")",
           "token " + std::to_string(ids[i]) + " in sequence " + std::to_string(i / T) +
               " at position " + std::to_string(first + i % T),
           "encode the data with the model's own tokenizer");
}

void check_types(const View& types, int64_t kinds) {
  const int64_t T = types.shape[1];
  const auto* type = types.as<int32_t>();
  for (int64_t i = 0; i < types.elements(); ++i)
    if (type[i] < 0 || type[i] >= kinds)
      fail(ErrorCode::data, "types of [0,K)=[0," + std::to_string(kinds) + ")",
           "type " + std::to_string(type[i]) + " in sequence " + std::to_string(i / T) +
               " at place " + std::to_string(i % T),
           "encode the data for this model, whose type_vocab_size is " + std::to_string(kinds));
}

int64_t bytes_of(const View& v) {
  return v.defined() ? v.bytes() : 0;
}

void expect_types(const View& types, const View& tokens) {
  if (!types.defined()) return;
  expect(types, "types", {{"B", tokens.shape[0]}, {"T", tokens.shape[1]}});
  expect_dtype(types, "types", {DType::i32});
}

// n values from element `at` on of a row whose dtype is known at run time, to floats and back.
struct RowLoops {
  void (*widen)(float* sum, const void* row, int64_t at, int64_t n);
  void (*add)(float* sum, const void* row, int64_t at, int64_t n);
  void (*round)(void* row, int64_t at, const float* sum, int64_t n);
};
RowLoops row_loops(const View& rows, const char* argument) {
  RowLoops loops{};
  dispatch_float(rows, argument, [&](auto tag) {
    using T = decltype(tag);
    loops = {[](float* sum, const void* row, int64_t at, int64_t n) {
               pair_loops<float, T>().cast(sum, static_cast<const T*>(row) + at, n);
             },
             [](float* sum, const void* row, int64_t at, int64_t n) {
               pair_loops<float, T>().add(sum, static_cast<const T*>(row) + at, n);
             },
             [](void* row, int64_t at, const float* sum, int64_t n) {
               pair_loops<T, float>().cast(static_cast<T*>(row) + at, sum, n);
             }};
  });
  return loops;
}

// The rows of a table, by their number.
struct TableRows {
  explicit TableRows(const View& table, int64_t c)
      : data(static_cast<std::byte*>(table.data)), bytes(c * size_of(table.dtype)) {}
  void* operator()(int64_t row) const { return data + row * bytes; }
  std::byte* data;
  int64_t bytes;
};

// dwtt = or += its rows of dy: a sum for each chunk of rows and type in `partial`, then the chunks.
// Types count from `first`; a row of another is passed over.
template <class D>
void add_types(int threads, const GradView& dwtt, const D* from, const View& types, int64_t first,
               const View& partial, int64_t n, int64_t c) {
  const RowSplit split(n);
  const int64_t width = dwtt.view.elements(), kinds = dwtt.view.shape[0];
  const auto* type = types.defined() ? types.as<const int32_t>() : nullptr;
  auto* sums = partial.as<float>();
  const auto add_row = pair_loops<float, D>().add;
  parallel_for(threads, split.chunks, [=](int64_t k) {
    float* sum = sums + k * width;
    std::fill(sum, sum + width, 0.0f);
    const int64_t end = std::min(n, (k + 1) * split.rows);
    for (int64_t row = k * split.rows; row < end; ++row) {
      const int64_t kind = type ? type[row] - first : 0;
      if (kind >= 0 && kind < kinds) add_row(sum + kind * c, from + row * c, c);
    }
  });
  dispatch_gradient(dwtt.view, "dwtt", [&](auto gradient) {
    auto* to = dwtt.view.as<decltype(gradient)>();
    parallel_chunks(threads, width, 256, [=, add = dwtt.add](int64_t begin, int64_t end) {
      add_chunks(to, add, sums, split.chunks, width, begin, end);
    });
  });
}

// Rows of dy in order of the row of a table that each is added to, then of their own number: what
// belongs together is side by side.
template <class Key>
void sort_rows(int64_t* order, int64_t n, Key&& key) {
  for (int64_t row = 0; row < n; ++row) order[row] = key(row) << 32 | row;
  std::sort(order, order + n);
}

// table[key] = or += sum of its rows of dy: in float from zero, onto what is there, rounded once.
template <class D>
void add_sorted_rows(int threads, bf16* table, bool add, const D* from, const int64_t* order,
                     int64_t n, int64_t c) {
  const auto add_row = pair_loops<float, D>().add;
  const auto add_sum = pair_loops<bf16, float>();
  parallel_chunks(threads, c, kChannels, [=](int64_t begin, int64_t end) {
    float sum[kChannels];
    for (int64_t i = 0; i < n;) {
      const int64_t key = order[i] >> 32;
      std::fill(sum, sum + (end - begin), 0.0f);
      for (; i < n && order[i] >> 32 == key; ++i)
        add_row(sum, from + (order[i] & 0xffffffff) * c + begin, end - begin);
      (add ? add_sum.add : add_sum.cast)(table + key * c + begin, sum, end - begin);
    }
  });
}

// Zero, for the rows that nothing is added to.
template <class G>
void clear_table(int threads, const View& table) {
  auto* to = table.as<G>();
  parallel_chunks(threads, table.elements(), 32 * 1024, [=](int64_t begin, int64_t end) {
    std::fill(to + begin, to + end, from_f32<G>(0.0f));
  });
}

}  // namespace

void embedding_forward(Context& ctx, const View& y, const View& tokens, const View& wte,
                       const View& wpe, const View& state, const View& document_start,
                       const View& types, const View& wtt, const FrontRows& front) {
  if (wte.shape.rank() != 2)
    fail(ErrorCode::shape, "wte of shape (Vp,C)", describe(wte), "check the weights");
  const int64_t vocabulary = wte.shape[0], c = wte.shape[1];
  check_batch(y, "y", tokens, c);
  expect_positions(state, document_start, tokens.shape[0], tokens.shape[1]);
  const int64_t positions = wpe.defined() ? wpe.shape[0] : -1;
  if (wpe.defined()) expect(wpe, "wpe", {{"P", positions}, {"C", c}});
  expect_types(types, tokens);
  const int64_t kinds = wtt.defined() ? wtt.shape[0] : 0;
  if (wtt.defined()) {
    expect(wtt, "wtt", {{"K", kinds}, {"C", c}});
    expect_dtype(wtt, "wtt", {wte.dtype});
    if (kinds < 1)
      fail(ErrorCode::shape, "a type at least", describe(wtt), "leave wtt undefined for no types");
  } else if (types.defined()) {
    fail(ErrorCode::usage, "a table wtt for the types of the tokens",
         describe(types) + " and no wtt", "leave types undefined for a model without them");
  }
  const bool in_front = front.table.defined();
  if (in_front) {
    expect(front.table, "front", {{"K", front.table.shape[0]}, {"C", c}});
    expect_dtype(front.table, "front", {wte.dtype});
  }
  require(in_front || front.beside == 1.0f, "rows that are not multiplied where others are");
  const int64_t n = y.shape[0], T = tokens.shape[1];
  const View& second = wpe.defined() ? wpe : wte;  // a dtype to dispatch on
  const RowLoops of_y = row_loops(y, "y"), of_wte = row_loops(wte, "wte"),
                 of_wpe = row_loops(second, "wpe");
  const int64_t tables = size_of(wte.dtype) + (wpe.defined() ? size_of(wpe.dtype) : 0);
  const int64_t sums =
      int64_t{wpe.defined()} + int64_t{wtt.defined()} + int64_t{front.beside != 1.0f};
  Op op(ctx, "embedding_forward",
        {.flops = sums * n * c,
         .bytes = tokens.bytes() + y.bytes() + n * c * tables + bytes_of(types) + bytes_of(wtt),
         .link_bytes = wte.with_host ? n * c * size_of(wte.dtype) : 0});
  if (!op.run()) return;
  const int64_t first = ctx.host_reads() ? first_position(state) : 0;
  const int64_t known = vocabulary + (in_front ? front.table.shape[0] : 0);
  if (ctx.host_reads()) check_tokens(tokens, known, positions, first, document_start);
  if (ctx.host_reads() && document_start.defined())
    check_document_start(document_start, tokens.shape[0], T);
  if (ctx.host_reads() && types.defined()) check_types(types, kinds);
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) {
      embedding_forward_on(queue, y, tokens, wte, wpe, state, document_start, types, wtt, front);
    });
  const auto* ids = tokens.as<int32_t>();
  const auto* type = types.defined() ? types.as<int32_t>() : nullptr;
  const RowPositions position(first, T, document_start);
  const TableRows to(y, c), words(wte, c), ahead(in_front ? front.table : wte, c), place(second, c),
      kind(wtt.defined() ? wtt : wte, c);
  const auto token = [=](int64_t id) {
    return id < vocabulary ? words(id) : ahead(id - vocabulary);
  };
  // f(row) for all rows. The rows of tokens lie anywhere: no hardware foresees them.
  const auto each_row = [&](auto&& f) {
    parallel_chunks(ctx.threads(), n, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        if (row + kRowsAhead < n) call_near(token(ids[row + kRowsAhead]), words.bytes);
        f(row);
      }
    });
  };
  if (!wtt.defined() && front.beside == 1.0f && wte.dtype == y.dtype && second.dtype == y.dtype) {
    dispatch_float(y, "y", [&](auto tag) {
      using V = decltype(tag);
      const auto sum = float_loops<V>().sum;
      const auto copy = pair_loops<V, V>().cast;
      each_row([&](int64_t row) {
        auto* const out = static_cast<V*>(to(row));
        const auto* const of_token = static_cast<const V*>(token(ids[row]));
        if (wpe.defined())
          sum(out, of_token, static_cast<const V*>(place(position(row))), c);
        else
          copy(out, of_token, c);
      });
    });
    return;
  }
  // (token + type) + place: in float, rounded once.
  each_row([&](int64_t row) {
    constexpr int64_t kPiece = 512;
    float sum[kPiece];
    for (int64_t at = 0; at < c; at += kPiece) {
      const int64_t m = std::min(kPiece, c - at);
      of_wte.widen(sum, token(ids[row]), at, m);
      for (int64_t i = 0; i < m && ids[row] < vocabulary && front.beside != 1.0f; ++i)
        sum[i] *= front.beside;
      if (wtt.defined()) of_wte.add(sum, kind(type ? type[row] : 0), at, m);
      if (wpe.defined()) of_wpe.add(sum, place(position(row)), at, m);
      of_y.round(to(row), at, sum, m);
    }
  });
}

void embedding_backward(Context& ctx, const GradView& dwte, const GradView& dwpe, const View& dy,
                        const View& tokens, const View& state, const View& document_start,
                        const View& types, const GradView& dwtt) {
  const bool want_token = dwte.view.defined(), want_place = dwpe.view.defined(),
             want_type = dwtt.view.defined();
  if (!want_token && !want_place && !want_type) return;
  if (dy.shape.rank() != 2)
    fail(ErrorCode::shape, "dy of shape (N,C)", describe(dy), "reshape it to rows and columns");
  const int64_t c = dy.shape[1];
  check_batch(dy, "dy", tokens, c);
  expect_positions(state, document_start, tokens.shape[0], tokens.shape[1]);
  const auto check_table = [&](const View& table, const char* argument, const char* letter) {
    expect(table, argument, {{letter, table.shape[0]}, {"C", c}});
    expect_gradient_dtype(ctx, table, argument);
  };
  if (want_token) check_table(dwte.view, "dwte", "Vp");
  if (want_place) check_table(dwpe.view, "dwpe", "P");
  expect_types(types, tokens);
  if (want_type) check_table(dwtt.view, "dwtt", "K");
  const int64_t kinds = want_type ? dwtt.view.shape[0] : 0;
  if (want_type && kinds < 1)
    fail(ErrorCode::shape, "a type at least", describe(dwtt.view), "leave dwtt undefined");
  const int64_t vocabulary = want_token ? dwte.view.shape[0] : INT32_MAX;
  const int64_t positions = want_place ? dwpe.view.shape[0] : -1;
  const int64_t n = dy.shape[0], B = tokens.shape[0], T = tokens.shape[1];

  const auto rounds = [](const GradView& g) {
    return g.view.defined() && g.view.dtype == DType::bf16;
  };
  expect_float(dy, "dy");
  static const Name kOrder("embedding_backward.order"), kTypes("embedding_backward.types");
  Tensor order, partial;
  if (ctx.by_kernels() ? want_token || document_start.defined() : rounds(dwte) || rounds(dwpe))
    order = ctx.tensor(kOrder, {ctx.by_kernels() ? embedding_sort_words(n) : n}, DType::i64,
                       Category::workspace);
  if (want_type)
    partial = ctx.tensor(kTypes, {most_row_chunks(n), kinds, c}, DType::f32, Category::workspace);
  const auto traffic = [&](const GradView& g) {
    return g.view.defined() ? dy.bytes() + 2 * size_of(g.view.dtype) * n * c : int64_t{0};
  };
  const int64_t sums = (want_token ? 1 : 0) + (want_place ? 1 : 0) + (want_type ? 1 : 0);
  const int64_t of_types =
      want_type ? bytes_of(types) + dy.bytes() + (dwtt.add ? 2 : 1) * dwtt.view.bytes() : 0;
  Op op(ctx, "embedding_backward",
        {.flops = sums * n * c,
         .bytes = tokens.bytes() + traffic(dwte) + traffic(dwpe) +
                  (want_token && !dwte.add ? dwte.view.bytes() : 0) + of_types});
  if (!op.run()) return;
  const int64_t first = ctx.host_reads() ? first_position(state) : 0;
  if (ctx.host_reads()) check_tokens(tokens, vocabulary, positions, first, document_start);
  if (ctx.host_reads() && document_start.defined()) check_document_start(document_start, B, T);
  if (ctx.host_reads() && want_type && types.defined()) check_types(types, kinds);
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) {
      embedding_backward_on(queue, dwte, dwpe, dy, tokens, state, document_start, order);
      if (want_type) embedding_type_gradient_on(queue, dwtt, dy, types, partial);
    });
  dispatch_float(dy, "dy", [&](auto tag) {
    using D = decltype(tag);
    const auto* ids = tokens.as<int32_t>();
    const D* from = dy.as<D>();
    if (want_type) add_types(ctx.threads(), dwtt, from, types, 0, partial, n, c);
    const RowPositions position(first, T, document_start);
    const auto add_rounded = [&](const GradView& g, const auto& key) {
      auto* rows = order.view().as<int64_t>();
      sort_rows(rows, n, key);
      if (!g.add) clear_table<bf16>(ctx.threads(), g.view);
      add_sorted_rows(ctx.threads(), g.view.as<bf16>(), g.add, from, rows, n, c);
    };
    const auto add_row = pair_loops<float, D>().add;
    if (rounds(dwte)) {
      add_rounded(dwte, [=](int64_t row) { return int64_t{ids[row]}; });
    } else if (want_token) {
      auto* to = dwte.view.as<float>();
      if (!dwte.add) clear_table<float>(ctx.threads(), dwte.view);
      parallel_chunks(ctx.threads(), c, kChannels, [=](int64_t begin, int64_t end) {
        for (int64_t row = 0; row < n; ++row) {
          if (row + kRowsAhead < n)
            call_near(to + ids[row + kRowsAhead] * c + begin,
                      (end - begin) * int64_t{sizeof(float)});
          add_row(to + ids[row] * c + begin, from + row * c + begin, end - begin);
        }
      });
    }
    if (rounds(dwpe)) {
      add_rounded(dwpe, position);
    } else if (want_place && document_start.defined()) {
      auto* to = dwpe.view.as<float>();
      parallel_chunks(ctx.threads(), c, kChannels, [=, add = dwpe.add](int64_t begin, int64_t end) {
        for (int64_t p = 0; p < positions && !add; ++p)
          std::fill(to + p * c + begin, to + p * c + end, 0.0f);
        for (int64_t row = 0; row < n; ++row)
          add_row(to + position(row) * c + begin, from + row * c + begin, end - begin);
      });
    } else if (want_place) {
      auto* to = dwpe.view.as<float>();
      parallel_for(ctx.threads(), positions, [=, add = dwpe.add](int64_t p) {
        float* sum = to + p * c;
        if (!add) std::fill(sum, sum + c, 0.0f);
        const int64_t t = p - first;
        if (t < 0 || t >= T) return;
        for (int64_t b = 0; b < B; ++b) add_row(sum, from + (b * T + t) * c, c);
      });
    }
  });
}

void embedding_front_backward(Context& ctx, const GradView& dfront, const View& dy,
                              const View& tokens, int64_t first) {
  if (dy.shape.rank() != 2)
    fail(ErrorCode::shape, "dy of shape (N,C)", describe(dy), "reshape it to rows and columns");
  const int64_t n = dy.shape[0], c = dy.shape[1];
  check_batch(dy, "dy", tokens, c);
  const int64_t kinds = dfront.view.shape[0];
  expect(dfront.view, "dfront", {{"K", kinds}, {"C", c}});
  expect_gradient_dtype(ctx, dfront.view, "dfront");
  expect_float(dy, "dy");
  static const Name kPartial("embedding_front_backward.sums");
  const Tensor partial =
      ctx.tensor(kPartial, {most_row_chunks(n), kinds, c}, DType::f32, Category::workspace);
  // Of rows of sequences, which each have K of them at most.
  const int64_t named = std::min(n, tokens.shape[0] * kinds);
  Op op(ctx, "embedding_front_backward",
        {.flops = named * c,
         .bytes = tokens.bytes() + named * c * size_of(dy.dtype) +
                  (dfront.add ? 2 : 1) * dfront.view.bytes()});
  if (!op.run()) return;
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) {
      embedding_type_gradient_on(queue, dfront, dy, tokens, partial, first);
    });
  dispatch_float(dy, "dy", [&](auto tag) {
    using D = decltype(tag);
    add_types(ctx.threads(), dfront, dy.as<D>(), tokens, first, partial, n, c);
  });
}

}  // namespace snug
