#pragma once
/// The passes that prove the output and publish it.

#include "convert/move_pass.hpp"

namespace glu_ckpt {

struct Published {
  Proof proof;
  /// The source's digest; absent where none was made.
  std::optional<Digest> digest;
};

/// Compares the digests of what was read and written, writes the headers, opens the staged files as any reader would,
/// compares them with the source as ConvertOptions::proof says, and renames them to their final path. Rank 0 alone.
Published prove_and_publish(const Conversion& conversion, const ExpectedOutput& expected, const Staging& staging,
                            const ClonePlan& clones, const Moved& moved, Consumer* consumer);

}  // namespace glu_ckpt
