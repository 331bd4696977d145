#include "quant/block.h"

#include <immintrin.h>

#include <algorithm>
#include <array>

#include "engine/core/isa.h"
#include "quant/block_avx512.h"
#include "quant/map_lines.h"

namespace snug {
namespace {

constexpr int64_t kPiece = 256;  // elements whose entries wait on the stack

const CodeBook& book_of(const CodeSpec& spec, const CodeBook* book) {
  static const CodeBook none{};
  if (book != nullptr) return *book;
  return spec.codec->book != nullptr ? *spec.codec->book : none;
}

// Where the search of a book may begin: the entry of the smallest key of each of 4096 cells of
// magnitude and of either sign, 128 cells an octave. No cell of a codec's book holds two bounds, so
// one comparison ends it.
struct FirstEntries {
  static constexpr int32_t kCells = 4096, kShift = 16;
  const CodeBook* book = nullptr;
  int32_t low = 0;      // cell 0 ends where (low + 1) << kShift, as the bits of a magnitude, begins
  bool enough = false;  // one comparison does
  uint8_t entries[2 * kCells + 4]{};  // read four bytes at a time
};

void fill(FirstEntries& f, const CodeBook& book) {
  constexpr int32_t kInfinity = 0x7f800000;
  f.book = &book;
  f.low = ((std::bit_cast<int32_t>(book.sorted[book.size - 1]) >> 23) - 31) * 128;
  f.enough = true;
  for (int32_t cell = 0; cell < f.kCells; ++cell) {
    const int32_t least = cell == 0 ? 0 : (f.low + cell) << f.kShift;
    const int32_t most = cell == f.kCells - 1 ? kInfinity : ((f.low + cell + 1) << f.kShift) - 1;
    const auto set = [&](int32_t at, int32_t first_key, int32_t last_key) {
      const int first = nearest_entry(book, first_key);
      f.entries[at] = static_cast<uint8_t>(first);
      f.enough = f.enough && nearest_entry(book, last_key) - first <= 1;
    };
    set(f.kCells + cell, least, most);
    set(f.kCells - 1 - cell, ~most, ~least);
  }
}

// Of a codec's own book; null for others.
const FirstEntries* first_entries(const CodeBook& book) {
  constexpr size_t kMost = 8;
  static const auto all = [] {
    std::array<FirstEntries, kMost> list{};
    size_t n = 0;
    for (const Codec& c : codecs())
      if (c.book != nullptr && c.book->size > 16 && n < kMost) fill(list[n++], *c.book);
    return list;
  }();
  for (const FirstEntries& f : all)
    if (f.book == &book) return f.enough ? &f : nullptr;
  return nullptr;
}

__m256i found_entries(const FirstEntries& f, const CodeBook& book, __m256i bits, __m256i key) {
  const __m256i low = _mm256_set1_epi32(f.low), top = _mm256_set1_epi32(f.low + f.kCells - 1);
  const __m256i magnitude = _mm256_srli_epi32(_mm256_slli_epi32(bits, 1), 1 + f.kShift);
  const __m256i cell =
      _mm256_sub_epi32(_mm256_min_epi32(_mm256_max_epi32(magnitude, low), top), low);
  const __m256i at = _mm256_add_epi32(_mm256_xor_si256(cell, _mm256_srai_epi32(bits, 31)),
                                      _mm256_set1_epi32(f.kCells));
  const __m256i first =
      _mm256_and_si256(_mm256_i32gather_epi32(reinterpret_cast<const int*>(f.entries), at, 1),
                       _mm256_set1_epi32(0xff));
  return _mm256_sub_epi32(first,
                          _mm256_cmpgt_epi32(key, _mm256_i32gather_epi32(book.bounds, first, 4)));
}

// Of a codec's own book; null for others.
const SearchLevels* search_levels(const CodeBook& book) {
  constexpr size_t kMost = 16;
  static const auto all = [] {
    std::array<SearchLevels, kMost> list{};
    size_t n = 0;
    for (const Codec& c : codecs())
      if (c.book != nullptr && n < kMost) fill(list[n++], *c.book);
    return list;
  }();
  for (const SearchLevels& levels : all)
    if (levels.book == &book) return &levels;
  return nullptr;
}

// The nearest entries of x * factor, or x / scale. Eight at a time through the bounds. levels: of the
// book, or null.
void find_entries(const CodeBook& book, const SearchLevels* levels, ScaleRule rule,
                  const BlockScale& s, const float* x, int64_t n, uint8_t* entries) {
  const bool divide = rule == ScaleRule::peak;
  const float factor = divide ? s.scale : s.factor;
  int64_t i = 0;
  if (levels != nullptr && levels->enough && use_avx512())
    i = find_entries_avx512(*levels, divide, factor, x, n, entries);
  const __m256 by = _mm256_set1_ps(factor);
  const FirstEntries* begun = book.size > 16 ? first_entries(book) : nullptr;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    const __m256i bits = _mm256_castps_si256(divide ? _mm256_div_ps(v, by) : _mm256_mul_ps(v, by));
    const __m256i key = _mm256_xor_si256(
        bits, _mm256_and_si256(_mm256_srai_epi32(bits, 31), _mm256_set1_epi32(0x7fffffff)));
    __m256i entry = _mm256_setzero_si256();
    if (begun != nullptr) {
      entry = found_entries(*begun, book, bits, key);
    } else if (book.size <= 16) {
      for (int k = 0; k < 15; ++k)
        entry = _mm256_sub_epi32(entry, _mm256_cmpgt_epi32(key, _mm256_set1_epi32(book.bounds[k])));
    } else {
      for (int step = kMaxCodes / 2; step > 0; step /= 2) {
        const __m256i bound = _mm256_i32gather_epi32(book.bounds + step - 1, entry, 4);
        entry = _mm256_add_epi32(
            entry, _mm256_and_si256(_mm256_cmpgt_epi32(key, bound), _mm256_set1_epi32(step)));
      }
    }
    const __m256i words = _mm256_packus_epi32(entry, entry);  // in each half the same four twice
    const __m256i bytes = _mm256_packus_epi16(words, words);
    const auto low = static_cast<uint32_t>(_mm256_cvtsi256_si32(bytes));
    const auto high = static_cast<uint32_t>(_mm256_extract_epi32(bytes, 4));
    const uint64_t eight = low | static_cast<uint64_t>(high) << 32;
    std::copy_n(reinterpret_cast<const uint8_t*>(&eight), 8, entries + i);
  }
  for (; i < n; ++i)
    entries[i] = static_cast<uint8_t>(nearest_entry(book, float_key(scaled(rule, s, x[i]))));
}

// The uniform number of element i of the tensor.
struct DrawStream {
  const Draws* draws;
  Philox4 words{};
  int64_t block = -1;
  float at(int64_t i) {
    if (draws == nullptr) return -1.0f;
    const int64_t element = draws->first + i;
    if (element / 4 != block) {
      block = element / 4;
      words = random_block(draws->key, 0, static_cast<uint32_t>(block >> 32),
                           static_cast<uint32_t>(block));
    }
    return uniform_from(words[static_cast<size_t>(element % 4)]);
  }
};

void encode_entries(const Codec& codec, const CodeBook& book, const BlockScale& s, const float* x,
                    int64_t n, uint8_t* codes, DrawStream& draw, int64_t first) {
  const SearchLevels* const levels = search_levels(book);
  int64_t found = 0;
  if (codec.rule == ScaleRule::absmax && use_avx512_vbmi() && is_finite(s.scale))
    if (const MapLines* const lines = map_lines(book))
      found = map_entries_avx512(*lines, s.factor, x, n, codes);
  if (found < n) find_entries(book, levels, codec.rule, s, x + found, n - found, codes + found);
  if (draw.draws != nullptr)
    for (int64_t i = 0; i < n; ++i)
      codes[i] = static_cast<uint8_t>(drawn_entry(book.sorted, book.size, codes[i],
                                                  scaled(codec.rule, s, x[i]), draw.at(first + i)));
  if (levels == nullptr || !levels->in_order)
    for (int64_t i = 0; i < n; ++i) codes[i] = book.codes[codes[i]];
  if (is_finite(s.scale)) return;
  for (int64_t i = 0; i < n; ++i) {
    const float v = scaled(codec.rule, s, x[i]);
    if (v != v) codes[i] = book.nan;
  }
}

template <ScaleRule kRule>
void encode_whole(const BlockScale& s, const float* x, int64_t n, uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = whole_code(kRule, s, x[i] * s.factor, -1.0f);
}

void decode_bytes(const CodeBook& book, float scale, float* y, const uint8_t* codes, int64_t n) {
  const __m256 by = _mm256_set1_ps(scale);
  int64_t i = 0;
  if (use_avx512_vbmi())
    if (const MapLines* const lines = map_lines(book))
      i = map_values_avx512(*lines, scale, codes, n, y);
  if (i < n && use_avx512()) i += decode_bytes_avx512(book.values, scale, y + i, codes + i, n - i);
  for (; i + 8 <= n; i += 8) {
    const __m256i code =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i)));
    _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_i32gather_ps(book.values, code, 4), by));
  }
  for (; i < n; ++i) y[i] = book.values[codes[i]] * scale;
}

