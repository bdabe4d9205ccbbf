#pragma once
/// Keeps what is written away from what is read: a source is never written to.

#include <filesystem>

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

/// Throws OutputInsideSource where one of the paths is the other, or in it. Reads names only; the end of a path may not
/// exist yet.
void check_apart(const std::filesystem::path& output, const std::filesystem::path& source);

/// Checks that of the source's path, and of its files: they may lie elsewhere than the path says, for a snapshot's
/// symlinks point into a shared cache.
void check_apart(const std::filesystem::path& output, const Source& source);

}  // namespace glu_ckpt
