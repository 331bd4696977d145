#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/fingerprint.h"
#include "tests/engine/io/temp_folder.h"

// What another process does right behind the next rename() of this one.
static std::function<void()> behind_rename;

// The program's own, in the place of the C library's.
extern "C" int rename(const char* from, const char* to) noexcept {
  const int rc = ::renameat(AT_FDCWD, from, AT_FDCWD, to);
  if (const auto then = std::exchange(behind_rename, nullptr)) then();
  return rc;
}

namespace snug {
namespace {

TEST(Files, WritesAndReadsBack) {
  TempFolder tmp;
  const std::string path = tmp / "a.bin";
  const std::string text("one\0two", 7);
  write_atomic(path, text);
  EXPECT_EQ(read_file(path), text);
  EXPECT_EQ(MappedFile(path).text(), text);
  write_atomic(path, "");
  EXPECT_EQ(read_file(path), "");
  EXPECT_EQ(MappedFile(path).size(), 0);
  EXPECT_EQ(tmp.count(), 1) << "a temporary file is left";
}

TEST(Files, NormalPaths) {
  for (const auto& [path, normal] :
       std::vector<std::pair<std::string, std::string>>{{"a/b", "a/b"},
                                                        {"a/b/", "a/b"},
                                                        {"a/b//", "a/b"},
                                                        {"a/b/.", "a/b"},
                                                        {"a/./c/../b", "a/c/../b"},
                                                        {"/a/", "/a"},
                                                        {"/", "/"},
                                                        {".", "."},
                                                        {"./", "."},
                                                        {"./a", "a"},
                                                        {"a/../", "a/.."},
                                                        {"../a/", "../a"},
                                                        {"", ""}})
    EXPECT_EQ(normal_path(path), normal) << path;
}

TEST(Files, UncommittedWriteLeavesTheOldFile) {
  TempFolder tmp;
  write_atomic(tmp / "a", "old");
  {
    AtomicFile file(tmp / "a");
    file.write("new");
    EXPECT_EQ(read_file(tmp / "a"), "old");
    EXPECT_EQ(tmp.count(), 2);
  }
  EXPECT_EQ(read_file(tmp / "a"), "old");
  EXPECT_EQ(tmp.count(), 1);
}

TEST(Files, ALinkIsWrittenThrough) {
  TempFolder tmp;
  std::filesystem::create_directory(tmp / "there");
  write_atomic(tmp / "there/a", "old");
  std::filesystem::create_symlink("there/a", tmp / "relative");
  std::filesystem::create_symlink(tmp / "relative", tmp / "link");
  std::filesystem::create_symlink("there/new", tmp / "dangling");
  {
    AtomicFile file(tmp / "link");
    file.write("never");
    EXPECT_EQ(read_file(tmp / "there/a"), "old");
  }
  write_atomic(tmp / "link", "brand new");
  write_atomic(tmp / "dangling", "made");
  EXPECT_EQ(read_file(tmp / "there/a"), "brand new");
  EXPECT_EQ(read_file(tmp / "there/new"), "made");
  for (const char* name : {"link", "relative", "dangling"})
    EXPECT_TRUE(std::filesystem::is_symlink(tmp / name)) << name;
  EXPECT_EQ(tmp.count(), 4) << "a temporary file is left";
  std::filesystem::create_symlink("circle", tmp / "circle");
  EXPECT_ERROR(write_atomic(tmp / "circle", "x"), ErrorCode::device, "circle", "symbolic links",
               "check");
  std::filesystem::create_symlink("no/such", tmp / "nowhere");
  EXPECT_ERROR(write_atomic(tmp / "nowhere", "x"), ErrorCode::device, "nowhere", "No such file",
               "create the folder");
}

// A device behaves so too; replacing one of those would harm the machine that runs the test.
TEST(Files, APipeIsWrittenToAndNotReplaced) {
  TempFolder tmp;
  const std::string pipe = tmp / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  // Open for both, so that nothing here waits for another end.
  const int fd = ::open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  const auto content = [&] {
    char text[16];
    const ssize_t n = ::read(fd, text, sizeof(text));
    return std::string(text, static_cast<size_t>(std::max<ssize_t>(n, 0)));
  };
  write_atomic(pipe, "whole");
  EXPECT_EQ(content(), "whole");
  std::filesystem::create_symlink("pipe", tmp / "link");
  {
    AtomicFile file(tmp / "link");
    file.write("one");
    file.write("two");
    EXPECT_ERROR(file.write_at(0, "x", 1), ErrorCode::device, "link", "Illegal seek",
                 "front to back");
  }
  EXPECT_EQ(content(), "onetwo");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_EQ(tmp.count(), 2);
  AtomicFile file(pipe);
  ::close(fd);
  EXPECT_ERROR(file.write("x"), ErrorCode::device, "pipe", "Broken pipe", "reader");
}

// What a shell does with `command --output /dev/stdout >> log`.
TEST(Files, AFileByItsNumberIsWrittenOnFromWhereItStands) {
  TempFolder tmp;
  const int fd = ::open((tmp / "log").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::write(fd, "before ", 7), 7);
  const std::string number = std::to_string(fd);
  std::filesystem::create_symlink("/dev/fd/" + number, tmp / "link");
  for (const std::string& path : {"/dev/fd/" + number, "/proc/self/fd/" + number,
                                  fmt::format("/proc/{}/fd/{}", getpid(), fd), tmp / "link"}) {
    EXPECT_TRUE(is_file_number(path)) << path;
    write_atomic(path, "ours ");
    ASSERT_EQ(::write(fd, "theirs ", 7), 7);
  }
  EXPECT_EQ(read_file(tmp / "log"), "before ours theirs ours theirs ours theirs ours theirs ");
  {
    AtomicFile file("/dev/fd/" + number);
    file.write("some");
    EXPECT_ERROR(file.write_at(0, "x", 1), ErrorCode::device, "/dev/fd/", "Illegal seek",
                 "front to back");
  }
  EXPECT_EQ(tmp.count(), 2);
  ::close(fd);
  EXPECT_ERROR(write_atomic("/dev/fd/" + number, "x"), ErrorCode::device, "/dev/fd/" + number,
               "No such file", "create");
  for (const std::string& path :
       {tmp / "log", tmp / "absent", std::string("/dev/null"), std::string("1"),
        std::string("/proc/self/fd/x"), std::string("/proc/self/fd/")})
    EXPECT_FALSE(is_file_number(path)) << path;
}

// As rank 0 does with a checkpoint as soon as the last file of another rank is there.
TEST(Files, AFolderMayBeRenamedAsSoonAsTheFileIsThere) {
  const TempFolder tmp;
  const std::string before = tmp / "before", after = tmp / "after";
  ASSERT_TRUE(std::filesystem::create_directory(before));
  behind_rename = [&] { std::filesystem::rename(before, after); };
  EXPECT_NO_THROW(write_atomic(before + "/x", "1"));
  EXPECT_FALSE(behind_rename) << "a file gets its name by rename()";
  EXPECT_EQ(read_file(after + "/x"), "1");
}

TEST(Files, AMappingOutlivesTheReplacedFile) {
  TempFolder tmp;
  write_atomic(tmp / "a", "old");
  MappedFile mapped(tmp / "a");
  write_atomic(tmp / "a", "brand new");
  EXPECT_EQ(mapped.text(), "old");
  MappedFile moved(std::move(mapped));
  EXPECT_EQ(moved.text(), "old");
  EXPECT_EQ(mapped.data(), nullptr);  // NOLINT: the moved-from state is part of the contract
}

TEST(Files, WriteAtPatchesWhatWasAppended) {
  TempFolder tmp;
  AtomicFile file(tmp / "a");
  file.write("0123456789");
  file.write_at(2, "ab", 2);
  EXPECT_THROW(file.write_at(9, "ab", 2), Error);
  file.write("!");
  file.commit();
  EXPECT_EQ(read_file(tmp / "a"), "01ab456789!");
  EXPECT_THROW(file.commit(), Error);
  EXPECT_THROW(file.write("x"), Error);
}

TEST(Files, ErrorsNameThePathAndTheReason) {
  TempFolder tmp;
  EXPECT_ERROR(read_file(tmp / "none"), ErrorCode::data, "a readable file " + tmp.path(),
               "No such file", "check the path");
  EXPECT_ERROR(MappedFile(tmp / "none"), ErrorCode::data, "none", "No such file", "check the path");
  EXPECT_ERROR(read_file(tmp.path()), ErrorCode::data, "a regular file " + tmp.path(), "a folder",
               "path of a file");
  write_atomic(tmp / "big", std::string(100, 'x'));
  EXPECT_ERROR(read_file(tmp / "big", 99), ErrorCode::data, "to have at most 99 bytes", "100 bytes",
               "file you meant");
  ASSERT_EQ(::mkfifo((tmp / "pipe").c_str(), 0600), 0);
  EXPECT_ERROR(read_file(tmp / "pipe"), ErrorCode::data, "pipe", "a device, pipe or socket",
               "path of a file");
  EXPECT_ERROR(AtomicFile(tmp / "no/such"), ErrorCode::device, "no/such", "No such file",
               "create the folder");
  EXPECT_ERROR(AtomicFile(tmp.path()), ErrorCode::device, "to write a file named '" + tmp.path(),
               "a folder", "path of a file");
  EXPECT_ERROR(sync_folder(tmp / "none"), ErrorCode::device, "none", "No such file", "create");
}

TEST(Files, AFileSizeLimitIsAnErrorAndNotADeath) {
  TempFolder tmp;
  write_atomic(tmp / "a", "old");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string big(10000, 'x');
  EXPECT_ERROR(write_atomic(tmp / "a", big), ErrorCode::device, "to write", "File too large",
               "ulimit -f");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(read_file(tmp / "a"), "old");
  EXPECT_EQ(tmp.count(), 1);
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGXFSZ), 0);
}

