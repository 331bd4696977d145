// A base as its codes decode to, for files: what it does with values that codes have none for.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "layers/models/model.h"
#include "tests/support/errors.h"
#include "tests/tools/session_case.h"
#include "tools/convert/decoded_base.h"

namespace snug {
namespace {

TEST(DecodedBases, RefuseWhatIsNotFinite) {
  const Model model(test::tiny_spec({.C = 192}), parse_precision("fp32"));
  const DecodedBase base(model.spec(), "nf4");
  const ParamTable& table = model.params();
  int coded = 0;
  for (int i = 0; i < table.size(); ++i) {
    if (!base.codes(table[i])) continue;
    ++coded;
    const int64_t n = table[i].real_elements();
    std::vector<float> values(static_cast<size_t>(n), 0.5f);
    SafeTensor t;
    t.name = "w";
    t.shape = {table[i].shape[0], n / table[i].shape[0]};
    t.data = reinterpret_cast<const uint8_t*>(values.data());
    t.bytes = n * 4;
    const FilePiece piece{.names = {"w"}, .rows = table[i].shape[0]};
    for (const float v : base.decode(table[i], piece, t))
      ASSERT_EQ(v, 0.5f) << "the largest is exact";
    values[7] = std::nanf("");
    test::expect_error(ErrorCode::data,
                       {"finite weights, to be coded", "element 7 of w that is nan",
                        "a base whose weights are whole, or --base-form full"},
                       [&] { base.decode(table[i], piece, t); });
  }
  EXPECT_GT(coded, 0);
}

}  // namespace
}  // namespace snug
