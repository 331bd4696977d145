// Tests that need a GPU: skipped, with the reason, where there is none that can be used.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "engine/core/error.h"
#include "engine/device/cuda.h"

namespace snug::test {

// Empty if the place cuda can be used; else what make_device says.
inline const std::string& no_gpu() {
  static const std::string why = [] {
    try {
      make_device(Place::cuda);
      return std::string();
    } catch (const Error& e) {
      return std::string(e.what());
    }
  }();
  return why;
}

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!no_gpu().empty()) GTEST_SKIP() << no_gpu();
  }
};

}  // namespace snug::test
