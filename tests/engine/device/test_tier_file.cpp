// The file below the memory: what is read is what was written last, or an error; nothing of it has a
// name; and the streams that read and write it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/rng.h"
#include "engine/device/device.h"
#include "engine/device/tier_file.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

using test::expect_error;

constexpr int64_t kBlock = TierFile::kBlock;

// A folder of its own, and of a file in it the memory that it needs.
class Tier {
 public:
  explicit Tier(int64_t blocks, const std::string& parent = testing::TempDir())
      : sums_(static_cast<size_t>(blocks)), room_(allocate(TierFile::kRoomBytes)) {
    std::string name = parent + "/tierXXXXXX";
    folder_ = mkdtemp(name.data());
    file_ = std::make_unique<TierFile>(folder_, blocks * kBlock);
    file_->use(sums_.data(), room_.get());
  }
  ~Tier() {
    file_.reset();
    fs::remove_all(folder_);
  }
  TierFile& file() { return *file_; }
  const std::string& folder() const { return folder_; }
  // Whoever else has it open, as another program would.
  int again() const {
    return open(("/proc/self/fd/" + std::to_string(file_->descriptor())).c_str(), O_RDWR);
  }

  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  using Aligned = std::unique_ptr<std::byte[], Free>;
  static Aligned allocate(int64_t bytes) {
    return Aligned(static_cast<std::byte*>(
        std::aligned_alloc(TierFile::kAlignment, static_cast<size_t>(bytes))));
  }

 private:
  std::string folder_;
  std::vector<uint32_t> sums_;
  Aligned room_;
  std::unique_ptr<TierFile> file_;
};

void fill(std::byte* data, int64_t bytes, uint64_t salt) {
  for (int64_t i = 0; i < bytes; ++i)
    data[i] = static_cast<std::byte>(mix64(static_cast<uint64_t>(i / 7) * 31 + salt));
}

TEST(TierFile, IsZeroThenWhatWasWritten) {
  constexpr int64_t kBlocks = 40;
  // Past the page cache where the file system has it, else through it: both folders take both kinds of
  // blocks and parts.
  for (const std::string& parent : {testing::TempDir(), std::string("/dev/shm")}) {
    if (access(parent.c_str(), W_OK) != 0) continue;
    Tier t(kBlocks, parent);
    TierFile& f = t.file();
    EXPECT_EQ(f.bytes(), kBlocks * kBlock);
    EXPECT_EQ(f.resident_bytes(), kBlocks * kBlock) << "reserved whole";
    EXPECT_TRUE(fs::is_empty(t.folder())) << "it has no name";
    EXPECT_EQ(f.folder(), t.folder());
    std::vector<std::byte> model(static_cast<size_t>(kBlocks * kBlock));
    const auto expect_all = [&] {
      const auto all = Tier::allocate(kBlocks * kBlock);
      f.read(0, all.get(), kBlocks * kBlock);
      EXPECT_EQ(std::memcmp(all.get(), model.data(), model.size()), 0);
    };
    expect_all();
    const auto data = Tier::allocate(4 * kBlock);
    fill(data.get(), 4 * kBlock, 5);
    f.write(3 * kBlock, data.get(), 4 * kBlock);
    std::memcpy(model.data() + 3 * kBlock, data.get(), static_cast<size_t>(4 * kBlock));
    expect_all();
    // Parts: within a block, over its ends, whole ones, and more than the room has.
    const std::pair<int64_t, int64_t> parts[] = {
        {10, 1},          {kBlock - 3, 7},           {2 * kBlock, kBlock}, {5 * kBlock - 1, 2},
        {7 * kBlock, 99}, {kBlock / 2, 30 * kBlock}, {40 * kBlock - 1, 1}, {0, 40 * kBlock}};
    uint64_t salt = 100;
    for (const auto& [at, bytes] : parts) {
      std::vector<std::byte> part(static_cast<size_t>(bytes));
      fill(part.data(), bytes, ++salt);
      f.write_part(at, part.data(), bytes);
      std::memcpy(model.data() + at, part.data(), part.size());
      expect_all();
      std::vector<std::byte> back(part.size());
      f.read_part(at, back.data(), bytes);
      EXPECT_EQ(back, part) << at;
    }
    EXPECT_GT(f.moved_bytes(), 0);
    EXPECT_GT(f.moved_seconds(), 0);
    EXPECT_EQ(f.resident_bytes(), kBlocks * kBlock);
  }
}

