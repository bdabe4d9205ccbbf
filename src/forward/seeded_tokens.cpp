#include "forward/seeded_tokens.hpp"

#include "core/float_rows.hpp"
#include "core/hash.hpp"

namespace glu_ckpt {
namespace {

/// 2^64 divided by the golden ratio, made odd: multiples of it are spread evenly.
constexpr u64 kStep = 0x9e3779b97f4a7c15;

/// SplitMix64's finalizer: a permutation of 64 bits in which each bit of the input turns half of the output's.
u64 mix(u64 bits) {
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
  return bits ^ bits >> 31;
}

/// Number `index` of the stream `key`.
u64 draw(u64 key, i64 index) { return mix(key + kStep * (static_cast<u64>(index) + 1)); }

/// 0 <= result < limit, from 16 bits.
i64 scaled(u64 bits, i64 limit) { return static_cast<i64>((bits & 0xffff) * static_cast<u64>(limit) >> 16); }

constexpr i64 kMostTokens = 7;
/// The counter of a token's probability; those of its values come first.
constexpr i64 kProbability = i64{1} << 40;

}  // namespace

SeededTokens::SeededTokens(u64 seed, std::string_view block, i64 num_experts, i64 hidden)
    : key_(mix(mix(seed) ^ hash64(block))), hidden_(hidden) {
  const u64 sizes = mix(~key_);
  const auto pick = [&](i64 index) { return static_cast<i64>(draw(sizes, index) >> 32) % num_experts; };
  if (num_experts > 1) isolated_ = pick(0);
  const i64 single = num_experts > 2 ? (isolated_ + 1 + pick(1) % (num_experts - 1)) % num_experts : -1;
  for (i64 e = 0; e < num_experts; ++e)
    counts_.push_back(e == single ? 1 : num_experts == 1 ? 4 : 1 + scaled(draw(sizes, 2 + e), kMostTokens));
}

void SeededTokens::fill(i64 expert, Dtype dtype, std::byte* x, float* probs) const {
  constexpr i64 kMostValue = 110;
  constexpr float kUnit = 1.0F / 64;
  constexpr i64 kValuesPerDraw = 4;
  std::vector<float> row(static_cast<std::size_t>(hidden_));
  for (i64 t = 0; t < count(expert); ++t) {
    const u64 token = draw(draw(key_, expert), t);
    for (i64 c = 0; c < hidden_; ++c) {
      const u64 bits = draw(token, c / kValuesPerDraw) >> c % kValuesPerDraw * 16;
      row[static_cast<std::size_t>(c)] = static_cast<float>(scaled(bits, 2 * kMostValue + 1) - kMostValue) * kUnit;
    }
    narrow_row(row, dtype, x + t * hidden_ * dtype_bits(dtype) / 8);
    probs[t] = static_cast<float>(2 * (draw(token, kProbability) >> 41) + 1) * 0x1p-24F;
  }
}

}  // namespace glu_ckpt
