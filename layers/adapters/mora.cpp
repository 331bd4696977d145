// MoRA: y = x W^T + b + lay(M squeeze(x')), with x' = drop(x) and a square matrix M of side s, which is 0 at first,
// in the place of LoRA's two: s = floor(sqrt((in + out) r) + 1/2), so that it has as many numbers as they. Jiang et
// al., "MoRA", arXiv:2405.12130, in the form of the authors' fork of PEFT (use_mora, mora_type). Neither
// squeeze nor lay has parameters, and lora_alpha no part.
//
//   mora_type  squeeze                                             lay
//   1          columns folded onto s, from their beginning         s columns again and again
//              again until s divides their number
//   6          the same columns as groups of s, group g turned     the groups side by side, again and again;
//              by g theta_i, theta_i = 10000^(-2i/s), in the       those behind the last column that is made
//              pairs of rope.h; s is even; M reads each group      are not there
//
//   stage    reads  writes         backward
//   *_mora   x      u (N,g s)      dx += drop(du turned back and laid out), which reads no input
//   *        x, u   y (N,out)      dz = dy folded onto g s;  dM (+)= dz^T u over rows and groups;  du = dz M;
//                                  dx += dy W
//
// Modules of a layer with equal sides and groups read one u; g = 1 of type 1.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/blas/matmul.h"
#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/kernels/kernels.h"
#include "layers/adapters/input_dropout.h"
#include "layers/adapters/rows.h"
#include "layers/ops/column_fold.h"
#include "layers/ops/rope.h"

namespace snug {
namespace {

constexpr int64_t kMostTurned = 1024;  // side, of rope.h

int64_t side_of(int64_t in, int64_t out, int64_t r, bool turned) {
  const double root = std::sqrt(static_cast<double>(in + out) * static_cast<double>(r));
  const auto side = static_cast<int64_t>(root + 0.5);
  return turned ? side / 2 * 2 : side;
}

// The largest r whose side is at most `most`.
int64_t largest_rank(int64_t in, int64_t out, int64_t most, bool turned) {
  const double side = static_cast<double>(most);
  auto r = static_cast<int64_t>(side * side / static_cast<double>(in + out)) + 2;
  while (r > 1 && side_of(in, out, r, turned) > most) --r;
  return r;
}

// What M reads of x.
struct Squeeze {
  int64_t s = 0, groups = 1;
  int64_t in = 0;  // of x; of type 6 the first that any group has
  bool turned = false;

  int64_t width() const { return groups * s; }
  FoldedColumns columns() const { return {0, in, true}; }
  RopeSpec angles() const {
    RopeSpec spec{1, 0, s, {}, 1};
    for (int64_t i = 0; i < s; i += 2)
      spec.inverse_frequencies.push_back(
          1.0f / std::pow(10000.0f, static_cast<float>(i) / static_cast<float>(s)));
    return spec;
  }
  bool operator==(const Squeeze&) const = default;
};

Squeeze squeeze_of(int64_t in, const AdapterPiece& piece, bool turned) {
  Squeeze q{side_of(in, piece.rows, piece.rank, turned), 1, in, turned};
  if (!turned) return q;
  q.groups = std::min(ceil_div(in, q.s), ceil_div(piece.rows, q.s));
  q.in = std::min(in, q.width());
  return q;
}

class MoraSum : public AdapterSum {
 public:
  struct Squeezed {
    Squeeze by;
    RopeSpec angles;
    int u = -1;  // slot (N,width)
  };
  struct Piece {
    int m = -1;  // parameter (s,s)
    int64_t row = 0, rows = 0;
    size_t of = 0;  // squeezed
  };
  int x = -1;
  std::vector<Squeezed> squeezed;
  std::vector<Piece> pieces;
  InputDropout dropout;
  Name z, dz;