TEST(Files, ACopyHoldsTheSameBytes) {
  const TempFolder tmp;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{16} << 10, (size_t{40} << 10) + 7}) {
    std::string text(size, 'x');
    for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 2654435761u >> 7);
    write_atomic(tmp / "from", text);
    copy_file(tmp / "from", tmp / "to");
    EXPECT_EQ(read_file(tmp / "to"), text);
  }
  EXPECT_ERROR(copy_file(tmp / "none", tmp / "to"), ErrorCode::data, "none", "No such file", "");
}

TEST(Files, AFullDiskIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  TempFolder from;
  write_atomic(from / "from", "x");
  EXPECT_ERROR(copy_file(from / "from", "/dev/full"), ErrorCode::device, "to write /dev/full",
               "No space left on device", "free space");
  EXPECT_ERROR(write_atomic("/dev/full", "x"), ErrorCode::device, "full", "No space left",
               "free space");
  // It refuses every write with ENOSPC; here it stands for the temporary file.
  TempFolder tmp;
  write_atomic(tmp / "a", "old");
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC), lowest = ::dup(full);
  ASSERT_GE(lowest, 0);
  ::close(lowest);
  {
    AtomicFile file(tmp / "a");  // opened as the lowest number that is free
    ASSERT_EQ(tmp.count(), 2);
    ASSERT_EQ(::dup2(full, lowest), lowest);
    EXPECT_ERROR(file.write("x"), ErrorCode::device, tmp / "a", "No space left", "free space");
  }
  ::close(full);
  EXPECT_EQ(read_file(tmp / "a"), "old");
  EXPECT_EQ(tmp.count(), 1);
}

