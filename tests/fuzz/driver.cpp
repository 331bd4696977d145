// A target without libFuzzer: every file of the corpus, then inputs made of them by the same
// mutations each time, until a number of runs or seconds is reached. An input that breaks a promise
// is left beside the program as crash-<target>.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/core/sanitizers.h"
#include "tests/fuzz/fuzz.h"

#if SNUG_ADDRESS_SANITIZER
constexpr bool kSanitized = true;
// No input of the sizes here needs a block of this size; more is one that grew with a number in it.
extern "C" const char* __asan_default_options() {
  return "abort_on_error=1:handle_abort=0:handle_sigill=1:max_allocation_size_mb=512:"
         "hard_rss_limit_mb=2048";
}
extern "C" const char* __ubsan_default_options() {
  return "abort_on_error=1:halt_on_error=1:print_stacktrace=1";
}
#else
#if SNUG_THREAD_SANITIZER
constexpr bool kSanitized = true;  // its shadow takes terabytes of addresses
#else
constexpr bool kSanitized = false;
#endif
#endif

namespace {

using snug::fuzz::text_of;

// Processor time an input may take. None here takes a tenth of it.
constexpr int kSecondsAnInput = kSanitized ? 20 : 5;
// The same promise about memory where no sanitizer keeps it.
constexpr rlim_t kAddressSpace = rlim_t{1} << 30;
constexpr size_t kMostBytes = 4096;  // that mutations may add to an input

std::string crash_file;
std::string input;  // the one that runs

void on_signal(int number) {
  const int fd = ::open(crash_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const bool kept = fd >= 0 && ::write(fd, input.data(), input.size()) >= 0;
  const char* const says = number == SIGPROF ? "BROKEN: an input within its time\n" : "";
  const bool said = ::write(2, says, std::char_traits<char>::length(says)) >= 0;
  std::signal(SIGABRT, SIG_DFL);
  if (kept && said) ::close(fd);
  std::abort();
}

void limit_time(int seconds) {
  itimerval timer = {};
  timer.it_value.tv_sec = seconds;
  setitimer(ITIMER_PROF, &timer, nullptr);
}

void run_input() {
  limit_time(kSecondsAnInput);
  // A copy of exactly its size, so that a read behind the end is seen.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  limit_time(0);
}

// SplitMix64 (Steele, Lea, Flood 2014): the same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(next() % n); }

 private:
  uint64_t state_;
};

void put_number(std::string& text, Random& random) {
  constexpr uint64_t kNumbers[] = {0,          1,          2,          0x7f,       0x80,
                                   0xff,       0x100,      0x7fff,     0x8000,     0xffff,
                                   0x10000,    0x1000000,  0x7fffffff, 0x80000000, 0xffffffff,
                                   1ull << 32, 1ull << 53, INT64_MAX,  1ull << 63, UINT64_MAX};
  const uint64_t value = kNumbers[random.below(std::size(kNumbers))];
  const size_t at = random.below(text.size());
  if (random.next() % 2) {
    const size_t bytes = std::min(text.size() - at, size_t{1} << random.below(4));
    for (size_t i = 0; i < bytes; ++i) text[at + i] = static_cast<char>(value >> (8 * i));
    return;
  }
  const size_t begin = std::min(text.find_first_of("0123456789", at), text.size());
  const size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
  text.replace(begin, end - begin, (random.next() % 4 ? "" : "-") + std::to_string(value));
}

void mutate(std::string& text, const std::vector<std::string>& seeds, Random& random) {
  const size_t at = random.below(text.size() + 1);
  const size_t length = std::min(text.size() - at, size_t{1} + random.below(32));
  switch (random.below(8)) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << random.below(8)));
      return;
    case 1:
      if (at < text.size()) text[at] = static_cast<char>(random.next());
      return;
    case 2:
      text.erase(at, length);
      return;
    case 3:
      for (size_t i = 0; i < 1 + random.below(4); ++i)
        text.insert(at, 1, static_cast<char>(random.next()));
      return;
    case 4:
      text.insert(at, text.substr(random.below(text.size() + 1), length));
      return;
    case 5: {
      const std::string& other = seeds[random.below(seeds.size())];
      text.insert(at, other.substr(random.below(other.size() + 1), 1 + random.below(64)));
      return;
    }
    case 6:
      put_number(text, random);
      return;
    default:
      if (random.below(4) == 0) text.resize(at);
      return;
  }
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<std::string> read_seeds(const std::vector<std::string>& places) {
  namespace fs = std::filesystem;
  std::vector<fs::path> paths;
  for (const std::string& place : places) {
    if (!fs::is_directory(place)) {
      paths.emplace_back(place);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(place))
      if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const fs::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> places;
  int64_t runs = 0, seconds = 0, seed = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    int64_t* const number = word == "--runs"      ? &runs
                            : word == "--seconds" ? &seconds
                            : word == "--seed"    ? &seed
                                                  : nullptr;
    if (number == nullptr) {
      places.emplace_back(word);
      continue;
    }
    const std::string_view value = ++i < argc ? argv[i] : "";
    if (std::from_chars(value.data(), value.data() + value.size(), *number).ec != std::errc()) {
      fmt::print(stderr, "a number behind {}, not '{}'\n", word, value);
      return 2;
    }
  }
  // Another one every day, said first: with it the same inputs come again.
  if (seed == 0) seed = static_cast<int64_t>(std::time(nullptr)) / 86400;
  const std::string name = std::filesystem::path(argv[0]).filename().string();
  const std::vector<std::string> seeds = read_seeds(places);
  if (seeds.empty()) {
    fmt::print(stderr,
               "usage: {} [--runs N] [--seconds S] [--seed K, 0: the day] FILE_OR_FOLDER...\n",
               name);
    return 2;
  }
  crash_file = "crash-" + name;
  for (const int number : {SIGABRT, SIGPROF}) std::signal(number, on_signal);
  if (!kSanitized) {
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(number, on_signal);
    const rlimit limit = {kAddressSpace, kAddressSpace};
    setrlimit(RLIMIT_AS, &limit);
  }
  snug::fuzz::folder();  // made now: it is removed at exit
  for (const std::string& one : seeds) {
    input = one;
    run_input();
  }
  if (snug::fuzz::completed == 0) {
    fmt::print(stderr, "{}: no file of the corpus is read to its end\n", name);
    return 1;
  }
  fmt::print("{}: --seed {}\n", name, seed);
  std::fflush(stdout);
  const double start = seconds_now();
  int64_t done = 0;
  while (done < runs && (seconds == 0 || seconds_now() - start < static_cast<double>(seconds))) {
    Random random(static_cast<uint64_t>(seed) * 0x100000001b3u + static_cast<uint64_t>(done));
    input = seeds[random.below(seeds.size())];
    const size_t most = input.size() + kMostBytes;
    for (size_t i = 1 + random.below(6); i > 0; --i) mutate(input, seeds, random);
    if (input.size() > most) input.resize(most);
    run_input();
    ++done;
  }
  fmt::print("{}: {} files and {} mutations in {:.1f} s\n", name, seeds.size(), done,
             seconds_now() - start);
  return 0;
}
