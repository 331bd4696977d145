// Whose a run folder is while other folders, files and runs come to its place.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/engine/io/temp_folder.h"
#include "tools/checkpoint/output_lock.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

// A folder that is named with a slash at its end is known by what stands in its place: a file too.
TEST(OutputLock, IsLostToWhateverTakesThePlaceOfTheFolder) {
  for (const char* end : {"", "/", "//", "/."})
    for (const char* taken : {"a folder", "a file", "another run"}) {
      SCOPED_TRACE(std::string("run") + end + " to " + taken);
      const TempFolder tmp;
      fs::create_directory(tmp / "run");
      OutputLock lock;
      lock.take((tmp / "run") + end);
      ASSERT_TRUE(lock.held());
      EXPECT_FALSE(lock.lost());
      fs::rename(tmp / "run", tmp / "moved");
      EXPECT_FALSE(lock.lost()) << "nothing is there";
      if (taken == std::string("a file"))
        std::ofstream(tmp / "run").put('x');
      else
        fs::create_directory(tmp / "run");
      OutputLock other;
      if (taken == std::string("another run")) other.take(tmp / "run");
      EXPECT_TRUE(lock.lost());
      lock.release();
      EXPECT_EQ(fs::exists(tmp / "run/.lock"), other.held()) << "another's is not removed";
    }
}

}  // namespace
}  // namespace snug
