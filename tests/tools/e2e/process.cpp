#include "tests/tools/e2e/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/support/folders.h"

namespace snug::e2e {
namespace {

constexpr int kPatienceMilliseconds = 120000;
const std::string kProgram = program_under_test();

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// An empty file of a name no other test has.
std::string scratch_file() {
  std::string path = "/tmp/snug-e2e-io-XXXXXX";
  const int fd = mkstemp(path.data());
  if (fd >= 0) close(fd);
  return path;
}

// Becomes `program`; only calls that are safe after fork.
[[noreturn]] void become(char* const* argv, int in, int out, int error) {
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(error, STDERR_FILENO);
  signal(SIGINT, SIG_DFL);  // ignored by tests that a shell runs in the background
  execv(argv[0], argv);
  _exit(127);
}

pid_t start(const std::vector<std::string>& words, int in, int out, int error) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) become(argv.data(), in, out, error);
  return pid;
}

bool wait_for(pid_t pid, int milliseconds, int& status) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::milliseconds(milliseconds);
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

int code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Outcome run_words(const std::vector<std::string>& words, const std::string& input) {
  const std::string in_path = scratch_file(), out_path = scratch_file(), err_path = scratch_file();
  std::ofstream(in_path, std::ios::binary) << input;
  const int in = open(in_path.c_str(), O_RDONLY | O_CLOEXEC);
  const int out = open(out_path.c_str(), O_WRONLY | O_CLOEXEC);
  const int error = open(err_path.c_str(), O_WRONLY | O_CLOEXEC);
  const pid_t pid = start(words, in, out, error);
  for (const int fd : {in, out, error}) close(fd);
  Outcome outcome;
  int status = 0;
  if (!wait_for(pid, kPatienceMilliseconds, status)) {
    ADD_FAILURE() << "no end after " << kPatienceMilliseconds << " ms: " << words[0];
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
  }
  outcome.code = code_of(status);
  outcome.out = slurp(out_path);
  outcome.err = slurp(err_path);
  for (const std::string& path : {in_path, out_path, err_path}) unlink(path.c_str());
  return outcome;
}

}  // namespace

Outcome run(const std::vector<std::string>& arguments, const std::string& input) {
  std::vector<std::string> words = {kProgram};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run_words(words, input);
}

Outcome shell(const std::string& command) {
  setenv("SNUG", kProgram.c_str(), 1);
  return run_words({"/bin/sh", "-c", command}, "");
}

Child::Child(const std::vector<std::string>& arguments, const std::vector<std::string>& before)
    : error_path_(scratch_file()) {
  // A pipe of packets with room for one: every write waits until the one before it was read.
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_DIRECT | O_CLOEXEC) != 0) {
    ADD_FAILURE() << "no pipe";
    return;
  }
  fcntl(ends[0], F_SETPIPE_SZ, 4096);
  const int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int error = open(error_path_.c_str(), O_WRONLY | O_CLOEXEC);
  std::vector<std::string> words = before;
  words.push_back(kProgram);
  words.insert(words.end(), arguments.begin(), arguments.end());
  pid_ = start(words, in, ends[1], error);
  for (const int fd : {in, ends[1], error}) close(fd);
  out_ = ends[0];
}

Child::~Child() {
  if (pid_ > 0 && !waited_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, &status_, 0);
  }
  if (out_ >= 0) close(out_);
  unlink(error_path_.c_str());
}

std::string Child::next() {
  if (out_ < 0) return "";
  pollfd ready = {out_, POLLIN, 0};
  if (poll(&ready, 1, kPatienceMilliseconds) <= 0) {
    ADD_FAILURE() << "nothing to read from the child";
    return "";
  }
  char packet[8192];
  const ssize_t got = read(out_, packet, sizeof packet);
  if (got <= 0) return "";
  std::string piece(packet, static_cast<size_t>(got));
  seen_ += piece;
  return piece;
}

bool Child::read_until(const std::string& text) {
  for (std::string piece = next(); !piece.empty(); piece = next())
    if (piece.find(text) != std::string::npos) return true;
  return false;
}

bool Child::waits() const {
  // Asleep with a packet in the pipe: a run computes and writes, and sleeps for nothing else.
  const std::string stat = "/proc/" + std::to_string(pid_) + "/stat";
  for (int tries = 0, times = 0; tries < kPatienceMilliseconds; ++tries) {
    int ready = 0;
    const std::string text = slurp(stat);
    const size_t after_name = text.rfind(") ");
    const bool asleep = after_name != std::string::npos && text[after_name + 2] == 'S';
    times = asleep && ioctl(out_, FIONREAD, &ready) == 0 && ready > 0 ? times + 1 : 0;
    if (times == 5) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

void Child::stop_reading() {
  close(out_);
  out_ = -1;
}

void Child::send(int signal) const {
  kill(pid_, signal);
}

bool Child::ends_unread(int milliseconds) {
  waited_ = waited_ || wait_for(pid_, milliseconds, status_);
  return waited_;
}

Outcome Child::finish() {
  while (!next().empty()) {
  }
  if (!ends_unread(kPatienceMilliseconds)) {
    ADD_FAILURE() << "the child does not end";
    kill(pid_, SIGKILL);
    waitpid(pid_, &status_, 0);
    waited_ = true;
  }
  return {code_of(status_), seen_, slurp(error_path_)};
}

}  // namespace snug::e2e