// Eight codes of four bytes: each half of the book in one register, chosen by its fourth bit.
void decode_halves(const CodeBook& book, float scale, float* y, const uint8_t* codes, int64_t n) {
  const __m256 low = _mm256_loadu_ps(book.values), high = _mm256_loadu_ps(book.values + 8);
  const __m256 by = _mm256_set1_ps(scale);
  const __m256i shifts = _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    int32_t four = 0;
    std::copy_n(codes + i / 2, 4, reinterpret_cast<uint8_t*>(&four));
    const __m256i code = _mm256_srlv_epi32(_mm256_set1_epi32(four), shifts);  // the upper bits stay
    const __m256 picked =
        _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, code), _mm256_permutevar8x32_ps(high, code),
                         _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)));
    _mm256_storeu_ps(y + i, _mm256_mul_ps(picked, by));
  }
  for (; i < n; ++i) {
    const int code = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
    y[i] = book.values[code] * scale;
  }
}

// What all rules but min_max are scaled by.
uint32_t largest_of(const float* x, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t a = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
    largest = a > largest ? a : largest;
  }
  return largest;
}

template <ScaleRule kRule>
void decode_whole(float scale, float zero, float unit, float* y, const uint8_t* codes, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = value_of_whole(kRule, scale, zero, unit, codes[i]);
}

}  // namespace

