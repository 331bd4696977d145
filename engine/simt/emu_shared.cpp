#include "engine/simt/emu_shared.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <new>

namespace snug::simt::emu {

Region::Region(std::string name, int64_t bytes, int granule)
    : name_(std::move(name)),
      bytes_(bytes),
      granule_(granule),
      shift_(std::has_single_bit(static_cast<unsigned>(granule))
                 ? std::countr_zero(static_cast<unsigned>(granule))
                 : -1),
      data_(static_cast<std::byte*>(
          ::operator new[](static_cast<size_t>(bytes), std::align_val_t{128}))),
      cells_(static_cast<size_t>((bytes + granule - 1) / granule)) {}

std::string Region::element(int64_t offset) const {
  if (name_.empty()) return fmt::format("byte {} of dynamic shared memory", offset);
  return fmt::format("{}[{}]", name_, offset / granule_);
}

void Region::halve() {
  granule_ /= 2;
  --shift_;
  std::vector<Cell> halves(static_cast<size_t>((bytes_ + granule_ - 1) / granule_));
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = cells_[i / 2];
  cells_ = std::move(halves);
  if (atomics_.empty()) return;
  std::vector<Pair> pairs(cells_.size());
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i] = atomics_[i / 2];
  atomics_ = std::move(pairs);
}

bool Region::races(const Touch& earlier, const Toucher& who) {
  if (earlier.epoch != who.epoch) return false;
  if (earlier.warp != who.warp) return true;
  return earlier.warp_epoch == who.warp_epoch && (earlier.lanes & ~(1u << who.lane)) != 0;
}

void Region::note(Pair& pair, const Touch& now) {
  Touch* slot = pair.last;
  if (slot->epoch == now.epoch && slot->warp != now.warp) ++slot;
  if (slot->epoch == now.epoch && slot->warp == now.warp && slot->warp_epoch == now.warp_epoch) {
    slot->lanes |= now.lanes;
  } else {
    *slot = now;
  }
}

void Region::report_race(int64_t cell, const Touch& earlier, const Toucher& who, Use use,
                         const std::source_location& at) const {
  const auto word = [](Use u) {
    return u == Use::read ? "reads" : u == Use::write ? "writes" : "atomically updates";
  };
  const uint32_t others =
      earlier.warp == who.warp ? earlier.lanes & ~(1u << who.lane) : earlier.lanes;
  const int other = earlier.warp * kWarp + std::countr_zero(others);
  const bool same_warp = earlier.warp == who.warp;
  fault("a barrier between uses of one element of shared memory by two threads",
        fmt::format("{}: thread {} {} it at {}, then this thread {} it at {}",
                    element(cell * granule_), other, word(earlier.use), to_string(earlier.at),
                    word(use), to_string(at)),
        same_warp ? "put sync_warp() or sync_threads() between the two"
                  : "put sync_threads() between the two");
}

void* Region::use(int64_t offset, int64_t bytes, Use use, const Toucher& who,
                  const std::source_location& at) {
  if (offset < 0 || bytes > bytes_ || offset > bytes_ - bytes)
    fault(fmt::format("an access inside {}, {} bytes",
                      name_.empty() ? "dynamic shared memory" : name_, bytes_),
          fmt::format("bytes {} to {} at {}", offset, offset + bytes, to_string(at)),
          name_.empty() ? "check the index and the shared_bytes of the launch"
                        : "check the index and the size it is declared with");
  if (block_ != who.block) {
    block_ = who.block;
    first_epoch_ = who.epoch;
    std::memset(data_.get(), 0xff, static_cast<size_t>(bytes_));
  }
  if (name_.empty() && ((offset | bytes) & (granule_ - 1)) != 0) halve();
  const int64_t end = cell_of(offset + bytes + granule_ - 1);
  const Touch now{who.epoch, who.warp_epoch, 1u << who.lane, static_cast<int16_t>(who.warp), use,
                  at};
  for (int64_t i = cell_of(offset); i < end; ++i) {
    Cell& cell = cells_[static_cast<size_t>(i)];
    // Epochs only grow, and no two blocks share one.
    const bool written = cell.write.epoch >= first_epoch_;
    if (use != Use::write && !written)
      fault("shared memory to be written before it is read",
            fmt::format("{} read at {}, which nobody wrote in this block", element(i * granule_),
                        to_string(at)),
            "write it first; nothing stays from the block before");
    const auto check = [&](const Touch& earlier) {
      if (races(earlier, who)) report_race(i, earlier, who, use, at);
    };
    if (written) check(cell.write);
    if (use != Use::read)
      for (const Touch& read : cell.reads.last) check(read);
    if (use != Use::atomic && !atomics_.empty())
      for (const Touch& atomic : atomics_[static_cast<size_t>(i)].last) check(atomic);
    if (use == Use::read) {
      note(cell.reads, now);
    } else if (use == Use::atomic) {
      if (atomics_.empty()) atomics_.resize(cells_.size());
      note(atomics_[static_cast<size_t>(i)], now);
    } else {
      cell.write = now;
    }
  }
  return data_.get() + offset;
}

}  // namespace snug::simt::emu
