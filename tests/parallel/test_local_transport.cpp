// Collectives of ranks that read each other's memory.
#include <gtest/gtest.h>

#include <string>

#include "parallel/local_transport.h"
#include "tests/parallel/ranks.h"
#include "tests/parallel/transport_sums.h"

namespace snug {
namespace {

TEST(LocalTransport, SumsInTheOrderOfRanksAndGathers) {
  for (const int size : {1, 2, 3, 7})
    for (const int64_t piece : {int64_t{1}, int64_t{255}, int64_t{9001}}) {
      SCOPED_TRACE(std::to_string(size) + " ranks, pieces of " + std::to_string(piece));
      test::on_ranks(size, [&](int, LocalGroup& group) {
        LocalTransport transport(group);
        test::check_sums<float>(transport, piece, 1);
      });
      test::on_ranks(size, [&](int, LocalGroup& group) {
        LocalTransport transport(group);
        test::check_sums<bf16>(transport, piece, 2);
      });
    }
}

}  // namespace
}  // namespace snug
