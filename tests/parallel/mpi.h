// Ranks as processes of mpirun's: a test that starts itself again under it and is then each of them.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "parallel/mpi_group.h"
#include "tests/support/mpirun.h"

namespace snug::test {

enum class Ends {
  well,
  broken
};  // how the group of a test does: with MPI_Abort where somebody gave up

// f(group) in `size` processes, each a rank. The test that calls it does nothing else: it is what each of
// them runs. Each leaves its verdict in a folder, and where the group ends broken waits for all of them.
inline void on_mpi(int size, const std::function<void(MpiGroup&)>& f, Ends ends = Ends::well,
                   double timeout = 60) {
  constexpr const char* kFolder = "SNUG_TEST_VERDICTS";
  namespace fs = std::filesystem;
  if (const char* const folder = std::getenv(kFolder)) {
    if (std::atoi(std::getenv("OMPI_COMM_WORLD_SIZE")) != size) return;  // the turn of another size
    MpiGroup group(std::atoi(std::getenv("OMPI_COMM_WORLD_RANK")), size);
    group.set_timeout(timeout);
    f(group);
    const bool good = !testing::Test::HasFailure();
    std::ofstream(fmt::format("{}/{}.new", folder, group.rank())) << (good ? "good" : "bad");
    fs::rename(fmt::format("{}/{}.new", folder, group.rank()),
               fmt::format("{}/{}", folder, group.rank()));
    for (int r = 0; ends == Ends::broken && r < size; ++r)
      for (int i = 0; i < 6000 && !fs::exists(fmt::format("{}/{}", folder, r)); ++i) usleep(10'000);
    return;
  }
  const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
  std::string folder = "/tmp/snug-mpi-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  std::string line = fmt::format("{}={} exec", kFolder, folder);
  for (const std::string& word : mpirun_words(size)) line += " " + word;
  line += fmt::format(" {} --gtest_filter={}.{} > {}/log 2>&1",
                      fs::read_symlink("/proc/self/exe").string(), test->test_suite_name(),
                      test->name(), folder);
  const int status = std::system(line.c_str());
  const auto text = [&](const std::string& name) {
    std::ifstream in(folder + "/" + name);
    return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  };
  EXPECT_EQ(status == 0, ends == Ends::well) << size << " ranks:\n" << text("log");
  for (int r = 0; r < size; ++r)
    EXPECT_EQ(text(std::to_string(r)), "good") << r << " of " << size << ":\n" << text("log");
  fs::remove_all(folder);
}

}  // namespace snug::test