void add_extremes(BlockExtremes& e, const float* x, int64_t n) {
  uint32_t largest = e.largest;
  int32_t low = e.low, high = e.high;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t a = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
    const int32_t key = float_key(x[i]);
    largest = a > largest ? a : largest;
    low = key < low ? key : low;
    high = key > high ? key : high;
  }
  e.largest = largest;
  e.low = low;
  e.high = high;
}

void encode_piece(const Codec& codec, const CodeBook& book, const BlockScale& s, const float* x,
                  int64_t n, uint8_t* codes, const Draws* draws) {
  DrawStream draw{draws};
  uint8_t wide[kPiece];
  for (int64_t at = 0; at < n; at += kPiece) {
    const int64_t count = std::min(kPiece, n - at);
    uint8_t* to = codec.bits == 8 ? codes + at : wide;
    if (codec.has_book()) {
      encode_entries(codec, book, s, x + at, count, to, draw, at);
    } else if (draws != nullptr) {
      for (int64_t i = 0; i < count; ++i)
        to[i] = whole_code(codec.rule, s, x[at + i] * s.factor, draw.at(at + i));
    } else if (codec.rule == ScaleRule::integer) {
      encode_whole<ScaleRule::integer>(s, x + at, count, to);
    } else {
      encode_whole<ScaleRule::min_max>(s, x + at, count, to);
    }
    if (codec.bits == 8) continue;
    if (count % 2 != 0) wide[count] = book.zero;  // count < kPiece, which is even
    uint8_t* packed = codes + at / 2;
    for (int64_t k = 0; k < (count + 1) / 2; ++k)
      packed[k] = static_cast<uint8_t>(wide[2 * k] << 4 | wide[2 * k + 1]);
  }
}

void decode_piece(const Codec& codec, const CodeBook& book, float scale, float zero, float* y,
                  const uint8_t* codes, int64_t n) {
  if (codec.bits == 4) return decode_halves(book, scale, y, codes, n);
  if (codec.has_book()) return decode_bytes(book, scale, y, codes, n);
  const float unit = 1.0f / codec.peak;
  if (codec.rule == ScaleRule::integer)
    return decode_whole<ScaleRule::integer>(scale, zero, unit, y, codes, n);
  decode_whole<ScaleRule::min_max>(scale, zero, unit, y, codes, n);
}

void encode_block(const CodeSpec& spec, const float* x, int64_t n, uint8_t* codes, float* scales,
                  const Draws* draws, const CodeBook* book) {
  BlockExtremes extremes;
  if (spec.codec->rule == ScaleRule::min_max)
    add_extremes(extremes, x, n);
  else
    extremes.largest = largest_of(x, n);
  const BlockScale s = scale_of(spec.codec->rule, spec.codec->peak, extremes);
  scales[0] = s.scale;
  if (spec.codec->scales() == 2) scales[1] = s.zero;
  encode_piece(*spec.codec, book_of(spec, book), s, x, n, codes, draws);
}

void decode_block(const CodeSpec& spec, float* y, const uint8_t* codes, const float* scales,
                  int64_t n, const CodeBook* book) {
  decode_piece(*spec.codec, book_of(spec, book), scales[0],
               spec.codec->scales() == 2 ? scales[1] : 0.0f, y, codes, n);
}

}  // namespace snug
