#include "core/data_hash.hpp"

#include <algorithm>

#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

/// The memory that a Partial takes besides its early ranges: the state of the hash and the nodes around it.
constexpr i64 kPartialBytes = 1024;

i64 count_blocks(i64 bytes) { return (bytes + kDataBlockBytes - 1) / kDataBlockBytes; }

}  // namespace

Hash128 hash_data(std::span<const std::byte> bytes, i64 first_block) {
  Hash128 sum;
  for (i64 block = first_block; !bytes.empty(); ++block) {
    const auto part = bytes.first(std::min(bytes.size(), static_cast<std::size_t>(kDataBlockBytes)));
    sum += hash128(part, static_cast<u64>(block));
    bytes = bytes.subspan(part.size());
  }
  return sum;
}

bool HashMemory::try_take(i64 bytes) {
  if (left_.fetch_sub(bytes) >= bytes) return true;
  left_ += bytes;
  return false;
}

DataHasher::DataHasher(i64 bytes, HashMemory& memory)
    : bytes_(bytes), memory_(memory), states_(static_cast<std::size_t>(count_blocks(bytes)), BlockState::Open) {}

DataHasher::~DataHasher() {
  for (Stripe& stripe : stripes_)
    while (!stripe.partials.empty()) forget(stripe, stripe.partials.begin());
}

i64 DataHasher::block_bytes(i64 block) const { return std::min(kDataBlockBytes, bytes_ - block * kDataBlockBytes); }

void DataHasher::add_sum(const Hash128& sum) {
  const std::lock_guard lock(sum_mutex_);
  sum_ += sum;
}

void DataHasher::add(i64 offset, std::span<const std::byte> bytes) {
  Hash128 sum;
  while (!bytes.empty()) {
    const i64 block = offset / kDataBlockBytes;
    const i64 within = offset % kDataBlockBytes;
    const i64 count = std::min(std::ssize(bytes), block_bytes(block) - within);
    const auto part = bytes.first(static_cast<std::size_t>(count));
    if (count == block_bytes(block)) {
      sum += hash128(part, static_cast<u64>(block));
      state_of(block) = BlockState::Hashed;
    } else {
      add_part(block, within, part);
    }
    offset += count;
    bytes = bytes.subspan(part.size());
  }
  add_sum(sum);
}

void DataHasher::add_part(i64 block, i64 offset, std::span<const std::byte> part) {
  Stripe& stripe = stripes_[static_cast<std::size_t>(block) % stripes_.size()];
  const std::lock_guard lock(stripe.mutex);
  if (state_of(block) == BlockState::ReadAgain) return;
  auto at = stripe.partials.find(block);
  if (at == stripe.partials.end()) {
    if (!memory_.try_take(kPartialBytes)) {
      state_of(block) = BlockState::ReadAgain;
      return;
    }
    at = stripe.partials.emplace(block, Partial{StreamHash(static_cast<u64>(block)), 0, {}}).first;
  }
  if (!join(at->second, offset, part)) {
    state_of(block) = BlockState::ReadAgain;
    forget(stripe, at);
  } else if (at->second.hashed == block_bytes(block)) {
    add_sum(at->second.hash.finish());
    state_of(block) = BlockState::Hashed;
    forget(stripe, at);
  }
}

/// False where there is no memory to keep the part.
bool DataHasher::join(Partial& partial, i64 offset, std::span<const std::byte> part) {
  if (offset != partial.hashed) {
    if (!memory_.try_take(std::ssize(part))) return false;
    partial.early.emplace(offset, std::vector<std::byte>(part.begin(), part.end()));
    return true;
  }
  partial.hash.update(part);
  partial.hashed += std::ssize(part);
  for (auto next = partial.early.begin(); next != partial.early.end() && next->first == partial.hashed;) {
    partial.hash.update(next->second);
    partial.hashed += std::ssize(next->second);
    memory_.give_back(std::ssize(next->second));
    next = partial.early.erase(next);
  }
  return true;
}

void DataHasher::forget(Stripe& stripe, std::map<i64, Partial>::iterator partial) {
  for (const auto& [offset, bytes] : partial->second.early) memory_.give_back(std::ssize(bytes));
  memory_.give_back(kPartialBytes);
  stripe.partials.erase(partial);
}

void DataHasher::export_to(ByteWriter& out) const {
  // Runs of complete blocks, as first block and count; a count of 0 ends the list.
  for (auto at = states_.begin();;) {
    at = std::find(at, states_.end(), BlockState::Hashed);
    const auto end = std::find_if(at, states_.end(), [](BlockState state) { return state != BlockState::Hashed; });
    out.number(at - states_.begin());
    out.number(end - at);
    if (at == end) break;
    at = end;
  }
  out.number(static_cast<i64>(sum_.low));
  out.number(static_cast<i64>(sum_.high));
}

void DataHasher::import_from(ByteReader& in) {
  for (;;) {
    const i64 first = in.number(0, std::ssize(states_));
    const i64 count = in.number(0, std::ssize(states_) - first);
    if (count == 0) break;
    const auto run = std::span(states_).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    if (std::ranges::find(run, BlockState::Hashed) != run.end())
      fail(ErrorCode::Io, {}, "two processes of the run have hashed the same of the blocks {} to {}", first,
           first + count - 1);
    std::ranges::fill(run, BlockState::Hashed);
  }
  Hash128 sum;
  sum.low = static_cast<u64>(in.number());
  sum.high = static_cast<u64>(in.number());
  add_sum(sum);
}

Hash128 DataHasher::finish(const std::function<void(std::span<std::byte>, i64)>& read) const {
  Hash128 sum = sum_;
  std::vector<std::byte> bytes;
  for (i64 block = 0; block < std::ssize(states_); ++block) {
    if (states_[static_cast<std::size_t>(block)] == BlockState::Hashed) continue;
    bytes.resize(static_cast<std::size_t>(block_bytes(block)));
    read(bytes, block * kDataBlockBytes);
    sum += hash128(bytes, static_cast<u64>(block));
  }
  return sum;
}

}  // namespace glu_ckpt