// Blocks are checked whoever reads them, whole or in parts; and a write of a part reads first.
TEST(TierFile, FindsWhatIsNotWhatWasWritten) {
  const struct {
    const char* name;
    void (*harm)(int fd);
    const char* found;
    bool shorter;
  } harms[] = {{"a flipped bit",
                [](int fd) {
                  char byte = 0;
                  ASSERT_EQ(pread(fd, &byte, 1, 2 * kBlock + 777), 1);
                  byte = static_cast<char>(byte ^ 16);
                  ASSERT_EQ(pwrite(fd, &byte, 1, 2 * kBlock + 777), 1);
                },
                "the disk gives back other bytes, or another program wrote there", false},
               {"a block of before",  // a write that never came to the disk
                [](int fd) {
                  const std::vector<char> zero(static_cast<size_t>(kBlock));
                  ASSERT_EQ(pwrite(fd, zero.data(), zero.size(), 2 * kBlock), kBlock);
                },
                "the disk gives back other bytes, or another program wrote there", false},
               {"half a block",
                [](int fd) {
                  const std::vector<char> zero(static_cast<size_t>(kBlock / 2));
                  ASSERT_EQ(pwrite(fd, zero.data(), zero.size(), 2 * kBlock), kBlock / 2);
                },
                "the disk gives back other bytes, or another program wrote there", false},
               {"the block of another place",
                [](int fd) {
                  std::vector<char> other(static_cast<size_t>(kBlock));
                  ASSERT_EQ(pread(fd, other.data(), other.size(), kBlock), kBlock);
                  ASSERT_EQ(pwrite(fd, other.data(), other.size(), 2 * kBlock), kBlock);
                },
                "the disk gives back other bytes, or another program wrote there", false},
               {"a shorter file", [](int fd) { ASSERT_EQ(ftruncate(fd, 2 * kBlock + 100), 0); },
                "the end of the file: it was made shorter", true}};
  for (const auto& h : harms) {
    SCOPED_TRACE(h.name);
    Tier t(4);
    const auto data = Tier::allocate(4 * kBlock);
    fill(data.get(), 4 * kBlock, 9);
    t.file().write(0, data.get(), 4 * kBlock);
    const int fd = t.again();
    ASSERT_GE(fd, 0);
    h.harm(fd);
    close(fd);
    const std::string path = t.file().path();
    const auto refused = [&](const std::function<void()>& f) {
      expect_error(ErrorCode::device,
                   {"the optimizer's state at byte ", path.c_str(), h.found, "resume=latest",
                    "offload_disk=FOLDER"},
                   f);
    };
    refused([&] { t.file().read(0, data.get(), 4 * kBlock); });
    refused([&] { t.file().read_part(2 * kBlock + 5, data.get(), 3); });
    if (!h.shorter) refused([&] { t.file().write_part(2 * kBlock + 5, data.get(), 3); });
    t.file().read(0, data.get(), 2 * kBlock);  // the others are as they were
    t.file().write(2 * kBlock, data.get(), kBlock);
    t.file().read(2 * kBlock, data.get(), kBlock);  // written anew it is right
  }
}

TEST(TierFile, SaysWhatADiskHasNoRoomFor) {
  struct statvfs disk {};
  ASSERT_EQ(statvfs(testing::TempDir().c_str(), &disk), 0);
  const int64_t free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  const int64_t bytes = (free / kBlock + (int64_t{1} << 23)) * kBlock;
  const std::string said = std::to_string(bytes) + " B (";
  expect_error(ErrorCode::device,
               {said.c_str(), "of disk in ", "for the optimizer's state", " free",
                "free disk space, offload_disk=FOLDER on another disk, or offload_optimizer=none"},
               [&] { const TierFile f(testing::TempDir(), bytes); });
  expect_error(ErrorCode::device,
               {"a file for 64.00 KiB of optimizer state in /nowhere/at/all",
                "No such file or directory", "offload_disk=FOLDER, one that can be written to"},
               [&] { const TierFile f("/nowhere/at/all", kBlock); });
}