TEST(Files, AFolderThatMayNotBeReadIsWrittenTo) {
  TempFolder tmp;
  const std::string folder = tmp / "drop";
  std::filesystem::create_directory(folder);
  ASSERT_EQ(::chmod(tmp.path().c_str(), 0711), 0);
  ASSERT_EQ(::chmod(folder.c_str(), 0333), 0);
  const uid_t before = geteuid();
  if (before == 0 && ::seteuid(65534) != 0)  // nothing is forbidden to root
    GTEST_SKIP() << "no other user here";
  std::string error;
  const bool reached = ::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
  try {
    if (reached) write_atomic(folder + "/a", "x");
  } catch (const Error& e) {
    error = e.what();
  }
  if (before == 0) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  ASSERT_EQ(::chmod(folder.c_str(), 0700), 0);
  if (!reached) GTEST_SKIP() << "the folder of temporary files is not for all users";
  EXPECT_EQ(error, "");
  EXPECT_EQ(read_file(folder + "/a"), "x");
}

// Processes of two containers may have one number and write to one folder.
TEST(Files, ATemporaryNameThatIsTakenIsLeftAlone) {
  TempFolder tmp;
  { AtomicFile first(tmp / "c"); }
  AtomicFile counter(tmp / "c");
  std::string name;
  for (const auto& entry : std::filesystem::directory_iterator(tmp.path()))
    name = entry.path().filename().string();
  // The next temporary names are this process's number and the next counts.
  const int64_t n = std::stoll(name.substr(name.rfind('-') + 1));
  const auto next = [&](int64_t after) {
    return (tmp / "f.tmp-") + std::to_string(getpid()) + "-" + std::to_string(n + after);
  };
  std::ofstream(next(1)) << "another's";
  std::ofstream(tmp / "target") << "precious";
  std::filesystem::create_symlink(tmp / "target", next(2));
  write_atomic(tmp / "f", "x");
  EXPECT_EQ(read_file(tmp / "f"), "x");
  EXPECT_EQ(read_file(next(1)), "another's");
  EXPECT_EQ(read_file(tmp / "target"), "precious");
  EXPECT_TRUE(std::filesystem::is_symlink(next(2)));
}

