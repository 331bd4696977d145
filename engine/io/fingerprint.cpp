#include "engine/io/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/io/files.h"

namespace snug {
namespace {

constexpr uint64_t kPrime1 = 0x9e3779b185ebca87u, kPrime2 = 0xc2b2ae3d27d4eb4fu,
                   kPrime3 = 0x165667b19e3779f9u, kPrime4 = 0x85ebca77c2b2ae63u,
                   kPrime5 = 0x27d4eb2f165667c5u;

template <class T>
T load_word(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}

uint64_t mix_lane(uint64_t lane, uint64_t input) {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}

}  // namespace

void Fingerprint::stripe(const uint8_t* p) {
  for (int i = 0; i < 4; ++i) lanes_[i] = mix_lane(lanes_[i], load_word<uint64_t>(p + 8 * i));
}

void Fingerprint::add(const void* data, int64_t bytes) {
  const uint8_t* p = static_cast<const uint8_t*>(data);
  uint64_t left = static_cast<uint64_t>(bytes);
  while (left > 0) {
    const uint64_t have = total_ % 32;
    if (have == 0 && left >= 32) {
      stripe(p);
      total_ += 32, p += 32, left -= 32;
      continue;
    }
    const uint64_t n = std::min<uint64_t>(32 - have, left);
    std::memcpy(held_ + have, p, n);
    total_ += n, p += n, left -= n;
    if (total_ % 32 == 0) stripe(held_);
  }
}

uint64_t Fingerprint::digest() const {
  uint64_t h = kPrime5;
  if (total_ >= 32) {
    h = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
        std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) h = (h ^ mix_lane(0, lane)) * kPrime1 + kPrime4;
  }
  h += total_;
  const uint8_t* p = held_;
  uint64_t left = total_ % 32;
  for (; left >= 8; p += 8, left -= 8)
    h = std::rotl(h ^ mix_lane(0, load_word<uint64_t>(p)), 27) * kPrime1 + kPrime4;
  for (; left >= 4; p += 4, left -= 4)
    h = std::rotl(h ^ (load_word<uint32_t>(p) * kPrime1), 23) * kPrime2 + kPrime3;
  for (; left > 0; ++p, --left) h = std::rotl(h ^ (*p * kPrime5), 11) * kPrime1;
  h = (h ^ (h >> 33)) * kPrime2;
  h = (h ^ (h >> 29)) * kPrime3;
  return h ^ (h >> 32);
}

uint64_t fingerprint(std::string_view bytes) {
  Fingerprint f;
  f.add(bytes);
  return f.digest();
}

uint64_t fingerprint_file(const std::string& path) {
  return fingerprint(MappedFile(path).text());
}

std::string fingerprint_text(uint64_t digest) {
  return fmt::format("{:016x}", digest);
}

}  // namespace snug