// By the streams of a device, in each of their modes: what was written behind what comes before it; and
// who waits is told what went wrong, however late it was done.
TEST(TierFileThreads, StreamsReadAndWriteInOrder) {
  for (const StreamMode mode : {StreamMode::immediate, StreamMode::deferred, StreamMode::worker}) {
    SCOPED_TRACE(to_string(mode));
    constexpr int kWindows = 6, kRounds = 5;
    Tier t(2 * kWindows);
    const auto device = make_device(Place::cpu);
    device->start_streams(mode);
    std::vector<Tier::Aligned> rooms;
    for (int i = 0; i < 3; ++i) rooms.push_back(Tier::allocate(2 * kBlock));
    const auto room = [&](int w) { return rooms[static_cast<size_t>(w % 3)].get(); };
    // As states are updated: one is added to while the next comes and the one before leaves.
    for (int round = 0; round < kRounds; ++round) {
      EventId moved[kWindows] = {};
      const auto fetch = [&](int w) {
        if (w >= 3) device->wait_event(kCompute, moved[w - 3]);
        device->wait_event(kToHost, device->record_event(kCompute));
        device->read_disk(t.file(), 2 * w * kBlock, room(w), 2 * kBlock, kToHost);
        moved[w] = device->record_event(kToHost);
      };
      fetch(0);
      for (int w = 0; w < kWindows; ++w) {
        if (w + 1 < kWindows) fetch(w + 1);
        device->wait_event(kCompute, moved[w]);
        auto* const numbers = reinterpret_cast<uint32_t*>(room(w));
        for (int64_t i = 0; i < 2 * kBlock / 4; ++i) {
          ASSERT_EQ(numbers[i], static_cast<uint32_t>(round * (w + 1)));
          numbers[i] += static_cast<uint32_t>(w + 1);
        }
        device->wait_event(kToHost, device->record_event(kCompute));
        device->write_disk(t.file(), 2 * w * kBlock, room(w), 2 * kBlock, kToHost);
        moved[w] = device->record_event(kToHost);
      }
      for (const EventId e : moved) device->wait_event(kCompute, e);
    }
    const int fd = t.again();
    ASSERT_EQ(ftruncate(fd, 0), 0);
    close(fd);
    const auto read = [&] {
      device->read_disk(t.file(), 0, room(0), 2 * kBlock, kToHost);
      device->wait_event(kCompute, device->record_event(kToHost));
    };
    for (int twice = 0; twice < 2; ++twice)
      expect_error(ErrorCode::device, {"it was made shorter"}, read);
    device->synchronize();
  }
}

// A checkpoint reads what was not written yet in this step, while a stream's thread writes the rest.
TEST(TierFileThreads, PartsAreReadWhileOthersAreWritten) {
  constexpr int kBlocks = 24;
  Tier t(kBlocks);
  const auto device = make_device(Place::cpu);
  device->start_streams(StreamMode::worker);
  const auto data = Tier::allocate(kBlock);
  for (int round = 0; round < 4; ++round) {
    std::atomic<int> passed{0};
    std::thread reader([&] {
      std::vector<uint8_t> part(1000);
      for (int b = 0; b < kBlocks; ++b) {
        t.file().read_part(b * kBlock + 77, part.data(), 1000);
        for (const uint8_t v : part) EXPECT_EQ(v, round);
        passed.store(b + 1, std::memory_order_release);
      }
    });
    std::memset(data.get(), round + 1, static_cast<size_t>(kBlock));
    for (int b = 0; b < kBlocks; ++b) {
      while (passed.load(std::memory_order_acquire) <= b) std::this_thread::yield();
      device->write_disk(t.file(), b * kBlock, data.get(), kBlock, kToHost);
    }
    device->wait_event(kCompute, device->record_event(kToHost));
    reader.join();
  }
}

TEST(TierFile, IsForTheHostAlone) {
  Tier t(1);
  const auto data = Tier::allocate(kBlock);
  const auto plan = make_device(Place::plan);
  expect_error(ErrorCode::internal, {"a place whose streams read and write files"},
               [&] { plan->read_disk(t.file(), 0, data.get(), kBlock, kToHost); });
  expect_error(ErrorCode::internal, {"a place whose streams read and write files"},
               [&] { plan->write_disk(t.file(), 0, data.get(), kBlock, kToHost); });
}

}  // namespace
}  // namespace snug
