#pragma once
/// A checkpoint with quantized weights, seen with the same weights in other codes, with scales for smaller blocks, or
/// with one second scale for gate and up. Nothing is rounded: what has no exact form is refused when the source is
/// opened.

#include <memory>
#include <span>
#include <string>

#include "glu_ckpt/checkpoint.hpp"
#include "quant/quantized_tensor.hpp"

namespace glu_ckpt {

/// Replaces a source by one whose FP8 weights have scales for blocks of at most `rows` rows: each scale is repeated for
/// the parts of its block. Where there are no larger blocks, and where it throws, the source stays. `rows` divides the
/// rows of the blocks. Its quantization_config says so (`weight_block_size`, or compressed-tensors' `block_structure`),
/// its record too (`scale_rows`). Throws NotExact where the configuration has no field for it, as ModelOpt's.
void refine_scales(std::unique_ptr<Source>& source, Quantization found, i64 rows);

/// Replaces a source by one whose FP8 weights with powers of two for scales, and whose MXFP4 weights, are MXFP8: codes
/// of one byte and a byte of exponent for each 32 of a row. Where nothing else is quantized, and where it throws, the
/// source stays. Its quantization_config is MXFP8's, its record has `encoded_as`.
/// All scales are read. Throws NotExact, naming tensor and element, for scales that are no power of two between 2^-127
/// and 2^127, and for rows that are no multiple of 32; NotSupported for codes that E4M3 has no numbers for, and for
/// weights that their naming turns. gpt-oss's blocks keep their axes.
void encode_mxfp8(std::unique_ptr<Source>& source, Quantization found);

/// The second scales of gate and of up in tensors of their own, for as many experts as there are values.
struct SecondScales {
  std::size_t gate = 0;
  std::size_t up = 0;
};

struct SharedScales {
  /// Pairs of gate and up that had two second scales, and have one.
  i64 pairs = 0;
  /// The end of a sentence that says why all keep those that they had; empty where nothing had to stay.
  std::string why_none;
};

/// Replaces a source by one in which gate and up of NVFP4 have one second scale: where two of them differ by a power of
/// two, block scales are multiplied by powers of two, so that every product of both is the one that was stored. Of the
/// scales for which every block scale is exact in E4M3, the one is taken that changes the fewest. The record says so
/// (`second_scales`). Where one pair has no such scale, or all have one already, the source stays. The block scales of
/// pairs that differ by a power of two are read.
SharedScales share_second_scales(std::unique_ptr<Source>& source, Quantization found,
                                 std::span<const SecondScales> pairs);

}  // namespace glu_ckpt