  void squeeze(Context& ctx, Pass& p) const {
    if (!p.environment<Runtime>().adapters) return;
    Tensor made;
    const View read = dropout.forward(ctx, p, p.view(x), made);
    for (const Squeezed& q : squeezed) {
      const View u = p.view(q.u);
      column_fold(ctx, u, read, q.by.columns());
      if (!q.by.turned) continue;
      const View groups = of_groups(u, q.by);
      rope_forward(ctx, groups, groups, u.shape[0], q.by.groups, q.angles, {});
    }
  }
  void squeeze_backward(Context& ctx, Pass& p) const {
    p.done(x);
    if (!p.wants_gradient(x)) return;
    const GradView dx = p.open_gradient(ctx, x);
    Tensor made;
    GradView to = dropout.open(ctx, dx, made);
    const GradView written = to;
    for (const Squeezed& q : squeezed) {
      const View du = p.gradient(q.u);
      if (q.by.turned) {
        const View groups = of_groups(du, q.by);
        rope_backward(ctx, groups, groups, du.shape[0], q.by.groups, q.angles, {});
      }
      if (!to.add && q.by.in < to.view.shape[1]) {
        fill_zero(ctx, to.view);  // columns that no group has
        to.add = true;
      }
      column_lay(ctx, to, du, q.by.columns());
      to.add = true;
    }
    dropout.close(ctx, p, dx, written);
  }
  void forward(Context& ctx, Pass& p, const View& y) const override {
    Runtime& rt = p.environment<Runtime>();
    if (!rt.adapters) return;
    for (const Piece& piece : pieces) {
      const Squeezed& q = squeezed[piece.of];
      const View u = p.view(q.u);
      const Tensor made = ctx.tensor(z, u.shape, u.dtype, Category::workspace);
      matmul(ctx, of_groups(made, q.by), of_groups(u, q.by), rt.params.acquire(ctx, piece.m),
             {.transpose_b = true});
      rt.params.release(ctx, piece.m);
      column_lay(ctx, {y, true}, made, {piece.row, piece.rows});
    }
  }
  void backward(Context& ctx, Pass& p, const View& dy) const override {
    Runtime& rt = p.environment<Runtime>();
    for (size_t k = 0; k < squeezed.size(); ++k) {
      const Squeezed& q = squeezed[k];
      const View read = of_groups(p.need(ctx, q.u), q.by);
      const bool wanted = p.wants_gradient(q.u);
      for (const Piece& piece : pieces) {
        if (piece.of != k) continue;
        const Tensor own =
            ctx.tensor(dz, {dy.shape[0], q.by.width()}, dy.dtype, Category::workspace);
        column_fold(ctx, own, dy, {piece.row, piece.rows});
        const View back = of_groups(own, q.by);
        const GradView dm = rt.grads->open(ctx, piece.m);
        matmul(ctx, dm.view, back, read, {.transpose_a = true, .add = dm.add});
        rt.grads->close(ctx, piece.m);
        if (!wanted) continue;
        const GradView du = p.open_gradient(ctx, q.u);
        matmul(ctx, of_groups(du.view, q.by), back, rt.params.acquire(ctx, piece.m),
               {.add = du.add});
        rt.params.release(ctx, piece.m);
      }
      p.done(q.u);
    }
  }

 private:
  static View of_groups(const View& v, const Squeeze& q) {
    return v.reshaped({v.shape[0] * q.groups, q.s});
  }
};

class Mora : public AdapterKind {
 public:
  explicit Mora(bool turned) : turned_(turned) {}
  std::vector<AdapterParam> params(const AdaptedLayer& layer) const override {
    std::vector<AdapterParam> list;
    const std::vector<AdapterPiece>& pieces = layer.adapter->pieces;
    for (size_t k = 0; k < pieces.size(); ++k) {
      const int64_t s = side_of(layer.in, pieces[k].rows, pieces[k].rank, turned_);
      check_side(layer.in, pieces[k], s);
      AdapterParam m{.name = layer.name + ".lora_A",
                     .end = ".lora_A.weight",
                     .shape = {s, s},
                     .piece = static_cast<int>(k),
                     .by_rows = true,
                     .laid = true,
                     .other_end = ".lora_B.weight"};
      if (pieces.size() > 1) m.name += "." + pieces[k].name;
      m.name += ".weight";
      list.push_back(std::move(m));
    }
    return list;
  }
  std::shared_ptr<const AdapterSum> sum(Wiring& w, const AdaptedLayer& layer,
                                        int x) const override {
    auto made = std::make_shared<MoraSum>();
    const std::string own = layer.stage + "_mora";
    made->x = x;
    made->dropout = InputDropout(w, layer.adapter->dropout, own);
    for (const AdapterParam& param : params(layer)) {
      const AdapterPiece& piece = layer.adapter->pieces[static_cast<size_t>(param.piece)];
      const Squeeze by = squeeze_of(layer.in, piece, turned_);
      size_t of = 0;
      while (of < made->squeezed.size() && !(made->squeezed[of].by == by)) ++of;
      if (of == made->squeezed.size()) {
        const std::string slot = of == 0 ? own : own + "_" + piece.name;
        made->squeezed.push_back(
            {by, turned_ ? by.angles() : RopeSpec{}, w.rows(slot, by.width())});
        made->slots.push_back(made->squeezed.back().u);
      }
      made->params.push_back(add_adapter_param(w, param));
      made->pieces.push_back({made->params.back(), piece.row, piece.rows, of});
    }
    made->z = join(w.name, own + "_z");
    made->dz = join(w.name, own + "_dz");
    const std::shared_ptr<const MoraSum> all = made;
    w.body.add_stage({.name = Name(own),
                      .inputs = {x},
                      .outputs = made->slots,
                      .run = [all](Context& ctx, Pass& p) { all->squeeze(ctx, p); },
                      .backward = [all](Context& ctx, Pass& p) { all->squeeze_backward(ctx, p); },
                      .gradients = {x}});
    return made;
  }
  // Of the columns of W that a column of u is a sum of, or turned from, and of the rows that a row of M is laid on.
  MergedModule merged(const AdaptedLayer& layer, size_t k,
                      const TensorValues& values) const override {
    const AdapterPiece& piece = layer.adapter->pieces[k];
    const Squeeze q = squeeze_of(layer.in, piece, turned_);
    const std::vector<float> m = values(".lora_A.weight");
    // What M makes of one column of group g alone.
    const auto entry = [&](int64_t row, int64_t g, int64_t j) {
      const auto at = [&](int64_t c) {
        return static_cast<double>(m[static_cast<size_t>(row * q.s + c)]);
      };
      if (!q.turned) return at(j);
      const int64_t half = q.s / 2, i = j % half;
      const double angle =
          static_cast<double>(g) *
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(q.s));
      return j < half ? at(j) * std::cos(angle) + at(j + half) * std::sin(angle)
                      : at(j) * std::cos(angle) - at(j - half) * std::sin(angle);
    };
    const int64_t padded = q.turned ? q.width() : ceil_div(layer.in, q.s) * q.s;
    MergedModule made;
    made.added.resize(static_cast<size_t>(piece.rows * layer.in));
    std::vector<double> sums(static_cast<size_t>(layer.in));
    for (int64_t row = 0; row < piece.rows; ++row) {
      const int64_t place = row % q.width(), g = place / q.s;
      std::fill(sums.begin(), sums.end(), 0.0);
      const int64_t first = q.turned ? g * q.s : 0, last = q.turned ? first + q.s : padded;
      for (int64_t c = first; c < last; ++c)
        sums[static_cast<size_t>(c % layer.in)] += entry(place % q.s, g, c % q.s);
      for (int64_t c = 0; c < layer.in; ++c)
        made.added[static_cast<size_t>(row * layer.in + c)] =
            static_cast<float>(sums[static_cast<size_t>(c)]);
    }
    return made;
  }