// Published values: the xxHash repository's sanity checks and the digests every binding documents.
TEST(Fingerprint, MatchesXxh64) {
  EXPECT_EQ(fingerprint(""), 0xef46db3751d8e999u);
  EXPECT_EQ(fingerprint("a"), 0xd24ec4f1a98c6e5bu);
  EXPECT_EQ(fingerprint("abc"), 0x44bc2cf5ad770999u);
  EXPECT_EQ(fingerprint("Nobody inspects the spammish repetition"), 0xfbcea83c8a378bf1u);
  EXPECT_EQ(fingerprint_text(0xabcu), "0000000000000abc");
  // Around the stripes of 32 bytes, by xxhash for Python: the bytes 0, 1, 2, ...
  for (const auto& [n, digest] : {std::pair(31, 0xc346d2b59b4d8ee1u),
                                  {32, 0xcbf59c5116ff32b4u},
                                  {33, 0x0c535d1acafb8eadu},
                                  {63, 0xe26aa9e2a95f8e4fu},
                                  {64, 0xf7c67301db6713f0u}}) {
    std::string text;
    for (int i = 0; i < n; ++i) text += static_cast<char>(i);
    EXPECT_EQ(fingerprint(text), digest) << n;
  }
}

TEST(Fingerprint, DoesNotDependOnTheCuts) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i * 37);
  for (size_t n = 0; n <= text.size(); ++n) {
    const std::string part = text.substr(0, n);
    Fingerprint a, b;
    for (const char c : part) a.add(&c, 1);
    for (size_t i = 0; i < n; i += 13) b.add(std::string_view(part).substr(i, 13));
    EXPECT_EQ(a.digest(), fingerprint(part));
    EXPECT_EQ(b.digest(), fingerprint(part));
  }
  TempFolder tmp;
  write_atomic(tmp / "f", text);
  EXPECT_EQ(fingerprint_file(tmp / "f"), fingerprint(text));
}

}  // namespace
}  // namespace snug
