#pragma once
/// The families of Hugging Face that a model may be of, by the arguments that Megatron-LM saved.

#include <string>
#include <string_view>
#include <vector>

#include "families/saved_args.hpp"

namespace glu_ckpt {

enum FamilyBit : u32 {
  kMixtralBit = 1U << 0,
  kQwen2Bit = 1U << 1,
  kQwen3Bit = 1U << 2,
  kV2Bit = 1U << 3,
  kV3Bit = 1U << 4,
  kKimiBit = 1U << 5,
  kLiteBit = 1U << 6,
  kGlmBit = 1U << 7,
  kDotsBit = 1U << 8,
  kGptOssBit = 1U << 9,
  kLlamaBit = 1U << 10,
  kGraniteBit = 1U << 11,
  kNextBit = 1U << 12,
  kQwen35Bit = 1U << 13,
  kErnieBit = 1U << 14,
};
constexpr u32 kEveryFamily = (1U << 15) - 1;
constexpr u32 kQwenBits = kQwen2Bit | kQwen3Bit | kNextBit | kQwen35Bit;
constexpr u32 kDeltaBits = kNextBit | kQwen35Bit;
constexpr u32 kLatentV3Bits = kV3Bit | kKimiBit | kLiteBit;
constexpr u32 kLatentBits = kV2Bit | kLatentV3Bits;
/// The families with a correction bias, shared experts counted in widths of one, and dense layers first.
constexpr u32 kSigmoidBits = kLatentV3Bits | kGlmBit | kDotsBit;
/// Their intermediate_size is the width of an expert.
constexpr u32 kPlainWidthBits = kMixtralBit | kGptOssBit | kLlamaBit | kGraniteBit;

/// A model fits where it has all traits of `required` and nothing beside that and `possible`.
struct TrainedFamily {
  std::string_view model_type;
  std::string_view model_class;
  FamilyBit bit;
  u32 required;
  u32 possible;
};

/// Returns, as bits, the traits of the model that only some families have.
u32 traits_of(SavedArgs& args);

/// Returns the families that have all of those traits; only that of `model_type` unless it is empty.
std::vector<const TrainedFamily*> fitting_families(u32 traits, const std::string& model_type);

/// Returns the end of a sentence that says why there is none.
std::string why_none_fits(u32 traits, const std::string& model_type);

}  // namespace glu_ckpt