 private:
  // What is read is folded or taken from its beginning again once at most, as the fork does.
  void check_side(int64_t in, const AdapterPiece& piece, int64_t s) const {
    const int64_t most = turned_ ? std::min(2 * in, kMostTurned) : 2 * in;
    const std::string found = fmt::format("lora_r {}, of side {} for {} to {} of {}", piece.rank, s,
                                          in, piece.rows, piece.name);
    require(s >= 1, "a side");
    if (s > most)
      fail(ErrorCode::usage,
           fmt::format("square matrices of peft: mora of a side of at most {}, {}", most,
                       most == 2 * in ? "twice what the module reads" : "which mora_type 6 turns"),
           found, fmt::format("lora_r={}", largest_rank(in, piece.rows, most, turned_)));
  }
  bool turned_;
};

const Mora kSharing(false), kTurning(true);

}  // namespace

const AdapterMethod& mora_method() {
  using C = PeftConfig;
  static const AdapterMethod row{
      .name = "mora",
      .words = "mora",
      .type = "LORA",
      .title = "MoRA",
      .doc =
          "mora, one square matrix beside each of its linear layers, of as many numbers as lora's "
          "two of rank lora_r",
      .fields =
          {{"r", "lora_r", &C::lora_r, 1, 1 << 20},
           {"lora_dropout", "lora_dropout", &C::lora_dropout, 0, 1},
           {.key = "mora_type",
            .run_key = "mora_type",
            .value = &C::mora_type,
            .least = 1,
            .below = 7,
            .said = {.doc = "what its matrices read: 1, columns folded onto their side, for large "
                            "ranks; 6, groups of columns, each turned by an angle of its own, for "
                            "small ones",
                     .example = "6",
                     .least = 1,
                     .most = 6}}},
      .shared =
          "target_modules modules_to_save layers_to_transform rank_pattern bias fan_in_fan_out",
      .indifferent =
          "lora_alpha alpha_pattern use_rslora init_lora_weights exclude_modules megatron_core "
          "loftq_config",
      .refused = "use_dora megatron_config",
      .constants = {{"use_mora", "true"}, {"layers_pattern", "null"}},
      .markers = {".lora_A.", ".lora_B."},
      .flag = "use_mora",
      .bounded = false,
      .kind = [](const C& c) -> const AdapterKind& {
        if (c.mora_type == 1) return kSharing;
        if (c.mora_type == 6) return kTurning;
        fail(ErrorCode::unsupported, "mora_type 1, which folds, or 6, which turns",
             fmt::format("mora_type {}, which is not built", c.mora_type), "mora_type=6");
      },
      .settle = [](const C&, double, AdapterPiece&, LinearAdapter&) {},
      .text =
          [](const C& c) {
            return fmt::format("mora {} r {} dropout {}", c.mora_type, c.lora_r, c.lora_dropout);
          }};
  return row;
}

}  // namespace snug
